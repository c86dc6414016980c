//! `ShouldRateLimit`.

use std::{sync::Arc, time::Duration};

use sluicegate_core::InvalidRequest;
use sluicegate_proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse, rate_limit_service_server::RateLimitService,
};
use sluicegate_store::Deferred;
use thiserror::Error;
use tonic::{Request, Response, Status};

use super::{decode, encode, in_flight::Shed, status, timeout};
use crate::{limiter::Limiter, telemetry::Telemetry};

/// Answers rate limit requests, whichever way they came.
pub(crate) struct Rls {
    limiter: Limiter,
    telemetry: Arc<Telemetry>,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, Error)]
pub(crate) enum AnswerError {
    /// The request makes no sense.
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
    /// The caller's own failure mode is to decide.
    #[error(transparent)]
    Deferred(#[from] Deferred),
}

impl Rls {
    pub(crate) const fn new(limiter: Limiter, telemetry: Arc<Telemetry>) -> Self {
        Self { limiter, telemetry }
    }

    /// Answers one message; without looking at it, if there are too many to look at.
    pub(crate) async fn answer(
        &self,
        message: &RateLimitRequest,
        shed: bool,
        within: Option<Duration>,
    ) -> Result<RateLimitResponse, AnswerError> {
        let request = decode::request(message).inspect_err(|_| self.telemetry.invalid.add(1))?;
        if shed {
            self.telemetry.shed.add(1);
            return Ok(encode::shed(message.descriptors.len()));
        }
        Ok(self.limiter.decide(&request, within, |verdict| encode::response(&verdict)).await?)
    }
}

#[tonic::async_trait]
impl RateLimitService for Rls {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let shed = request.extensions().get::<Shed>().is_some();
        let within = timeout::of_caller(request.metadata());
        let answer = self.answer(request.get_ref(), shed, within).await;
        answer.map(Response::new).map_err(status::of)
    }
}
