//! `ShouldRateLimit`.

use std::{sync::Arc, time::Duration};

use sluicegate_core::InvalidRequest;
use sluicegate_proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse, rate_limit_service_server::RateLimitService,
};
use sluicegate_store::Deferred;
use thiserror::Error;
use tonic::{Request, Response, Status};

use super::{decode, in_flight::Shed, lent::Lent, response, response::Responder, status, timeout};
use crate::{
    limiter::{Answered, Limiter},
    telemetry::{Telemetry, Traced},
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
        traced: &mut Traced,
    ) -> Result<RateLimitResponse, AnswerError> {
        let answer = self.decide(message, shed, within, traced).await;
        if let Err(error) = &answer {
            traced.note(|span| span.fails(error));
        }
        answer
    }

    async fn decide(
        &self,
        message: &RateLimitRequest,
        shed: bool,
        within: Option<Duration>,
        traced: &mut Traced,
    ) -> Result<RateLimitResponse, AnswerError> {
        let request = decode::request(message).inspect_err(|_| self.telemetry.invalid.add(1))?;
        if shed {
            let passes = self.limiter.shed(&request, traced);
            return Ok(response::shed(message.descriptors.len(), passes));
        }
        let respond = |answered: Answered<'_, '_>| self.responder.respond(message, &answered);
        Ok(self.limiter.decide(&request, within, traced, respond).await?)
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
        let lent = request.extensions().get::<Lent>().cloned();
        let mut traced = lent.as_ref().map(Lent::take).unwrap_or_default();
        let answer = self.answer(request.get_ref(), shed, within, &mut traced).await;
        if let Some(lent) = lent {
            lent.put(traced);
        }
        answer.map(Response::new).map_err(status::of)
    }
}
