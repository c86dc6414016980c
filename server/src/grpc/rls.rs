//! `ShouldRateLimit`.

use std::sync::Arc;

use sluicegate_core::{InvalidRequest, Store};
use sluicegate_proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse, rate_limit_service_server::RateLimitService,
};
use tonic::{Request, Response, Status};

use super::{decode, encode, in_flight::Shed, status};
use crate::{limiter::Limiter, telemetry::Telemetry};

/// Answers rate limit requests, whichever way they came.
pub(crate) struct Rls<S> {
    limiter: Limiter<S>,
    telemetry: Arc<Telemetry>,
}

impl<S: Store> Rls<S> {
    pub(crate) const fn new(limiter: Limiter<S>, telemetry: Arc<Telemetry>) -> Self {
        Self { limiter, telemetry }
    }

    /// Answers one message; without looking at it, if there are too many to look at.
    pub(crate) async fn answer(
        &self,
        message: &RateLimitRequest,
        shed: bool,
    ) -> Result<RateLimitResponse, InvalidRequest> {
        let request = decode::request(message).inspect_err(|_| self.telemetry.invalid.add(1))?;
        if shed {
            self.telemetry.shed.add(1);
            return Ok(encode::shed(message.descriptors.len()));
        }
        Ok(self.limiter.decide(&request, |verdict| encode::response(&verdict)).await)
    }
}

#[tonic::async_trait]
impl<S: Store> RateLimitService for Rls<S> {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let shed = request.extensions().get::<Shed>().is_some();
        let answer = self.answer(request.get_ref(), shed).await;
        answer.map(Response::new).map_err(status::invalid)
    }
}
