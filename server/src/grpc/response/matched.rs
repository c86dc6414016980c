//! The limits that a request matched, for headers and bodies.

use std::time::Duration;

use sluicegate_core::{Check, CurrentLimit, Decision, DescriptorStatus, plan::PlannedDescriptor};

use crate::decision::DecisionRecord;

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

    /// Whether the limit refuses the hits.
    pub(super) const fn refuses(&self) -> bool {
        !self.decision.allowed
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

impl<'a> MatchedDescriptor<'a, '_> {
    /// The check of the limit that the status shows, and the decision on it; `None` if no limit applies.
    pub(super) fn shown(
        &self,
        record: &DecisionRecord<'a, '_>,
    ) -> Option<(&'a Check, &'a Decision)> {
        let position = self.status.check_position?;
        record.group.get(position).zip(record.decisions.get(position))
    }

    /// If the shown limit refuses: time until these hits would pass, or until the reset if they never will. Otherwise:
    /// time until the reset.
    pub(super) fn time_until_reset(&self, record: &DecisionRecord<'a, '_>) -> Duration {
        let reset_after = || Some(self.shown(record)?.1.reset_after);
        self.status.duration_until_reset.or_else(reset_after).unwrap_or_default()
    }
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
