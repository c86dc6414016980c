//! `x-ratelimit-limit`, `-remaining` and `-reset` as plain numbers, the last as Unix time in seconds: the limit that
//! refuses, or the one closest to refusing.

use std::time::{Duration, SystemTime};

use sluicegate_core::{Algorithm, Check, Decision, plan::PlannedDescriptor, store::DecisionSource};
use sluicegate_proto::envoy::config::core::v3::HeaderValue;

use super::names::HeaderNames;
use crate::{
    decision::DecisionRecord,
    grpc::response::{
        header::header,
        matched::{MatchedDescriptor, descriptors},
        refusal::refusing_descriptor,
        seconds::rounded_up,
    },
};

/// The headers; none if no limit applies.
pub(super) fn headers(
    names: &HeaderNames,
    record: &DecisionRecord<'_, '_>,
    now: SystemTime,
) -> Vec<HeaderValue> {
    let described = refusing_descriptor(record).or_else(|| closest(record));
    let Some(descriptor) = described else { return Vec::new() };
    let shown = descriptor.status.current_limit.zip(descriptor.shown(record));
    let Some((limit, (check, decision))) = shown else { return Vec::new() };
    let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let reset = reset_time(now + descriptor.time_until_reset(record), check, decision);
    vec![
        header(&*names.limit, limit.displayed.requests_per_unit.to_string()),
        header(&*names.remaining, descriptor.status.remaining.to_string()),
        header(&*names.reset, reset.to_string()),
    ]
}

/// The first descriptor with the fewest remaining hits. Rules in shadow mode do not count, because clients must not slow
/// down for them.
fn closest<'a, 'r>(record: &DecisionRecord<'a, 'r>) -> Option<MatchedDescriptor<'a, 'r>> {
    let is_enforced = |descriptor: &MatchedDescriptor<'_, '_>| {
        let shadow =
            matches!(descriptor.planned, PlannedDescriptor::Limited { shadow_mode: true, .. });
        !shadow && descriptor.status.current_limit.is_some()
    };
    descriptors(record).filter(is_enforced).min_by_key(|descriptor| descriptor.status.remaining)
}

/// The time of the reset in whole seconds since the Unix epoch, rounded up.
///
/// Fixed windows end at a multiple of their length. The nearest one is chosen, because the time since the store's answer
/// would make it a second later.
fn reset_time(reset: Duration, check: &Check, decision: &Decision) -> u64 {
    let is_window_end = check.limit.algorithm() == Algorithm::FixedWindow
        && decision.source != DecisionSource::FailurePolicy;
    if !is_window_end {
        return rounded_up(reset);
    }
    let window = u64::from(check.limit.window().seconds());
    (reset.as_secs() + window / 2).checked_div(window).unwrap_or_default().saturating_mul(window)
}
