//! The usage listener: `GET /usage` shows a tenant how much of its limits is left, and charges nothing.
//!
//! The credential of the caller selects the tenant. The entries that the query names are appended to those of the
//! tenant, so that no query can select a counter of another tenant. The counters are read by peeks in one call to the
//! store, without failure policy and deny cache: the answer is the state of the counters, or 503.

mod access;
mod answer;
mod error;
mod query;
mod rate;
mod tenants;

use std::{
    num::NonZeroU32,
    sync::Arc,
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use axum::{
    Extension, Router,
    extract::{RawQuery, State},
    http::{
        HeaderMap, HeaderValue, StatusCode,
        header::{CACHE_CONTROL, CONNECTION, CONTENT_TYPE},
    },
    response::{IntoResponse, Response},
    routing::get,
};
use sluicegate_proto::text::descriptor::render;
use sluicegate_store::Stack;

pub(crate) use self::tenants::{TenantsError, TenantsFile};
use self::{answer::Usage, error::UsageError, rate::RequestRate, tenants::Tenant};
use crate::{
    limits::Snapshot,
    listen::Peer,
    offload::Offload,
    telemetry::{Count, Metrics, RefusalBound, catalogue},
};

/// The time for the store to report the counters. Longer than in decisions, because a page waits, not Envoy.
const PEEK_TIMEOUT: Duration = Duration::from_secs(1);

/// The most bytes of a body: a request has none.
pub(crate) const BODY_BYTES_MAX: usize = 0;

/// The most requests that are matched concurrently.
const MATCHING_MAX: usize = 4;

/// The most requests that are matched or wait to be matched.
const REQUESTS_MAX: usize = 64;

/// What the usage listener serves.
pub(crate) struct UsageOptions {
    /// The tenants and their credentials.
    pub(crate) tenants: TenantsFile,
    /// The most requests of a tenant in a second.
    pub(crate) requests_per_second: NonZeroU32,
    /// The most bytes of the domain, keys and values of a request.
    pub(crate) request_bytes: usize,
}

/// The state of the handlers.
struct UsageState {
    tenants: TenantsFile,
    rate: RequestRate,
    request_bytes: usize,
    snapshot: Arc<ArcSwap<Snapshot>>,
    store: Arc<Stack>,
    matching: Offload,
    responses: Arc<ResponseCounts>,
}

/// The routes of the usage listener.
pub(crate) fn router(
    options: UsageOptions,
    snapshot: Arc<ArcSwap<Snapshot>>,
    store: Arc<Stack>,
    responses: Arc<ResponseCounts>,
) -> Router {
    let UsageOptions { tenants, requests_per_second, request_bytes } = options;
    let state = Arc::new(UsageState {
        tenants,
        rate: RequestRate::new(requests_per_second),
        request_bytes,
        snapshot,
        store,
        matching: Offload::new(MATCHING_MAX, REQUESTS_MAX),
        responses,
    });
    let not_found = |State(state): State<Arc<UsageState>>| async move {
        state.respond(None, Err(UsageError::NotFound))
    };
    let method = |State(state): State<Arc<UsageState>>| async move {
        state.respond(None, Err(UsageError::Method))
    };
    Router::new()
        .route("/usage", get(usage))
        .fallback(not_found)
        .method_not_allowed_fallback(method)
        .with_state(state)
}

/// `GET /usage`: 200 with the usage in JSON, or a problem in JSON.
async fn usage(
    State(state): State<Arc<UsageState>>,
    peer: Option<Extension<Peer>>,
    body_bound: Option<Extension<RefusalBound>>,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Response {
    let names = peer.map(|Extension(peer)| peer.certificate_names).unwrap_or_default();
    let tenant = match access::authenticate(&state.tenants.tenants(), &headers, &names) {
        Ok(tenant) => tenant,
        Err(error) => return state.respond(None, Err(error)),
    };
    let answer = match body_bound {
        None => state.answer(Arc::clone(&tenant), query.unwrap_or_default()).await,
        Some(_) => Err(UsageError::Body),
    };
    state.respond(Some(&tenant), answer)
}

impl UsageState {
    async fn answer(&self, tenant: Arc<Tenant>, query: String) -> Result<Usage, UsageError> {
        self.rate
            .charge(&tenant.budget)
            .map_err(|retry_after| UsageError::TooOften { retry_after })?;
        let permit = self.matching.admit().ok_or(UsageError::Busy)?.wait().await;
        let (snapshot, request_bytes) = (self.snapshot.load_full(), self.request_bytes);
        // On a separate thread, because long values can be slow to match.
        let planned = permit.run(move || {
            let queried = query::parse_query(&query)?;
            answer::plan(&snapshot.rules, &tenant, &queried, request_bytes)
        });
        let (mut usage, peeks) = planned.await.map_err(|_panicked| UsageError::Internal)??;
        if !peeks.is_empty() {
            let answers = self.store.peek(peeks, Some(Instant::now() + PEEK_TIMEOUT)).await;
            usage.add_counters(&answers)?;
        }
        Ok(usage)
    }

    /// Counts and logs a response.
    fn respond(&self, tenant: Option<&Tenant>, answer: Result<Usage, UsageError>) -> Response {
        let error = answer.as_ref().err().map(ToString::to_string);
        let body = answer
            .and_then(|usage| serde_json::to_string(&usage).map_err(|_| UsageError::Internal));
        let mut response = match body {
            Ok(body) => ([(CONTENT_TYPE, "application/json")], body + "\n").into_response(),
            Err(error) => error.into_response(),
        };
        let headers = response.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if tenant.is_none() {
            // A client without a valid credential does not keep its connection.
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        let status = response.status();
        self.responses.count(status);
        let descriptor =
            |tenant: &Tenant| render(tenant.entries.iter().map(|(key, value)| (&**key, &**value)));
        tracing::debug!(
            status = status.as_u16(),
            domain = tenant.map(|tenant| &*tenant.domain),
            tenant = tenant.map(descriptor),
            error,
            "usage request"
        );
        response
    }
}

/// The statuses of responses.
const STATUSES: [StatusCode; 9] = [
    StatusCode::OK,
    StatusCode::BAD_REQUEST,
    StatusCode::UNAUTHORIZED,
    StatusCode::FORBIDDEN,
    StatusCode::NOT_FOUND,
    StatusCode::METHOD_NOT_ALLOWED,
    StatusCode::TOO_MANY_REQUESTS,
    StatusCode::INTERNAL_SERVER_ERROR,
    StatusCode::SERVICE_UNAVAILABLE,
];

/// Responses by status, in the order of [`STATUSES`].
#[derive(Debug, Default)]
pub(crate) struct ResponseCounts([Count; STATUSES.len()]);

impl ResponseCounts {
    /// Registers their metric.
    pub(crate) fn register(self: Arc<Self>, metrics: &Metrics) {
        metrics.register_labelled_counter(catalogue::USAGE_REQUESTS, move |observe| {
            for (status, count) in STATUSES.iter().zip(&self.0) {
                observe(count.get(), &[status.as_str()]);
            }
        });
    }

    fn count(&self, status: StatusCode) {
        let counted = STATUSES.iter().zip(&self.0).find(|(it, _)| **it == status);
        if let Some((_, count)) = counted {
            count.add(1);
        }
    }
}
