//! The HTTP listener: `/json`, `/healthcheck`, `/livez`, `/metrics`, `/stats`, `/rlconfig`.

mod bodies;
mod head_timer;
mod health;
mod json;
mod pages;
mod rlconfig;
mod server;
mod stats;
mod write_timeout;

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
    http::{
        HeaderName, HeaderValue, StatusCode,
        header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, DATE, TRANSFER_ENCODING, UPGRADE},
        request::Parts,
    },
    response::{IntoResponse, Response},
    routing::{any, get},
};
use sluicegate_proto::envoy::service::ratelimit::v3::{
    RateLimitResponse, rate_limit_response::Code,
};
use sluicegate_store::Stack;

use self::pages::{PLAIN, Page, Rendered};
pub(crate) use self::{bodies::ALL_BODIES_BYTES_MAX, pages::RenderPool, server::Server};
use crate::{
    grpc::{AnswerError, EncodedRequest, InFlight, Rls},
    limits::Snapshot,
    telemetry::{Metrics, RefusalBound, RequestTrace, Traces},
};

/// The state of the handlers.
pub(crate) struct HttpState {
    pub(crate) rls: Arc<Rls>,
    pub(crate) in_flight: InFlight,
    pub(crate) snapshot: Arc<ArcSwap<Snapshot>>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) serving: Arc<AtomicBool>,
    pub(crate) store: Arc<Stack>,
    pub(crate) traces: Option<Arc<Traces>>,
    pub(crate) pages: RenderPool,
}

/// The routes.
pub(crate) fn router(state: HttpState) -> Router {
    Router::new()
        // Any method, as in envoyproxy/ratelimit.
        .route("/json", any(json))
        .route("/healthcheck", get(healthcheck))
        .route("/livez", get(livez))
        .route("/metrics", get(metrics))
        .route("/stats", get(stats))
        .route("/rlconfig", get(rlconfig))
        // `bodies` bounds bodies while they are read.
        .layer(DefaultBodyLimit::disable())
        .with_state(Arc::new(state))
}

/// `/json`: answers a `RateLimitRequest` in JSON with a `RateLimitResponse` in JSON. If a rule with a response body
/// refuses the request, that body is the answer. The answer has the headers that gRPC callers are asked to add.
///
/// Status 200 if the request is allowed; 429 if it is refused, also for exceeding a bound; 400 if it is invalid; 503 if
/// the store did not answer and a rule has `on_failure: defer`.
async fn json(
    State(state): State<Arc<HttpState>>,
    TraceExtractor(mut trace): TraceExtractor,
    bound: Option<Extension<RefusalBound>>,
    body: Bytes,
) -> Response {
    let response = match bound {
        None => answer(&state, &mut trace, body).await,
        // Not an error, because values of end users can make a body too large.
        Some(Extension(bound)) => respond(&state.rls.refuse_over_bound(bound, &mut trace)),
    };
    trace.end_http(response.status().as_u16());
    response
}

async fn answer(state: &HttpState, trace: &mut RequestTrace, body: Bytes) -> Response {
    let in_flight = state.in_flight.enter();
    let message = EncodedRequest::Other(body, json::decode);
    match state.rls.answer(message, in_flight.shed, None, trace).await {
        Ok(response) => respond(&response),
        Err(error) => {
            let status = match error {
                AnswerError::Invalid(_) | AnswerError::Undecodable(_) => StatusCode::BAD_REQUEST,
                AnswerError::Panicked(_) => StatusCode::INTERNAL_SERVER_ERROR,
                AnswerError::Deferred(_) => StatusCode::SERVICE_UNAVAILABLE,
            };
            (status, format!("{error}\n")).into_response()
        }
    }
}

fn respond(response: &RateLimitResponse) -> Response {
    let status = match response.overall_code() {
        Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
        Code::Ok => StatusCode::OK,
        Code::Unknown => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let mut http = if response.raw_body.is_empty() {
        match json::encode(response) {
            Ok(body) => (status, [(CONTENT_TYPE, "application/json")], body).into_response(),
            Err(error) => {
                return (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response();
            }
        }
    } else {
        (status, response.raw_body.clone()).into_response()
    };
    for added in &response.response_headers_to_add {
        let name = HeaderName::try_from(&added.key).ok().filter(|name| !OWN_HEADERS.contains(name));
        if let (Some(name), Ok(value)) = (name, HeaderValue::try_from(&added.value)) {
            http.headers_mut().insert(name, value);
        }
    }
    http
}

/// Headers that belong to the connection. A flag may give such a name to a rate limit header.
const OWN_HEADERS: [HeaderName; 5] = [CONNECTION, CONTENT_LENGTH, DATE, TRANSFER_ENCODING, UPGRADE];

/// The trace of a request, according to its headers.
struct TraceExtractor(RequestTrace);

impl FromRequestParts<Arc<HttpState>> for TraceExtractor {
    type Rejection = Infallible;

    async fn from_request_parts(
        parts: &mut Parts,
        state: &Arc<HttpState>,
    ) -> Result<Self, Infallible> {
        let traces = state.traces.as_ref();
        let trace = traces.map(|traces| traces.begin_http(&parts.method, &parts.headers));
        Ok(Self(trace.unwrap_or_default()))
    }
}

/// `/healthcheck`: the health that gRPC reports too, for probes without gRPC. With `?verbose`, also the status of the
/// store.
async fn healthcheck(State(state): State<Arc<HttpState>>, RawQuery(query): RawQuery) -> Response {
    let serving = state.serving.load(Ordering::Relaxed);
    let status = if serving { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
    let verbose = query.is_some_and(|query| query.split('&').any(|it| it.starts_with("verbose")));
    match (verbose, serving) {
        (true, _) => (status, health::describe(serving, &state.store)).into_response(),
        (false, true) => (status, "OK").into_response(),
        (false, false) => status.into_response(),
    }
}

/// `/livez`, for liveness probes: 200 as long as the process responds, also during a drain and without its store.
async fn livez() -> &'static str {
    "OK"
}

/// `/metrics`: the metrics in Prometheus' text format.
async fn metrics(State(state): State<Arc<HttpState>>) -> Response {
    page(state, Page::Metrics, |state| match state.metrics.render() {
        Ok(text) => Rendered::ok(prometheus::TEXT_FORMAT, text),
        Err(error) => Rendered::error(&error),
    })
    .await
}

/// `/stats`: counters under the names of envoyproxy/ratelimit.
async fn stats(State(state): State<Arc<HttpState>>) -> Response {
    page(state, Page::Stats, |it| {
        Rendered::ok(PLAIN, stats::render(&it.metrics, &it.snapshot.load(), &it.store))
    })
    .await
}

/// `/rlconfig`: the limits in force.
async fn rlconfig(State(state): State<Arc<HttpState>>) -> Response {
    page(state, Page::Rlconfig, |it| {
        let snapshot = it.snapshot.load();
        let render = || rlconfig::render(&snapshot.rules).into();
        Rendered::ok(PLAIN, snapshot.rlconfig.get_or_init(render).clone())
    })
    .await
}

async fn page(
    state: Arc<HttpState>,
    page: Page,
    render: impl FnOnce(&HttpState) -> Rendered + Send + 'static,
) -> Response {
    let rendered_state = Arc::clone(&state);
    state.pages.render(page, move || render(&rendered_state)).await
}
