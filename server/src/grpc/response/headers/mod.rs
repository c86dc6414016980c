//! Rate limit headers for clients, a file for each format.

mod names;
mod ratelimit_draft_11;
mod x_ratelimit_draft_03;
mod x_ratelimit_unix;

use std::time::SystemTime;

use sluicegate_core::{Code, plan::PlannedDescriptor, store::RefusalScope};
use sluicegate_proto::envoy::config::core::v3::HeaderValue;
use thiserror::Error;

use self::names::HeaderNames;
use super::{
    header::header,
    matched::MatchedDescriptor,
    refusal::{refusing_descriptor, retry_after},
    seconds::{milliseconds_rounded_up, rounded_up},
};
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
    /// Plain numbers, and the reset as Unix time.
    XRatelimitUnix(Box<HeaderNames>),
    /// The format of draft 11 of the IETF.
    RatelimitDraft11,
}

/// A flag sets the name of a header that the chosen format does not have.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("{0} goes with --response-headers x-ratelimit-draft-03 or x-ratelimit-unix only")]
pub struct HeadersError(&'static str);

impl Headers {
    /// The headers that the settings choose.
    pub(crate) fn new(settings: &ResponseSettings) -> Result<Self, HeadersError> {
        let configured = [
            ("--limit-header", &settings.limit_header),
            ("--remaining-header", &settings.remaining_header),
            ("--reset-header", &settings.reset_header),
        ];
        let names = || {
            let [limit, remaining, reset] = configured.map(|(_, name)| name.as_ref());
            Box::new(HeaderNames::new(limit, remaining, reset))
        };
        let format = match settings.response_headers {
            ResponseHeaders::Off => Self::Off,
            ResponseHeaders::RatelimitDraft11 => Self::RatelimitDraft11,
            ResponseHeaders::XRatelimitDraft03 => return Ok(Self::XRatelimitDraft03(names())),
            ResponseHeaders::XRatelimitUnix => return Ok(Self::XRatelimitUnix(names())),
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
            Self::XRatelimitUnix(names) => {
                x_ratelimit_unix::headers(names, record, SystemTime::now())
            }
            Self::RatelimitDraft11 => ratelimit_draft_11::headers(record),
        };
        if let Some(wait) = retry_after(record) {
            headers.push(header("retry-after", rounded_up(wait).to_string()));
            // Not in the format of envoyproxy/ratelimit.
            if !matches!(self, Self::XRatelimitDraft03(_)) {
                headers.push(header("retry-after-ms", milliseconds_rounded_up(wait).to_string()));
            }
        }
        headers
    }

    /// The descriptor that refuses the request. If several do, it is the one that the headers describe.
    pub(super) fn refusing_descriptor<'a, 'r>(
        &self,
        record: &DecisionRecord<'a, 'r>,
    ) -> Option<MatchedDescriptor<'a, 'r>> {
        let described = match self {
            Self::XRatelimitDraft03(_) => x_ratelimit_draft_03::closest(record),
            Self::Off | Self::XRatelimitUnix(_) | Self::RatelimitDraft11 => None,
        };
        let refuses = |descriptor: &MatchedDescriptor<'_, '_>| {
            let scope = match descriptor.planned {
                PlannedDescriptor::Limited { refusal_scope, .. } => *refusal_scope,
                PlannedDescriptor::NoLimitApplies | PlannedDescriptor::Unlimited(_) => {
                    RefusalScope::None
                }
            };
            scope != RefusalScope::None && descriptor.status.code == Code::OverLimit
        };
        described.filter(refuses).or_else(|| refusing_descriptor(record))
    }
}
