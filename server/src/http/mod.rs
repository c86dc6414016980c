//! The HTTP listener: `/json`, `/healthcheck`, `/livez`, `/metrics`, `/stats`, `/rlconfig`.

mod answer_timer;
mod bodies;
mod head_timer;
mod health;
mod json;
mod pages;
mod rlconfig;
mod server;
mod stats;

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use arc_swap::ArcSwap;
use axum::{
    Router,
    body::Bytes,
    extract::{DefaultBodyLimit, Extension, FromRequestParts, RawQuery, State},
    http::{StatusCode, header::CONTENT_TYPE, request::Parts},
    response::{IntoResponse, Response},
    routing::{any, get},
};
use sluicegate_proto::envoy::service::ratelimit::v3::{
    RateLimitResponse, rate_limit_response::Code,
};
use sluicegate_store::Stack;

use self::pages::{PLAIN, Page, Rendered};
pub(crate) use self::{bodies::BODY_BYTES_MAX, pages::RenderPool, server::Server};
use crate::{
    grpc::{AnswerError, Encoded, InFlight, Rls},
    limits::Snapshot,
    telemetry::{Bound, RequestTrace, Telemetry, Traces},
};

/// What the handlers need.
pub(crate) struct Shared {
    pub(crate) rls: Arc<Rls>,
    pub(crate) in_flight: InFlight,
    pub(crate) snapshot: Arc<ArcSwap<Snapshot>>,
    pub(crate) telemetry: Arc<Telemetry>,
    pub(crate) serving: Arc<AtomicBool>,
    pub(crate) store: Arc<Stack>,
    pub(crate) traces: Option<Arc<Traces>>,
    pub(crate) pages: RenderPool,
}

/// The routes.
pub(crate) fn router(shared: Shared) -> Router {
    Router::new()
        // envoyproxy/ratelimit takes any method.
        .route("/json", any(json))
        .route("/healthcheck", get(healthcheck))
        .route("/livez", get(livez))
        .route("/metrics", get(metrics))
        .route("/stats", get(stats))
        .route("/rlconfig", get(rlconfig))
        // Bodies are bounded while they are read.
        .layer(DefaultBodyLimit::disable())
        .with_state(Arc::new(shared))
}

/// A `RateLimitRequest` as JSON in, a `RateLimitResponse` as JSON out: 200 if the request may pass, 429 if
/// not, or if it exceeds a bound, 400 if it makes no sense, 503 where a rule defers to the caller because the store cannot
/// answer.
async fn json(
    State(shared): State<Arc<Shared>>,
    TraceExtractor(mut traced): TraceExtractor,
    bound: Option<Extension<Bound>>,
    body: Bytes,
) -> Response {
    let response = match bound {
        None => answer(&shared, &mut traced, body).await,
        // Values of end users can make a body too large.
        Some(Extension(bound)) => answered(&shared.rls.deny(bound, &mut traced)),
    };
    traced.end_http(response.status().as_u16());
    response
}

async fn answer(shared: &Shared, traced: &mut RequestTrace, body: Bytes) -> Response {
    let entered = shared.in_flight.enter();
    let message = Encoded::Other(body, json::decode);
    match shared.rls.answer(message, entered.shed, None, traced).await {
        Ok(response) => answered(&response),
        Err(error) => {
            let status = match error {
                AnswerError::Invalid(_) | AnswerError::Undecodable(_) => StatusCode::BAD_REQUEST,
                AnswerError::Deferred(_) => StatusCode::SERVICE_UNAVAILABLE,
            };
            (status, format!("{error}\n")).into_response()
        }
    }
}

fn answered(response: &RateLimitResponse) -> Response {
    let status = match response.overall_code() {
        Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
        Code::Ok => StatusCode::OK,
        Code::Unknown => StatusCode::INTERNAL_SERVER_ERROR,
    };
    match json::encode(response) {
        Ok(body) => (status, [(CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

/// The trace that a request belongs to, from its headers.
struct TraceExtractor(RequestTrace);

impl FromRequestParts<Arc<Shared>> for TraceExtractor {
    type Rejection = Infallible;

    async fn from_request_parts(
        parts: &mut Parts,
        shared: &Arc<Shared>,
    ) -> Result<Self, Infallible> {
        let traces = shared.traces.as_ref();
        let traced = traces.map(|traces| traces.of_http(&parts.method, &parts.headers));
        Ok(Self(traced.unwrap_or_default()))
    }
}

/// Whether gRPC health says SERVING, for probes that cannot speak gRPC. With `?verbose`, also how the store
/// does.
async fn healthcheck(State(shared): State<Arc<Shared>>, RawQuery(query): RawQuery) -> Response {
    let serving = shared.serving.load(Ordering::Relaxed);
    let status = if serving { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
    let verbose = query.is_some_and(|query| query.split('&').any(|it| it.starts_with("verbose")));
    match (verbose, serving) {
        (true, _) => (status, health::describe(serving, &shared.store)).into_response(),
        (false, true) => (status, "OK").into_response(),
        (false, false) => status.into_response(),
    }
}

/// That the process can answer, drained or without its store: for what would restart it otherwise.
async fn livez() -> &'static str {
    "OK"
}

/// The metrics, in Prometheus' text format.
async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    page(shared, Page::Metrics, |shared| match shared.telemetry.render() {
        Ok(text) => Rendered::ok(prometheus::TEXT_FORMAT, text),
        Err(error) => Rendered::error(&error),
    })
    .await
}

/// What was counted, under the names of envoyproxy/ratelimit.
async fn stats(State(shared): State<Arc<Shared>>) -> Response {
    page(shared, Page::Stats, |it| {
        Rendered::ok(PLAIN, stats::render(&it.telemetry, &it.snapshot.load(), &it.store))
    })
    .await
}

/// The limits in force.
async fn rlconfig(State(shared): State<Arc<Shared>>) -> Response {
    page(shared, Page::Rlconfig, |it| {
        let snapshot = it.snapshot.load();
        let render = || rlconfig::render(&snapshot.rules).into();
        Rendered::ok(PLAIN, snapshot.listing.get_or_init(render).clone())
    })
    .await
}

async fn page(
    shared: Arc<Shared>,
    page: Page,
    render: impl FnOnce(&Shared) -> Rendered + Send + 'static,
) -> Response {
    let shown = Arc::clone(&shared);
    shared.pages.make(page, move || render(&shown)).await
}
