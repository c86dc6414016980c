//! The HTTP listener: `/json`, `/healthcheck`, `/metrics`, `/rlconfig`.

mod json;
mod rlconfig;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use arc_swap::ArcSwap;
use axum::{
    Router,
    body::Bytes,
    extract::{DefaultBodyLimit, State},
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::{any, get},
};
use sluicegate_core::Store;
use sluicegate_proto::envoy::service::ratelimit::v3::rate_limit_response::Code;

use crate::{
    grpc::{InFlight, Rls},
    limits::Snapshot,
    telemetry::Telemetry,
};

/// What the handlers need.
pub(crate) struct Shared<S> {
    pub(crate) rls: Arc<Rls<S>>,
    pub(crate) in_flight: InFlight,
    pub(crate) snapshot: Arc<ArcSwap<Snapshot>>,
    pub(crate) telemetry: Arc<Telemetry>,
    pub(crate) serving: Arc<AtomicBool>,
}

/// The routes. A body of more than `body_max` bytes is refused.
pub(crate) fn router<S: Store>(shared: Shared<S>, body_max: usize) -> Router {
    Router::new()
        // envoyproxy/ratelimit takes any method.
        .route("/json", any(json::<S>))
        .route("/healthcheck", get(healthcheck::<S>))
        .route("/metrics", get(metrics::<S>))
        .route("/rlconfig", get(rlconfig::<S>))
        .layer(DefaultBodyLimit::max(body_max))
        .with_state(Arc::new(shared))
}

/// A `RateLimitRequest` as JSON in, a `RateLimitResponse` as JSON out: 200 if the request may pass, 429 if
/// not, 400 if it makes no sense.
async fn json<S: Store>(State(shared): State<Arc<Shared<S>>>, body: Bytes) -> Response {
    let entered = shared.in_flight.enter();
    let message = match json::decode(&body) {
        Ok(message) => message,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    };
    let response = match shared.rls.answer(&message, entered.shed).await {
        Ok(response) => response,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    };
    let status = match response.overall_code() {
        Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
        Code::Ok | Code::Unknown => StatusCode::OK,
    };
    match json::encode(&response) {
        Ok(body) => (status, [(CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

/// Whether gRPC health says SERVING, for probes that cannot speak gRPC.
async fn healthcheck<S: Store>(State(shared): State<Arc<Shared<S>>>) -> Response {
    if shared.serving.load(Ordering::Relaxed) {
        (StatusCode::OK, "OK").into_response()
    } else {
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}

/// The metrics, in Prometheus' text format.
async fn metrics<S: Store>(State(shared): State<Arc<Shared<S>>>) -> Response {
    match shared.telemetry.render() {
        Ok(text) => ([(CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

/// The limits in force.
async fn rlconfig<S: Store>(State(shared): State<Arc<Shared<S>>>) -> String {
    rlconfig::render(&shared.snapshot.load().rules)
}
