//! The decision log: refusals with limit, retry time, and a hash of the counter's key, so that support can explain
//! them. It has neither keys nor values of the request.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use opentelemetry::trace::TraceId;
use sluicegate_core::{
    Check, Code, Decision, Request, Status,
    request::{Descriptor, Hits},
    rules::Domain,
};
use tracing::Level;

use super::{count::Count, decisions::OVERRIDE, key_hash::KeyHash};
use crate::{decision::DecisionRecord, settings::LogSettings};

/// Where refusals are logged.
const TARGET: &str = "sluicegate::decisions";

/// Logs refusals.
pub(crate) struct DecisionLog {
    /// The share of the refused requests that is logged, more than 0.
    ratio: f64,
    bound: PerSecond,
    hash: Arc<KeyHash>,
    /// Lines that were too many.
    dropped: Count,
}

impl DecisionLog {
    /// A log, if one is asked for.
    pub(crate) fn new(settings: &LogSettings, hash: &Arc<KeyHash>) -> Option<Self> {
        let ratio = settings.decision_log_ratio.get();
        (ratio > 0.0).then(|| Self {
            ratio,
            bound: PerSecond::new(settings.decision_log_max_per_second.get()),
            hash: Arc::clone(hash),
            dropped: Count::default(),
        })
    }

    /// Lines that were not written because they were too many.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.get()
    }

    /// Logs what a request was refused for, or would have been were it not for shadow mode, if it is one of those
    /// that are logged.
    pub(crate) fn note(
        &self,
        request: &Request<'_>,
        decided: &DecisionRecord<'_, '_>,
        trace: Option<TraceId>,
    ) {
        let DecisionRecord { plan, group, decisions, verdict } = decided;
        let refused = verdict.code == Code::OverLimit || verdict.shadowed;
        let refuses = |it: &Status<'_>| it.shadowed || (refused && it.code == Code::OverLimit);
        if !verdict.statuses.iter().any(refuses) || !self.wanted() {
            return;
        }
        for (status, descriptor) in verdict.statuses.iter().zip(request.descriptors()) {
            let asked = status.check.and_then(|at| Some((group.get(at)?, decisions.get(at)?)));
            if let (Some(domain), Some((check, decision)), true) =
                (plan.domain, asked, refuses(status))
                && self.takes()
            {
                let shadowed = status.shadowed || verdict.shadowed;
                self.refusal(domain, status, descriptor, check, decision, shadowed, trace);
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "a line of as many fields")]
    fn refusal(
        &self,
        domain: &Domain,
        status: &Status<'_>,
        descriptor: &Descriptor<'_>,
        check: &Check,
        decision: &Decision,
        shadowed: bool,
        trace: Option<TraceId>,
    ) {
        let hits = match descriptor.hits {
            Hits::Add(hits) | Hits::Refund(hits) => hits,
        };
        tracing::info!(
            target: TARGET,
            domain = &*domain.name,
            rule = status.rule.map_or(OVERRIDE, |rule| &*rule.path),
            limit = status.current_limit.map(|limit| display(limit.displayed)),
            limit_name = status.current_limit.and_then(|limit| limit.name),
            algorithm = check.limit.algorithm().name(),
            code = if shadowed { "shadowed" } else { "over_limit" },
            hits,
            source = decision.source.name(),
            retry_after_seconds = decision.retry_after.map(|wait| wait.as_secs_f64()),
            key_hash = self.hash.of(check.key.as_bytes()),
            trace_id = trace.map(display),
            "limited"
        );
    }

    /// Logs a request that was refused without being looked at, if it is one of those that are logged. `source` says why.
    pub(crate) fn note_undecided(
        &self,
        source: &'static str,
        domain: Option<&Domain>,
        shadowed: bool,
        trace: Option<TraceId>,
    ) {
        if self.wanted() && self.takes() {
            tracing::info!(
                target: TARGET,
                domain = domain.map(|domain| &*domain.name),
                code = if shadowed { "shadowed" } else { "over_limit" },
                source,
                trace_id = trace.map(display),
                "limited"
            );
        }
    }

    /// Whether this request is one of those that are logged.
    fn wanted(&self) -> bool {
        fastrand::f64() < self.ratio && tracing::enabled!(target: TARGET, Level::INFO)
    }

    /// Whether there is room for another line. Counts it if not.
    fn takes(&self) -> bool {
        let takes = self.bound.take();
        if !takes {
            self.dropped.add(1);
        }
        takes
    }
}

/// So many in each second, counted from the start.
struct PerSecond {
    max: u32,
    started: Instant,
    /// The second in the upper half, how many there were in the lower.
    state: AtomicU64,
}

impl PerSecond {
    fn new(max: u32) -> Self {
        Self { max, started: Instant::now(), state: AtomicU64::new(0) }
    }

    fn take(&self) -> bool {
        self.take_in(self.started.elapsed().as_secs())
    }

    fn take_in(&self, second: u64) -> bool {
        let second = second << u32::BITS;
        let take = |state| {
            // Of an earlier second nothing counts.
            let count = u64::saturating_sub(state, second);
            (count < u64::from(self.max)).then_some(second + count + 1)
        };
        self.state.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_in_each_second() {
        let bound = PerSecond::new(2);
        let taken = |second| bound.take_in(second);
        for second in [0, 1, 2, 7, u64::from(u32::MAX)] {
            assert_eq!([taken(second), taken(second), taken(second)], [true, true, false]);
        }
    }

    #[test]
    fn a_second_that_was_thought_over_by_another_thread_has_no_room() {
        let bound = PerSecond::new(2);
        assert!(bound.take_in(5));
        assert!(!bound.take_in(4));
        assert!(bound.take_in(5));
        assert!(!bound.take_in(5));
    }
}
