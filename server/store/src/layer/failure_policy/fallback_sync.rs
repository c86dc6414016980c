//! The connection between the local fallback and the store: local counters start from what the store last reported, and
//! the hits that they admitted are debited when the store answers again.

use std::{
    num::NonZeroU32,
    sync::Arc,
    time::{Duration, Instant},
};

use sluicegate_core::{
    Answers, Check, CounterKey, OnFailure, key::TenantKeys, store::DecisionSource,
};

use super::{
    last_reports::LastReports, partial_decisions::PartialDecisions, pending_debits::PendingDebits,
};
use crate::{Clock, Memory, clock};

/// Deadline of a probe or a debit. Short, because requests wait behind a call to a server that hangs.
pub(super) const DEBIT_TIMEOUT: Duration = Duration::from_millis(250);

/// After this time, suspended debits are resumed.
const SUSPENSION_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval at which a suspension checks whether the debits in progress have ended.
const SUSPENSION_INTERVAL: Duration = Duration::from_millis(5);

/// The store's last reports on counters, and the hits to be debited in them.
#[derive(Debug)]
pub(super) struct FallbackSync {
    reports: LastReports,
    pub(super) pending_debits: PendingDebits,
}

/// Statistics of the local fallback.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FallbackStats {
    /// Counters with a last report.
    pub counters: u64,
    /// Reports evicted before the reset time of their counters.
    pub evicted: u64,
    /// Checks decided locally whose counters had a report.
    pub found: u64,
    /// Checks decided locally whose counters had no report.
    pub missed: u64,
    /// Hits admitted locally that are to be debited.
    pub undebited: u64,
    /// Hits debited.
    pub debited: u64,
    /// Hits of debits that the store did not answer: they may be charged or not.
    pub unknown: u64,
    /// Hits that are not debited, because too many counters have hits to be debited.
    pub dropped: u64,
}

impl FallbackSync {
    /// Keeps at most `counters_max` reports, and as many counters with hits to be debited; `None` if that is 0.
    pub(super) fn new(counters_max: usize) -> Option<Self> {
        (counters_max > 0).then(|| Self {
            reports: LastReports::new(counters_max),
            pending_debits: PendingDebits::new(counters_max),
        })
    }

    pub(super) fn stats(&self) -> FallbackStats {
        let Self { reports, pending_debits } = self;
        FallbackStats {
            counters: reports.len() as u64,
            evicted: reports.evicted(),
            found: reports.found(),
            missed: reports.missed(),
            undebited: pending_debits.undebited(),
            debited: pending_debits.debited(),
            unknown: pending_debits.unknown(),
            dropped: pending_debits.dropped(),
        }
    }

    /// Records the store's answers to checks that were sent at `sent_at`.
    pub(super) fn record_answers(&self, group: &[Check], answers: &Answers, sent_at: Instant) {
        let mut now = None;
        for (check, answer) in group.iter().zip(answers) {
            if let Ok(decision) = answer
                && decision.source == DecisionSource::Store
                && check.on_failure == OnFailure::Local
            {
                self.reports.record(check, decision, sent_at, *now.get_or_insert_with(clock::now));
            }
        }
    }

    /// Whether the store's answers suffice for every check.
    pub(super) fn store_suffices(&self, group: &[Check]) -> bool {
        self.pending_debits.is_empty()
            || !group.iter().any(|check| self.requires_local_share(check))
    }

    /// Whether a check must also pass the local share, because other replicas may still have hits to debit in its
    /// counter.
    pub(super) fn requires_local_share(&self, check: &Check) -> bool {
        check.on_failure == OnFailure::Local && self.pending_debits.contains(&check.key)
    }

    /// The number of replicas that share the limit of a counter with hits to be debited; `None` for other counters.
    pub(super) fn replicas(&self, check: &Check) -> Option<NonZeroU32> {
        self.pending_debits.replicas(&check.key, clock::now())
    }

    /// Caps the remaining hits of a check's local counter by the store's last report. `check` has the check itself, the
    /// same check against this replica's share of the limit, and the hits that the store has just charged for it.
    pub(super) fn cap_remaining(
        &self,
        check: (&Check, &Check, u64),
        replicas: NonZeroU32,
        local: &Memory<Arc<dyn Clock>>,
    ) {
        self.reports.cap_remaining(check, replicas, local, clock::now());
    }

    /// Lists the counters that were decided locally. Returns whether the caller must start a task that debits them.
    #[must_use]
    pub(super) fn record_local_decisions(
        &self,
        group: &[Check],
        partial: &PartialDecisions,
    ) -> bool {
        let now = clock::now();
        partial.local_checks.iter().fold(false, |start, it| {
            let decision = partial.decisions.get(it.position);
            let decision =
                decision.filter(|decision| decision.source == DecisionSource::LocalFallback);
            let Some((check, decision)) = group.get(it.position).zip(decision) else {
                return start;
            };
            let expires_at = now + decision.reset_after;
            start | self.pending_debits.add((check, it.replicas), decision.charged, now, expires_at)
        })
    }

    /// Subtracts refunded hits from the hits to be debited of a counter. Returns the number subtracted.
    pub(super) fn refund(&self, key: &CounterKey, hits: u64) -> u64 {
        self.pending_debits.refund(key, hits, clock::now())
    }

    /// Suspends debits of counters that are about to be reset, until [`forget`](Self::forget) or
    /// [`resume_debits`](Self::resume_debits). Waits for the debits in progress.
    pub(super) async fn suspend_debits(&self, keys: &[CounterKey]) {
        let now = clock::now();
        self.pending_debits.suspend(keys, Some(now + SUSPENSION_TIMEOUT));
        while self.pending_debits.any_in_progress(keys) && clock::now() < now + DEBIT_TIMEOUT {
            tokio::time::sleep(SUSPENSION_INTERVAL).await;
        }
    }

    /// Resumes debits of counters that were not reset.
    pub(super) fn resume_debits(&self, keys: &[CounterKey]) {
        self.pending_debits.suspend(keys, None);
    }

    /// Removes the report and the hits to be debited of a counter that was reset.
    pub(super) fn forget(&self, key: &CounterKey) {
        self.reports.forget(key);
        self.pending_debits.forget(key);
    }

    /// Removes the hits to be debited of a tenant that was reset, and the reports of all counters.
    pub(super) fn forget_tenant(&self, tenant: &TenantKeys) {
        self.reports.clear();
        self.pending_debits.forget_tenant(tenant);
    }

    /// Whether no counter is listed for debits.
    pub(super) fn is_debit_list_empty(&self) -> bool {
        self.pending_debits.is_empty()
    }

    /// Hits that are to be debited.
    pub(super) fn undebited(&self) -> u64 {
        self.pending_debits.undebited()
    }
}
