//! `ShouldRateLimit`.

use std::{sync::Arc, time::Duration};

use sluicegate_core::InvalidRequest;
use sluicegate_proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse, rate_limit_service_server::RateLimitService,
};
use sluicegate_store::Deferred;
use thiserror::Error;
use tonic::{Request, Response, Status};

use super::{decode, in_flight::Shed, response, response::Responder, status, timeout};
use crate::{
    limiter::{Answered, Limiter},
    telemetry::Telemetry,
};

/// Answers rate limit requests, whichever way they came.
pub(crate) struct Rls {
    limiter: Limiter,
    responder: Responder,
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
    pub(crate) const fn new(
        limiter: Limiter,
        responder: Responder,
        telemetry: Arc<Telemetry>,
    ) -> Self {
        Self { limiter, responder, telemetry }
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
            let shadow_mode = self.limiter.shadow_mode();
            if shadow_mode {
                self.telemetry.shadowed.add(1);
            }
            return Ok(response::shed(message.descriptors.len(), shadow_mode));
        }
        let respond = |answered: Answered<'_, '_>| self.responder.respond(message, &answered);
        Ok(self.limiter.decide(&request, within, respond).await?)
    }
}

#[tonic::async_trait]
impl RateLimitService for Rls {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let shed = request.extensions().get::<Shed>().is_some();
        let within = timeout::left(request.metadata().as_ref());
        let answer = self.answer(request.get_ref(), shed, within).await;
        answer.map(Response::new).map_err(status::of)
    }
}
