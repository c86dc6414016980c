//! Rate limit headers for clients, a file for each format.

mod met;
mod ratelimit_draft_11;
mod x_ratelimit_draft_03;

use std::time::Duration;

use sluicegate_core::{Code, plan::PlannedDescriptor, store::RefusalScope};
use sluicegate_proto::envoy::config::core::v3::HeaderValue;
use thiserror::Error;

use self::{met::header, x_ratelimit_draft_03::Names};
use super::seconds::rounded_up;
use crate::{
    decision::DecisionRecord,
    settings::{ResponseHeaders, ResponseSettings},
};

/// Formats of rate limit headers.
#[derive(Clone, Debug)]
pub(crate) enum Headers {
    /// Nothing.
    Off,
    /// As draft 03 of the IETF's headers has it, and Envoy.
    XRatelimitDraft03(Box<Names>),
    /// As draft 11 has it.
    RatelimitDraft11,
}

/// Names of headers that no header is called by.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("{0} goes with --response-headers x-ratelimit-draft-03 only")]
pub struct HeadersError(&'static str);

impl Headers {
    /// The headers that the settings ask for.
    pub(crate) fn new(settings: &ResponseSettings) -> Result<Self, HeadersError> {
        let given = [
            ("--limit-header", &settings.limit_header),
            ("--remaining-header", &settings.remaining_header),
            ("--reset-header", &settings.reset_header),
        ];
        let format = match settings.response_headers {
            ResponseHeaders::Off => Self::Off,
            ResponseHeaders::RatelimitDraft11 => Self::RatelimitDraft11,
            ResponseHeaders::XRatelimitDraft03 => {
                let [limit, remaining, reset] = given.map(|(_, name)| name.as_ref());
                return Ok(Self::XRatelimitDraft03(Box::new(Names::new(limit, remaining, reset))));
            }
        };
        match given.into_iter().find(|(_, name)| name.is_some()) {
            Some((flag, _)) => Err(HeadersError(flag)),
            None => Ok(format),
        }
    }

    /// The headers of one answer.
    pub(super) fn of(&self, decided: &DecisionRecord<'_, '_>) -> Vec<HeaderValue> {
        let mut headers = match self {
            Self::Off => return Vec::new(),
            Self::XRatelimitDraft03(names) => x_ratelimit_draft_03::headers(names, decided),
            Self::RatelimitDraft11 => ratelimit_draft_11::headers(decided),
        };
        if let Some(wait) = retry_after(decided) {
            headers.push(header("retry-after", rounded_up(wait).to_string()));
        }
        headers
    }
}

/// Time until a refused request would pass without other requests: when all descriptors that refuse it alone have
/// room, and one of its quota descriptors if it needs one. `None` if it never will.
fn retry_after(decided: &DecisionRecord<'_, '_>) -> Option<Duration> {
    if decided.verdict.code == Code::Ok {
        return None;
    }
    let mut alone = Duration::ZERO;
    let mut quotas = Vec::new();
    let mut needs_quota = !decided.plan.has_quota_left;
    for (planned, status) in decided.plan.descriptors.iter().zip(&decided.verdict.statuses) {
        let PlannedDescriptor::Limited { refusal_scope, .. } = planned else { continue };
        let decision = status.check.and_then(|check| decided.decisions.get(check));
        let wait = decision.and_then(|decision| decision.retry_after);
        match (refusal_scope, status.code) {
            (RefusalScope::Request, Code::OverLimit) => alone = alone.max(wait?),
            (RefusalScope::Quota, Code::OverLimit) => quotas.push(wait),
            (RefusalScope::Quota, Code::Ok) => needs_quota = false,
            (RefusalScope::Request | RefusalScope::None, _) => {}
        }
    }
    if !needs_quota || quotas.is_empty() {
        return Some(alone);
    }
    let first = quotas.into_iter().flatten().min()?;
    Some(alone.max(first))
}
