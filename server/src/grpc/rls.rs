//! `ShouldRateLimit`.

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
    decode::{self, Scanned},
    response,
    response::Responder,
};
use crate::{
    decision::DecisionRecord,
    limiter::{Limiter, Undecided},
    offload::Offload,
    telemetry::{Bound, RequestTrace, Telemetry},
};

/// Messages of at least so many bytes are decoded and decided on threads of their own.
const LARGE_MIN: usize = 64 * 1024;

/// So are messages in other formats, whose fields are not counted before.
const LARGE_OTHER_MIN: usize = 8 * 1024;

/// So are messages with more fields.
const SMALL_FIELDS_MAX: usize = 2_048;

/// So are messages whose values may have to be searched for more than so many bytes, pattern by pattern.
const SMALL_SEARCHED_MAX: usize = 1 << 20;

/// Messages of fewer bytes never are, because requests of this size are too many for that.
const SMALL_MIN: usize = 16 * 1024;

/// Large requests that are decided at once.
const LARGE_AT_ONCE: usize = 4;

/// Large requests that are decided or wait for that.
pub(crate) const LARGE_MAX: usize = 68;

/// Answers rate limit requests, whichever way they came.
pub(crate) struct Rls {
    answering: Arc<Answering>,
    large: Offload,
}

/// What answering needs, on any thread.
struct Answering {
    limiter: Limiter,
    responder: Responder,
    telemetry: Arc<Telemetry>,
    bytes_max: usize,
}

/// A message before it is decoded.
#[derive(Clone, Debug)]
pub(crate) enum Encoded {
    /// As gRPC has it.
    Protobuf(Bytes),
    /// In another format, with what decodes it.
    Other(Bytes, fn(&[u8]) -> Result<RateLimitRequest, DecodeError>),
}

/// Why there is no answer.
#[derive(Debug, Error)]
pub(crate) enum AnswerError {
    /// The message cannot be decoded.
    #[error("{0}")]
    Undecodable(String),
    /// The request makes no sense.
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
    /// The caller's own failure mode is to decide.
    #[error(transparent)]
    Deferred(#[from] Deferred),
}

/// Why a message is not decoded.
#[derive(Clone, Debug, Error)]
pub(crate) enum DecodeError {
    /// It exceeds a bound.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// It is no message, for this reason.
    #[error("{0}")]
    Undecodable(String),
}

/// Where a message is decoded and decided.
enum Size {
    Small,
    Large,
    TooLarge(TooLarge),
}

impl Encoded {
    /// Looks at the message only as far as takes no time worth mentioning. `searches_max`: how often its values may be
    /// searched.
    fn size(&self, searches_max: impl FnOnce() -> usize) -> Size {
        let (length, large_min) = match self {
            Self::Protobuf(message) => (message.len(), LARGE_MIN),
            Self::Other(message, _) => (message.len(), LARGE_OTHER_MIN),
        };
        if length >= large_min
            || (length >= SMALL_MIN && length.saturating_mul(searches_max()) > SMALL_SEARCHED_MAX)
        {
            return Size::Large;
        }
        match self {
            Self::Protobuf(message) => match decode::scan(message, SMALL_FIELDS_MAX) {
                Scanned::Within => Size::Small,
                Scanned::ManyFields => Size::Large,
                Scanned::TooLarge(bound) => Size::TooLarge(bound),
            },
            Self::Other(..) => Size::Small,
        }
    }

