//! The gRPC listener on tonic's generated service and hyper's executor, for comparison with [`super::executor`].
//!
//! The feature `tonic-server` turns it on. It has none of the bounds of connections and calls.

use std::{pin::pin, sync::Arc};

use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use prost::Message as _;
use sluicegate_proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse,
    rate_limit_service_server::{RateLimitService, RateLimitServiceServer},
};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, service::Routes};
use tower::Service as _;

use super::{
    in_flight::InFlight,
    rls::{Encoded, Rls},
    status, timeout,
};
use crate::{listen::Connection, telemetry::Traces};

/// `RateLimitService`, as tonic calls it.
pub(super) struct TonicService {
    rls: Arc<Rls>,
    in_flight: InFlight,
    traces: Option<Arc<Traces>>,
}

impl TonicService {
    pub(super) const fn new(
        rls: Arc<Rls>,
        in_flight: InFlight,
        traces: Option<Arc<Traces>>,
    ) -> Self {
        Self { rls, in_flight, traces }
    }

    /// tonic's server for it, which takes messages of so many bytes.
    pub(super) fn into_server(self, message_max: usize) -> RateLimitServiceServer<Self> {
        RateLimitServiceServer::new(self).max_decoding_message_size(message_max)
    }
}

#[tonic::async_trait]
impl RateLimitService for TonicService {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let headers = request.metadata().as_ref();
        let within = timeout::left(headers);
        let traces = self.traces.as_ref();
        let mut traced = traces.map(|traces| traces.of_grpc(headers)).unwrap_or_default();
        let entered = self.in_flight.enter();
        // Encoded again, because bounds are checked on what is not decoded yet.
        let message = Encoded::Protobuf(request.into_inner().encode_to_vec().into());
        let answer = self.rls.answer(message, entered.shed, within, &mut traced).await;
        let answer = answer.map(Response::new).map_err(|error| status::of(&error));
        traced.end_grpc(|| answer.as_ref().map_or_else(Status::code, |_| tonic::Code::Ok));
        answer
    }
}

/// Serves a connection to its end. After `stop` it takes no more calls, and ends after the last.
pub(super) async fn serve(connection: Connection, routes: Routes, stop: CancellationToken) {
    let handle = connection.handle();
    let service = service_fn(move |request: http::Request<Incoming>| routes.clone().call(request));
    let served = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .serve_connection(TokioIo::new(connection), service);
    handle.mark_used();
    let mut served = pin!(served);
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = stop.cancelled() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection failed");
    }
}
