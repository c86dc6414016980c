//! Rate limit headers for clients, a file for each format.

mod matched;
mod ratelimit_draft_11;
mod x_ratelimit_draft_03;

use std::time::Duration;

use sluicegate_core::{Code, plan::PlannedDescriptor, store::RefusalScope};
use sluicegate_proto::envoy::config::core::v3::HeaderValue;
use thiserror::Error;

use self::{matched::header, x_ratelimit_draft_03::HeaderNames};
use super::seconds::rounded_up;
use crate::{
    decision::DecisionRecord,
    settings::{ResponseHeaders, ResponseSettings},
};

/// Formats of rate limit headers.
#[derive(Clone, Debug)]
pub(crate) enum Headers {
    /// No headers.
    Off,
    /// The format of draft 03 of the IETF and of Envoy.
    XRatelimitDraft03(Box<HeaderNames>),
    /// The format of draft 11 of the IETF.
    RatelimitDraft11,
}

/// A flag sets the name of a header that the chosen format does not have.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("{0} goes with --response-headers x-ratelimit-draft-03 only")]
pub struct HeadersError(&'static str);

impl Headers {
    /// The headers that the settings choose.
    pub(crate) fn new(settings: &ResponseSettings) -> Result<Self, HeadersError> {
        let configured = [
            ("--limit-header", &settings.limit_header),
            ("--remaining-header", &settings.remaining_header),
            ("--reset-header", &settings.reset_header),
        ];
        let format = match settings.response_headers {
            ResponseHeaders::Off => Self::Off,
            ResponseHeaders::RatelimitDraft11 => Self::RatelimitDraft11,
            ResponseHeaders::XRatelimitDraft03 => {
                let [limit, remaining, reset] = configured.map(|(_, name)| name.as_ref());
                let names = HeaderNames::new(limit, remaining, reset);
                return Ok(Self::XRatelimitDraft03(Box::new(names)));
            }
        };
        match configured.into_iter().find(|(_, name)| name.is_some()) {
            Some((flag, _)) => Err(HeadersError(flag)),
            None => Ok(format),
        }
    }

    /// The headers of one response.
    pub(super) fn build(&self, record: &DecisionRecord<'_, '_>) -> Vec<HeaderValue> {
        let mut headers = match self {
            Self::Off => return Vec::new(),
            Self::XRatelimitDraft03(names) => x_ratelimit_draft_03::headers(names, record),
            Self::RatelimitDraft11 => ratelimit_draft_11::headers(record),
        };
        if let Some(wait) = retry_after(record) {
            headers.push(header("retry-after", rounded_up(wait).to_string()));
        }
        headers
    }
}

/// Time until a refused request would pass, if no other requests come meanwhile: the longest wait of the descriptors
/// that refuse it by themselves. If all its quota descriptors refuse, at least the shortest wait of these. `None` if it
/// never passes.
fn retry_after(record: &DecisionRecord<'_, '_>) -> Option<Duration> {
    if record.verdict.code == Code::Ok {
        return None;
    }
    let mut longest = Duration::ZERO;
    let mut quota_waits = Vec::new();
    let mut needs_quota = !record.plan.quota_never_refuses;
    for (planned, status) in record.plan.descriptors.iter().zip(&record.verdict.statuses) {
        let PlannedDescriptor::Limited { refusal_scope, .. } = planned else { continue };
        let decision = status.check_position.and_then(|check| record.decisions.get(check));
        let wait = decision.and_then(|decision| decision.retry_after);
        match (refusal_scope, status.code) {
            (RefusalScope::Request, Code::OverLimit) => longest = longest.max(wait?),
            (RefusalScope::Quota, Code::OverLimit) => quota_waits.push(wait),
            (RefusalScope::Quota, Code::Ok) => needs_quota = false,
            (RefusalScope::Request | RefusalScope::None, _) => {}
        }
    }
    if !needs_quota || quota_waits.is_empty() {
        return Some(longest);
    }
    let shortest_quota_wait = quota_waits.into_iter().flatten().min()?;
    Some(longest.max(shortest_quota_wait))
}
