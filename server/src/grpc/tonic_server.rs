//! The gRPC listener on tonic's generated service and hyper's executor, for comparison with [`super::executor`].
//!
//! The feature `tonic-server` enables it. It has none of the bounds on connections and calls.

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
    rls::{EncodedRequest, Rls},
    status::status,
    timeout::decision_timeout,
};
use crate::{listen::Connection, telemetry::Traces};

/// The implementation of tonic's trait `RateLimitService`.
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

    /// tonic's server for the service. `message_max`: the most bytes of a message.
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
        let within = decision_timeout(headers);
        let traces = self.traces.as_ref();
        let mut trace = traces.map(|traces| traces.begin_grpc(headers)).unwrap_or_default();
        let in_flight = self.in_flight.enter();
        // Encoded again, because bounds are checked in encoded messages.
        let message = EncodedRequest::Protobuf(request.into_inner().encode_to_vec().into());
        let answer = self.rls.answer(message, in_flight.shed, within, &mut trace).await;
        let answer = answer.map(Response::new).map_err(|error| status(&error));
        trace.end_grpc(|| answer.as_ref().map_or_else(Status::code, |_| tonic::Code::Ok));
        answer
    }
}

/// Serves a connection to its end. After `stop` it accepts no more calls, and ends after the last one.
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
