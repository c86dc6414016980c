//! The limits that a request met, as header formats need them.

use std::time::Duration;

use http::HeaderName;
use sluicegate_core::{CurrentLimit, Decision, Status, plan::PlannedDescriptor};
use sluicegate_proto::envoy::config::core::v3::HeaderValue;

use crate::decision::DecisionRecord;

pub(super) fn header(name: impl Into<String>, value: String) -> HeaderValue {
    HeaderValue { key: name.into(), value, ..HeaderValue::default() }
}

/// One limit of a descriptor, and what the store decided about it.
pub(super) struct MetLimit<'a, 'r> {
    pub(super) limit: CurrentLimit<'r>,
    /// Seconds.
    pub(super) window: u32,
    decision: &'a Decision,
}

impl MetLimit<'_, '_> {
    /// Where refused: time until these hits would pass, if they ever will. Else: time until the reset.
    pub(super) const fn duration_until_reset(&self) -> Option<Duration> {
        if self.decision.allowed {
            Some(self.decision.reset_after)
        } else {
            self.decision.retry_after
        }
    }

    /// Hits left, as far as the caller can use them.
    pub(super) const fn remaining(&self) -> u64 {
        if self.decision.allowed { self.decision.remaining } else { 0 }
    }
}

/// A descriptor with its status and its limits.
pub(super) struct Descriptor<'a, 'r> {
    pub(super) planned: &'a PlannedDescriptor<'r>,
    pub(super) status: &'a Status<'r>,
    pub(super) asked: Vec<MetLimit<'a, 'r>>,
}

/// Every descriptor with its status and its limits.
pub(super) fn descriptors<'a, 'r>(
    decided: &DecisionRecord<'a, 'r>,
) -> impl Iterator<Item = Descriptor<'a, 'r>> {
    let mut checks = decided.group.iter().zip(decided.decisions);
    let descriptors = decided.plan.descriptors.iter().zip(&decided.verdict.statuses);
    descriptors.map(move |(planned, status)| {
        let asked =
            planned.limits().iter().zip(checks.by_ref()).map(|(limit, (check, decision))| {
                MetLimit { limit: *limit, window: check.limit.window().seconds(), decision }
            });
        Descriptor { planned, status, asked: asked.collect() }
    })
}

/// Name of a header: the given one, else the default.
pub(super) fn header_name(given: Option<&HeaderName>, default: &'static str) -> Box<str> {
    given.map_or_else(|| default.into(), |given| given.as_str().into())
}
