//! Headers that tell clients about their limits: a file for each format.

mod ratelimit_draft_11;
mod x_ratelimit_draft_03;

use std::time::Duration;

use http::HeaderName;
use sluicegate_core::{Code, CurrentLimit, Decision, Status, plan::Planned, store::Veto};
use sluicegate_proto::envoy::config::core::v3::HeaderValue;
use thiserror::Error;

use super::seconds;
use crate::{
    limiter::Answered,
    settings::{ResponseHeaders, ResponseSettings},
};
use x_ratelimit_draft_03::Names;

/// What clients are told about their limits.
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
    pub(super) fn of(&self, answered: &Answered<'_, '_>) -> Vec<HeaderValue> {
        let mut headers = match self {
            Self::Off => return Vec::new(),
            Self::XRatelimitDraft03(names) => x_ratelimit_draft_03::headers(names, answered),
            Self::RatelimitDraft11 => ratelimit_draft_11::headers(answered),
        };
        if let Some(wait) = retry_after(answered) {
            headers.push(header("retry-after", seconds(wait).to_string()));
        }
        headers
    }
}

fn header(name: impl Into<String>, value: String) -> HeaderValue {
    HeaderValue { key: name.into(), value, ..HeaderValue::default() }
}

/// One limit that was asked.
struct Asked<'a, 'r> {
    limit: CurrentLimit<'r>,
    window: u32,
    decision: &'a Decision,
}

impl Asked<'_, '_> {
    /// Where refused: time until these hits would pass, if they ever will. Else: time until the reset.
    const fn until_reset(&self) -> Option<Duration> {
        if self.decision.allowed {
            Some(self.decision.reset_after)
        } else {
            self.decision.retry_after
        }
    }

    /// Hits left, as far as the caller can use them.
    const fn remaining(&self) -> u64 {
        if self.decision.allowed { self.decision.remaining } else { 0 }
    }
}

/// A descriptor with what is known about it.
struct Descriptor<'a, 'r> {
    planned: &'a Planned<'r>,
    status: &'a Status<'r>,
    asked: Vec<Asked<'a, 'r>>,
}

/// Every descriptor with its status and the limits of it that were asked.
fn descriptors<'a, 'r>(answered: &Answered<'a, 'r>) -> impl Iterator<Item = Descriptor<'a, 'r>> {
    let mut checks = answered.group.iter().zip(answered.decisions);
    let descriptors = answered.plan.descriptors.iter().zip(&answered.verdict.statuses);
    descriptors.map(move |(planned, status)| {
        let asked =
            planned.limits().iter().zip(checks.by_ref()).map(|(limit, (check, decision))| Asked {
                limit: *limit,
                window: check.limit.window().seconds(),
                decision,
            });
        Descriptor { planned, status, asked: asked.collect() }
    })
}

/// When a refused request would pass, if nobody else came: when all descriptors that refuse it alone have
/// room, and one of its quota descriptors if it needs one. `None` if it never will.
fn retry_after(answered: &Answered<'_, '_>) -> Option<Duration> {
    if answered.verdict.code == Code::Ok {
        return None;
    }
    let mut alone = Duration::ZERO;
    let mut quotas = Vec::new();
    let mut needs_quota = !answered.plan.has_quota_left;
    for (planned, status) in answered.plan.descriptors.iter().zip(&answered.verdict.statuses) {
        let Planned::Limited { veto, .. } = planned else { continue };
        let decision = status.check.and_then(|check| answered.decisions.get(check));
        let wait = decision.and_then(|decision| decision.retry_after);
        match (veto, status.code) {
            (Veto::Alone, Code::OverLimit) => alone = alone.max(wait?),
            (Veto::Quota, Code::OverLimit) => quotas.push(wait),
            (Veto::Quota, Code::Ok) => needs_quota = false,
            (Veto::Alone | Veto::None, _) => {}
        }
    }
    if !needs_quota || quotas.is_empty() {
        return Some(alone);
    }
    let first = quotas.into_iter().flatten().min()?;
    Some(alone.max(first))
}

/// Name of a header, as it is given or else by default.
fn name(given: Option<&HeaderName>, default: &'static str) -> Box<str> {
    given.map_or_else(|| default.into(), |given| given.as_str().into())
}
