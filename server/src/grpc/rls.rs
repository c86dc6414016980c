//! The rate limit service: answers requests of gRPC and HTTP.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use prost::Message as _;
use sluicegate_core::{InvalidRequest, RequestError, TooLarge};
use sluicegate_proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use sluicegate_store::Deferred;
use thiserror::Error;
use tokio::runtime::Handle;

use super::{
    decode::{self, ScanResult},
    response,
    response::Responder,
};
use crate::{
    decision::DecisionRecord,
    limiter::{Limiter, Undecided},
    offload::Offload,
    telemetry::{Metrics, RefusalBound, RefusalReason, RequestTrace},
};

/// A protobuf message of at least this many bytes is large: it is decoded and decided on a separate thread.
const LARGE_MIN: usize = 64 * 1024;

/// A message in another format, which cannot be scanned, is large from this many bytes on.
const LARGE_OTHER_MIN: usize = 8 * 1024;

/// A message with more fields is large.
const SMALL_FIELDS_MAX: usize = 2_048;

/// A message is large if matching may search more than this many bytes, summed over the patterns.
const SMALL_SEARCHED_MAX: usize = 1 << 20;

/// For a message with fewer bytes, the cost of patterns is not considered: requests of this size are too frequent for
/// separate threads.
const PATTERNS_IGNORED_BELOW: usize = 16 * 1024;

/// The most large requests that are decided concurrently.
const LARGE_RUNNING_MAX: usize = 4;

/// The most large requests that are decided or wait for a thread.
pub(crate) const LARGE_REQUESTS_MAX: usize = 68;

/// Answers rate limit requests of all listeners.
pub(crate) struct Rls {
    handler: Arc<RequestHandler>,
    large: Offload,
}

/// Answers requests on any thread.
struct RequestHandler {
    limiter: Limiter,
    responder: Responder,
    metrics: Arc<Metrics>,
    bytes_max: usize,
}

/// A request as its caller encoded it.
#[derive(Clone, Debug)]
pub(crate) enum EncodedRequest {
    /// A protobuf message.
    Protobuf(Bytes),
    /// Another format, with the function that decodes it.
    Other(Bytes, fn(&[u8]) -> Result<RateLimitRequest, DecodeError>),
}

/// Why a request gets an error instead of a `RateLimitResponse`.
#[derive(Debug, Error)]
pub(crate) enum AnswerError {
    /// The message cannot be decoded.
    #[error("{0}")]
    Undecodable(String),
    /// The decision of a large request panicked.
    #[error("{0}")]
    Panicked(String),
    /// The request is invalid.
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
    /// The store did not answer, and a rule defers to the caller's failure mode.
    #[error(transparent)]
    Deferred(#[from] Deferred),
}

/// Why a message is not decoded.
#[derive(Clone, Debug, Error)]
pub(crate) enum DecodeError {
    /// The message exceeds a bound.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// The message cannot be decoded.
    #[error("{0}")]
    Undecodable(String),
}

/// How a message is handled.
enum Handling {
    /// On the thread that received it.
    Inline,
    /// On a separate thread, because it is large.
    Offloaded,
    /// It is refused, because it exceeds a bound.
    Refused(TooLarge),
}

impl EncodedRequest {
    /// Classifies the message, in negligible time. `substring_patterns_max` returns the most patterns that search one
    /// value.
    fn handling(&self, substring_patterns_max: impl FnOnce() -> usize) -> Handling {
        let (length, large_min) = match self {
            Self::Protobuf(message) => (message.len(), LARGE_MIN),
            Self::Other(message, _) => (message.len(), LARGE_OTHER_MIN),
        };
        if length >= large_min
            || (length >= PATTERNS_IGNORED_BELOW
                && length.saturating_mul(substring_patterns_max()) > SMALL_SEARCHED_MAX)
        {
            return Handling::Offloaded;
        }
        match self {
            Self::Protobuf(message) => match decode::scan(message, SMALL_FIELDS_MAX) {
                ScanResult::Within => Handling::Inline,
                ScanResult::ManyFields => Handling::Offloaded,
                ScanResult::TooLarge(bound) => Handling::Refused(bound),
            },
            Self::Other(..) => Handling::Inline,
        }
    }

    /// Decodes the message, unless it exceeds a bound.
    fn decode(self, handling: &Handling) -> Result<RateLimitRequest, DecodeError> {
        match self {
            Self::Protobuf(message) => {
                if let Handling::Offloaded = handling
                    && let ScanResult::TooLarge(bound) = decode::scan(&message, usize::MAX)
                {
                    return Err(DecodeError::TooLarge(bound));
                }
                let decoded = RateLimitRequest::decode(message);
                decoded.map_err(|error| DecodeError::Undecodable(error.to_string()))
            }
            Self::Other(message, decode) => decode(&message),
        }
    }
}

impl Rls {
    pub(crate) fn new(
        limiter: Limiter,
        responder: Responder,
        metrics: Arc<Metrics>,
        bytes_max: usize,
    ) -> Self {
        let handler = Arc::new(RequestHandler { limiter, responder, metrics, bytes_max });
        Self { handler, large: Offload::new(LARGE_RUNNING_MAX, LARGE_REQUESTS_MAX) }
    }

