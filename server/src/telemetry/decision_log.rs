//! The decision log: sampled refusals with limit, retry time, and a hash of the counter's key, so that support can
//! explain them. It contains neither keys nor values of requests.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use opentelemetry::trace::TraceId;
use sluicegate_core::{
    Code, DescriptorStatus, Request, request::Hits, rule::DisplayedRate, rules::Domain,
};
use tracing::Level;

use super::{
    bounds::RefusalReason, count::Count, decisions::OVERRIDE_LABEL, key_hasher::KeyHasher,
};
use crate::{decision::DecisionRecord, settings::LogSettings};

/// The target of the log lines.
const TARGET: &str = "sluicegate::decisions";

/// Logs refusals.
pub(crate) struct DecisionLog {
    /// The share of the refused requests that are logged, above 0.
    ratio: f64,
    rate: LinesPerSecond,
    hasher: Arc<KeyHasher>,
    /// Lines that were dropped because of the rate.
    dropped: Count,
}

/// A line of the log. Fields that are `None` are omitted.
#[derive(Default)]
struct Line<'a> {
    domain: Option<&'a str>,
    rule: Option<&'a str>,
    limit: Option<DisplayedRate>,
    limit_name: Option<&'a str>,
    algorithm: Option<&'static str>,
    shadowed: bool,
    hits: Option<u64>,
    source: &'static str,
    retry_after: Option<Duration>,
    key_hash: Option<String>,
    trace_id: Option<TraceId>,
}

impl Line<'_> {
    fn write(&self) {
        tracing::info!(
            target: TARGET,
            domain = self.domain,
            rule = self.rule,
            limit = self.limit.map(display),
            limit_name = self.limit_name,
            algorithm = self.algorithm,
            code = if self.shadowed { "shadowed" } else { "over_limit" },
            hits = self.hits,
            source = self.source,
            retry_after_seconds = self.retry_after.map(|wait| wait.as_secs_f64()),
            key_hash = self.key_hash,
            trace_id = self.trace_id.map(display),
            "limited"
        );
    }
}

impl DecisionLog {
    /// The decision log; `None` if the settings disable it.
    pub(crate) fn new(settings: &LogSettings, hasher: &Arc<KeyHasher>) -> Option<Self> {
        let ratio = settings.decision_log_ratio.get();
        (ratio > 0.0).then(|| Self {
            ratio,
            rate: LinesPerSecond::new(settings.decision_log_max_per_second.get()),
            hasher: Arc::clone(hasher),
            dropped: Count::default(),
        })
    }

    /// The number of lines that were dropped because of `--decision-log-max-per-second`.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.get()
    }

    /// Logs the descriptors that refuse a request, or would refuse it without shadow mode, if the request is sampled.
    pub(crate) fn log(
        &self,
        request: &Request<'_>,
        record: &DecisionRecord<'_, '_>,
        trace_id: Option<TraceId>,
    ) {
        let DecisionRecord { plan, group, decisions, verdict } = record;
        let refused = verdict.code == Code::OverLimit || verdict.shadowed;
        let refuses =
            |it: &DescriptorStatus<'_>| it.shadowed || (refused && it.code == Code::OverLimit);
        if !verdict.statuses.iter().any(refuses) || !self.is_sampled() {
            return;
        }
        for (status, descriptor) in verdict.statuses.iter().zip(request.descriptors()) {
            let check =
                status.check_position.and_then(|at| Some((group.get(at)?, decisions.get(at)?)));
            if let (Some(domain), Some((check, decision)), true) =
                (plan.domain, check, refuses(status))
                && self.admits_line()
            {
                let (Hits::Add(hits) | Hits::Refund(hits)) = descriptor.hits;
                let line = Line {
                    domain: Some(&domain.name),
                    rule: Some(status.rule.map_or(OVERRIDE_LABEL, |rule| &rule.path)),
                    limit: status.current_limit.map(|limit| limit.displayed),
                    limit_name: status.current_limit.and_then(|limit| limit.name),
                    algorithm: Some(check.limit.algorithm().name()),
                    shadowed: status.shadowed || verdict.shadowed,
                    hits: Some(hits),
                    source: decision.source.name(),
                    retry_after: decision.retry_after,
                    key_hash: Some(self.hasher.hash(check.key.as_bytes())),
                    trace_id,
                };
                line.write();
            }
        }
    }

    /// Logs a request that was refused without a decision, if it is sampled.
    pub(crate) fn log_undecided(
        &self,
        reason: RefusalReason,
        domain: Option<&Domain>,
        shadowed: bool,
        trace_id: Option<TraceId>,
    ) {
        if self.is_sampled() && self.admits_line() {
            let domain = domain.map(|domain| &*domain.name);
            Line { domain, shadowed, source: reason.source(), trace_id, ..Line::default() }.write();
        }
    }

    /// Whether a request is sampled.
    fn is_sampled(&self) -> bool {
        fastrand::f64() < self.ratio && tracing::enabled!(target: TARGET, Level::INFO)
    }

    /// Whether another line may be written in this second. If not, counts it as dropped.
    fn admits_line(&self) -> bool {
        let admits = self.rate.admit();
        if !admits {
            self.dropped.add(1);
        }
        admits
    }
}

/// Bounds the lines in each second since the start.
struct LinesPerSecond {
    max: u32,
    started: Instant,
    /// The second in the upper half, the number of its lines in the lower half.
    state: AtomicU64,
}

impl LinesPerSecond {
    fn new(max: u32) -> Self {
        Self { max, started: Instant::now(), state: AtomicU64::new(0) }
    }

    /// Counts a line; false if there are too many in this second.
    fn admit(&self) -> bool {
        self.admit_in(self.started.elapsed().as_secs())
    }

    fn admit_in(&self, second: u64) -> bool {
        let second = second << u32::BITS;
        let add = |state| {
            // 0 if the state is of an earlier second.
            let count = u64::saturating_sub(state, second);
            (count < u64::from(self.max)).then_some(second + count + 1)
        };
        self.state.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_second_has_a_bounded_number_of_lines() {
        let rate = LinesPerSecond::new(2);
        let admitted = |second| rate.admit_in(second);
        for second in [0, 1, 2, 7, u64::from(u32::MAX)] {
            assert_eq!([admitted(second), admitted(second), admitted(second)], [true, true, false]);
        }
    }

    #[test]
    fn a_thread_with_an_earlier_second_adds_no_line() {
        let rate = LinesPerSecond::new(2);
        assert!(rate.admit_in(5));
        assert!(!rate.admit_in(4));
        assert!(rate.admit_in(5));
        assert!(!rate.admit_in(5));
    }
}
