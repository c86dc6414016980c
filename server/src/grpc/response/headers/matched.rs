//! The limits that a request matched, for all header formats.

use std::time::Duration;

use http::HeaderName;
use sluicegate_core::{CurrentLimit, Decision, DescriptorStatus, plan::PlannedDescriptor};
use sluicegate_proto::envoy::config::core::v3::HeaderValue;

use crate::decision::DecisionRecord;

pub(super) fn header(name: impl Into<String>, value: String) -> HeaderValue {
    HeaderValue { key: name.into(), value, ..HeaderValue::default() }
}

/// One limit of a descriptor, and the decision on its check.
pub(super) struct MatchedLimit<'a, 'r> {
    pub(super) limit: CurrentLimit<'r>,
    /// The window in seconds.
    pub(super) window: u32,
    decision: &'a Decision,
}

impl MatchedLimit<'_, '_> {
    /// If the limit refuses: time until these hits would pass, `None` if they never will. Otherwise: time until the
    /// reset.
    pub(super) const fn duration_until_reset(&self) -> Option<Duration> {
        if self.decision.allowed {
            Some(self.decision.reset_after)
        } else {
            self.decision.retry_after
        }
    }

    /// Remaining hits; 0 if the limit refuses.
    pub(super) const fn remaining(&self) -> u64 {
        if self.decision.allowed { self.decision.remaining } else { 0 }
    }
}

/// A descriptor with its status and its limits.
pub(super) struct MatchedDescriptor<'a, 'r> {
    pub(super) planned: &'a PlannedDescriptor<'r>,
    pub(super) status: &'a DescriptorStatus<'r>,
    pub(super) limits: Vec<MatchedLimit<'a, 'r>>,
}

/// All descriptors of a request with their statuses and limits.
pub(super) fn descriptors<'a, 'r>(
    record: &DecisionRecord<'a, 'r>,
) -> impl Iterator<Item = MatchedDescriptor<'a, 'r>> {
    let mut checks = record.group.iter().zip(record.decisions);
    let descriptors = record.plan.descriptors.iter().zip(&record.verdict.statuses);
    descriptors.map(move |(planned, status)| {
        let limits =
            planned.limits().iter().zip(checks.by_ref()).map(|(limit, (check, decision))| {
                MatchedLimit { limit: *limit, window: check.limit.window().seconds(), decision }
            });
        MatchedDescriptor { planned, status, limits: limits.collect() }
    })
}

/// The configured name of a header, or else its default.
pub(super) fn header_name(configured: Option<&HeaderName>, default: &'static str) -> Box<str> {
    configured.map_or_else(|| default.into(), |name| name.as_str().into())
}