    /// Answers one request. If it is `shed`, it is refused without a decision. `within` is the time until the caller's
    /// deadline.
    pub(crate) async fn answer(
        &self,
        message: EncodedRequest,
        shed: bool,
        within: Option<Duration>,
        trace: &mut RequestTrace,
    ) -> Result<RateLimitResponse, AnswerError> {
        let handler = &self.handler;
        let answer = match message.handling(|| handler.limiter.substring_patterns_max()) {
            Handling::Refused(bound) => Ok(handler.refuse_over_bound(bound.into(), None, 0, trace)),
            handling @ Handling::Inline => {
                handler.answer(message, &handling, shed, within, trace).await
            }
            Handling::Offloaded if shed => Ok(handler.refuse(RefusalReason::Shed, None, 0, trace)),
            handling @ Handling::Offloaded => {
                Box::pin(self.answer_offloaded(message, handling, within, trace)).await
            }
        };
        if let Err(error) = &answer {
            let is_deferred = matches!(error, AnswerError::Deferred(_));
            trace.with_span(|span| span.set_error(error, is_deferred));
        }
        answer
    }

    /// Refuses a request that exceeds a bound and was not decoded.
    pub(crate) fn refuse_over_bound(
        &self,
        bound: RefusalBound,
        trace: &mut RequestTrace,
    ) -> RateLimitResponse {
        self.handler.refuse_over_bound(bound, None, 0, trace)
    }

    /// Answers a large request on a separate thread. The request is refused if too many wait for such a thread, or none
    /// is free before the caller's deadline.
    async fn answer_offloaded(
        &self,
        message: EncodedRequest,
        handling: Handling,
        within: Option<Duration>,
        trace: &mut RequestTrace,
    ) -> Result<RateLimitResponse, AnswerError> {
        let arrived = Instant::now();
        let refuse = |trace: &mut RequestTrace| {
            Ok(self.refuse_over_bound(RefusalBound::LargeRequests, trace))
        };
        let Some(ticket) = self.large.admit() else { return refuse(trace) };
        let permit = tokio::time::timeout(within.unwrap_or(Duration::MAX), ticket.wait());
        let Ok(permit) = permit.await else { return refuse(trace) };
        let within = within.map(|within| within.saturating_sub(arrived.elapsed()));
        let (handler, runtime) = (Arc::clone(&self.handler), Handle::current());
        let mut moved_trace = std::mem::take(trace);
        let job = permit.run(move || {
            let answer = handler.answer(message, &handling, false, within, &mut moved_trace);
            (runtime.block_on(answer), moved_trace)
        });
        match job.await {
            Ok((answer, moved_trace)) => {
                *trace = moved_trace;
                answer
            }
            Err(error) => Err(AnswerError::Panicked(error.to_string())),
        }
    }
}

impl RequestHandler {
    /// Decodes and decides a request.
    async fn answer(
        &self,
        message: EncodedRequest,
        handling: &Handling,
        shed: bool,
        within: Option<Duration>,
        trace: &mut RequestTrace,
    ) -> Result<RateLimitResponse, AnswerError> {
        match message.decode(handling) {
            Ok(message) => self.decide(&message, shed, within, trace).await,
            Err(DecodeError::TooLarge(bound)) => {
                Ok(self.refuse_over_bound(bound.into(), None, 0, trace))
            }
            Err(DecodeError::Undecodable(error)) => Err(AnswerError::Undecodable(error)),
        }
    }

    async fn decide(
        &self,
        message: &RateLimitRequest,
        shed: bool,
        within: Option<Duration>,
        trace: &mut RequestTrace,
    ) -> Result<RateLimitResponse, AnswerError> {
        let descriptors = message.descriptors.len();
        let domain = Some(message.domain.as_str());
        let request = match decode::request(message, self.bytes_max) {
            Ok(request) => request,
            Err(RequestError::Invalid(error)) => {
                self.metrics.invalid.add(1);
                return Err(error.into());
            }
            Err(RequestError::TooLarge(bound)) => {
                // A status for each of so many descriptors would make the response itself too large.
                let descriptors = if bound == TooLarge::Descriptors { 0 } else { descriptors };
                return Ok(self.refuse_over_bound(bound.into(), domain, descriptors, trace));
            }
        };
        if shed {
            return Ok(self.refuse(RefusalReason::Shed, domain, descriptors, trace));
        }
        let respond = |record: &DecisionRecord<'_, '_>| self.responder.respond(message, record);
        match self.limiter.decide(&request, within, trace, respond).await {
            Ok(response) => Ok(response),
            Err(Undecided::Deferred(error)) => Err(error.into()),
            Err(Undecided::TooCostly) => {
                Ok(self.refuse_over_bound(RefusalBound::SearchedBytes, domain, descriptors, trace))
            }
        }
    }

    /// Refuses a request that exceeds a bound.
    fn refuse_over_bound(
        &self,
        bound: RefusalBound,
        domain: Option<&str>,
        descriptors: usize,
        trace: &mut RequestTrace,
    ) -> RateLimitResponse {
        self.refuse(RefusalReason::OverBound(bound), domain, descriptors, trace)
    }

    /// Refuses a request without a decision. The answer is OVER_LIMIT, because Envoy lets a request pass on an error.
    fn refuse(
        &self,
        reason: RefusalReason,
        domain: Option<&str>,
        descriptors: usize,
        trace: &mut RequestTrace,
    ) -> RateLimitResponse {
        let refusal = self.limiter.record_refusal(reason, domain, descriptors, trace);
        response::undecided_refusal(descriptors, domain, &refusal)
    }
}