    /// The message. What is beyond a bound is not decoded.
    fn decode(self, size: &Size) -> Result<RateLimitRequest, DecodeError> {
        match self {
            Self::Protobuf(message) => {
                if let Size::Large = size
                    && let Scanned::TooLarge(bound) = decode::scan(&message, usize::MAX)
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
        telemetry: Arc<Telemetry>,
        bytes_max: usize,
    ) -> Self {
        let answering = Arc::new(Answering { limiter, responder, telemetry, bytes_max });
        Self { answering, large: Offload::new(LARGE_AT_ONCE, LARGE_MAX) }
    }

    /// Answers one message; without deciding it, if there are too many to decide. `within` is the time that the caller gives.
    pub(crate) async fn answer(
        &self,
        message: Encoded,
        shed: bool,
        within: Option<Duration>,
        traced: &mut RequestTrace,
    ) -> Result<RateLimitResponse, AnswerError> {
        let answering = &self.answering;
        let answer = match message.size(|| answering.limiter.searches_max()) {
            Size::TooLarge(bound) => Ok(answering.deny(bound.into(), None, 0, traced)),
            size @ Size::Small => answering.decode(message, &size, shed, within, traced).await,
            Size::Large if shed => Ok(answering.refuse(None, None, 0, traced)),
            size @ Size::Large => Box::pin(self.answer_large(message, size, within, traced)).await,
        };
        if let Err(error) = &answer {
            let is_deferred = matches!(error, AnswerError::Deferred(_));
            traced.note(|span| span.fails(error, is_deferred));
        }
        answer
    }

    /// Denies a message that exceeds a bound and was not decoded.
    pub(crate) fn deny(&self, bound: Bound, traced: &mut RequestTrace) -> RateLimitResponse {
        self.answering.deny(bound, None, 0, traced)
    }

    /// Answers a large message on a thread that does nothing else meanwhile. Where too many wait for one, or the caller
    /// does not wait so long, it is denied.
    async fn answer_large(
        &self,
        message: Encoded,
        size: Size,
        within: Option<Duration>,
        traced: &mut RequestTrace,
    ) -> Result<RateLimitResponse, AnswerError> {
        let arrived = Instant::now();
        let deny = |traced: &mut RequestTrace| Ok(self.deny(Bound::LargeRequests, traced));
        let Some(admitted) = self.large.admit() else { return deny(traced) };
        let turn = tokio::time::timeout(within.unwrap_or(Duration::MAX), admitted.turn());
        let Ok(permit) = turn.await else { return deny(traced) };
        let within = within.map(|within| within.saturating_sub(arrived.elapsed()));
        let (answering, runtime) = (Arc::clone(&self.answering), Handle::current());
        let mut lent = std::mem::take(traced);
        let answering = permit.run(move || {
            let answer = answering.decode(message, &size, false, within, &mut lent);
            (runtime.block_on(answer), lent)
        });
        match answering.await {
            Ok((answer, lent)) => {
                *traced = lent;
                answer
            }
            Err(panicked) => Err(AnswerError::Undecodable(panicked.to_string())),
        }
    }
}

impl Answering {
    async fn decode(
        &self,
        message: Encoded,
        size: &Size,
        shed: bool,
        within: Option<Duration>,
        traced: &mut RequestTrace,
    ) -> Result<RateLimitResponse, AnswerError> {
        match message.decode(size) {
            Ok(message) => self.decide(&message, shed, within, traced).await,
            Err(DecodeError::TooLarge(bound)) => Ok(self.deny(bound.into(), None, 0, traced)),
            Err(DecodeError::Undecodable(error)) => Err(AnswerError::Undecodable(error)),
        }
    }

    async fn decide(
        &self,
        message: &RateLimitRequest,
        shed: bool,
        within: Option<Duration>,
        traced: &mut RequestTrace,
    ) -> Result<RateLimitResponse, AnswerError> {
        let descriptors = message.descriptors.len();
        let domain = Some(message.domain.as_str());
        let request = match decode::request(message, self.bytes_max) {
            Ok(request) => request,
            Err(RequestError::Invalid(error)) => {
                self.telemetry.invalid.add(1);
                return Err(error.into());
            }
            Err(RequestError::TooLarge(bound)) => {
                // So many statuses would be an answer that is large itself.
                let descriptors = if bound == TooLarge::Descriptors { 0 } else { descriptors };
                return Ok(self.deny(bound.into(), domain, descriptors, traced));
            }
        };
        if shed {
            return Ok(self.refuse(None, domain, descriptors, traced));
        }
        let respond = |decided: &DecisionRecord<'_, '_>| self.responder.respond(message, decided);
        match self.limiter.decide(&request, within, traced, respond).await {
            Ok(response) => Ok(response),
            Err(Undecided::Deferred(error)) => Err(error.into()),
            Err(Undecided::TooCostly) => {
                Ok(self.deny(Bound::SearchedBytes, domain, descriptors, traced))
            }
        }
    }

    /// The answer to a request that exceeds a bound: OVER_LIMIT, because Envoy lets a request pass on an error.
    fn deny(
        &self,
        bound: Bound,
        domain: Option<&str>,
        descriptors: usize,
        traced: &mut RequestTrace,
    ) -> RateLimitResponse {
        self.refuse(Some(bound), domain, descriptors, traced)
    }

    fn refuse(
        &self,
        bound: Option<Bound>,
        domain: Option<&str>,
        descriptors: usize,
        traced: &mut RequestTrace,
    ) -> RateLimitResponse {
        let passes = self.limiter.refuse(bound, domain, descriptors, traced);
        response::refused(descriptors, passes)
    }
}
