//! Verifies the decisions that the store did not make during a fault, and that it decides again afterwards.

use std::{num::NonZeroU32, time::Duration};

use sluicegate_core::{Algorithm, Charge, Decision, OnFailure, store::DecisionSource};

use super::{Oracle, Violation, decided, is_conditional, is_refused, needs};
use crate::{
    history::{Outcome, RequestRecord},
    run::RECOVERY,
    scenario::{PlannedCheck, StoreKind},
};

impl Oracle<'_> {
    /// A decision that the store did not make has a reason, and follows from the rule's failure policy.
    pub(super) fn verify_failures(&mut self, request: &RequestRecord) {
        let may_fail = self.may_fail(request);
        let mut add = |what: String| {
            self.found.push(Violation::new("failures have a reason", request.action, what));
        };
        let decisions = match &request.outcome {
            Outcome::Decided(decisions) => decisions,
            Outcome::Deferred => {
                let is_deferred = |it: &PlannedCheck| it.on_failure == OnFailure::Defer;
                if !request.checks.iter().any(is_deferred) {
                    add("deferred although no rule has on_failure: defer".to_owned());
                }
                if !may_fail {
                    add("deferred although nothing failed".to_owned());
                }
                return;
            }
            Outcome::Disconnected => return,
        };
        let allowed: Vec<bool> = decisions.iter().map(|it| it.allowed).collect();
        let is_refused = is_refused(&request.checks, &allowed);
        let is_in_deny_cache = decisions.iter().any(|it| it.source == DecisionSource::DenyCache);
        for (at, (check, decision)) in request.checks.iter().zip(decisions).enumerate() {
            let is_valid = match decision.source {
                DecisionSource::Store | DecisionSource::DenyCache => continue,
                DecisionSource::NotAsked if is_in_deny_cache => continue,
                // The request is already refused, so that the local fallback does not check this counter.
                DecisionSource::NotAsked => is_refused && check.on_failure == OnFailure::Local,
                DecisionSource::LocalFallback => check.on_failure == OnFailure::Local,
                DecisionSource::FailurePolicy if matches!(check.charge, Charge::Refund { .. }) => {
                    decision.allowed
                }
                DecisionSource::FailurePolicy => match check.on_failure {
                    OnFailure::Allow | OnFailure::Defer => decision.allowed,
                    OnFailure::Deny => !decision.allowed,
                    OnFailure::Local => false,
                },
            };
            if !is_valid {
                let (source, allowed) = (decision.source, decision.allowed);
                let policy = check.on_failure;
                add(format!("check {at}: {source:?} has allowed = {allowed} for {policy:?}"));
            }
            if !may_fail {
                add(format!("check {at}: {:?} although nothing failed", decision.source));
            }
        }
    }

    /// Whether the store may have failed to answer: the request ended at its deadline, or there was a fault shortly
    /// before.
    fn may_fail(&self, request: &RequestRecord) -> bool {
        let ended = request.ended.1;
        let is_near =
            |&(from, to): &(Duration, Duration)| from <= ended && request.began.1 <= to + RECOVERY;
        // Requests are settled after their callers have disconnected, and may then miss their deadlines.
        let disconnected =
            self.history.requests.iter().filter(|it| matches!(it.outcome, Outcome::Disconnected));
        !self.scenario.is_fault_free
            && (ended >= request.deadline
                || self.history.faults.iter().any(is_near)
                || disconnected.map(|it| (it.deadline, it.deadline)).any(|it| is_near(&it)))
    }

    /// While the store does not answer, a process admits no more than its share of the limit, nor than its share of the
    /// hits that the store last reported as remaining.
    pub(super) fn verify_local(&mut self, request: &RequestRecord) {
        for (at, check) in request.checks.iter().enumerate() {
            let decision =
                decided(request, at).filter(|it| it.source == DecisionSource::LocalFallback);
            let Some(decision) = decision.filter(|_| self.scenario.is_one_window) else { continue };
            // All checks of the counter in this process.
            let of_process =
                self.history.requests.iter().filter(|it| it.process == request.process);
            let of_counter: Vec<_> = of_process
                .flat_map(|it| {
                    let all = 0..it.checks.len();
                    all.filter(|&at| it.checks[at].counter == check.counter).map(move |at| (it, at))
                })
                .collect();
            if self.scenario.resets(check.counter) {
                continue;
            }
            if decision.allowed {
                self.share_of_limit(request, at, &of_counter);
                self.share_of_remaining(request, at, &of_counter);
            } else {
                self.local_refusal(request, at, &of_counter);
            }
        }
    }

    fn processes(&self) -> NonZeroU32 {
        u32::try_from(self.scenario.processes).ok().and_then(NonZeroU32::new).unwrap()
    }

    /// The share of a check's limit that one process may admit by itself.
    fn share(&self, check: &PlannedCheck) -> u64 {
        let capacity = self.limit(check).capacity();
        if capacity == 0 { 0 } else { u64::from((capacity / self.processes()).max(1)) }
    }

    fn share_of_limit(&mut self, request: &RequestRecord, at: usize, checks: &[CheckRecord<'_>]) {
        let shares = checks.iter().map(|(it, at)| self.share(&it.checks[*at]));
        let share = shares.max().unwrap_or(0);
        let is_before_end = |it: &RequestRecord| it.ended.0 <= request.ended.0;
        let admitted = admitted(checks.iter().filter(|(it, _)| is_before_end(it)));
        if admitted > share {
            let what = format!(
                "check {at}: the process admitted {admitted} hits by itself, where its share is {share}"
            );
            self.add("local decisions stay within their share", Some(request.action), what);
        }
    }

    fn share_of_remaining(
        &mut self,
        request: &RequestRecord,
        at: usize,
        checks: &[CheckRecord<'_>],
    ) {
        let check = &request.checks[at];
        let counter = &self.history.counters[check.counter];
        if counter.snapshots.iter().any(|it| it.effect.removed != 0) {
            return;
        }
        let is_other = |it: &PlannedCheck| {
            it.limit != check.limit
                || it.on_failure != check.on_failure
                || !is_conditional(it.charge)
        };
        if checks.iter().any(|(it, at)| is_other(&it.checks[*at])) {
            return;
        }
        let reports = checks.iter().filter_map(|(it, at)| {
            let decision = decided(it, *at).filter(|it| it.source == DecisionSource::Store)?;
            (it.ended.0 < request.began.0).then_some((it, decision))
        });
        let reports: Vec<_> = reports.collect();
        let Some((last, _)) = reports.iter().max_by_key(|(it, _)| it.ended.0) else { return };
        // Among the answers to requests that overlap in time, any may be the one that the process has recorded last.
        let latest = reports.iter().filter(|(it, _)| it.ended.0 > last.began.0);
        let remaining = latest.map(|(_, decision)| decision.remaining).max().unwrap_or(0);
        let since = checks
            .iter()
            .filter(|(it, _)| it.began.0 > last.ended.0 && it.ended.0 <= request.ended.0);
        let admitted = admitted(since);
        // Of a counter that is reported as unused, each process may admit its share of the limit, at least one hit.
        let was_used = remaining < u64::from(self.limit(check).capacity());
        if was_used && admitted * u64::from(self.processes().get()) > remaining {
            let what = format!(
                "check {at}: the process admitted {admitted} hits by itself, where {remaining} remained for {}",
                self.scenario.processes
            );
            self.add("local decisions stay within their share", Some(request.action), what);
        }
    }

    /// A process that knows of no used hits does not refuse hits that fit its share.
    fn local_refusal(&mut self, request: &RequestRecord, at: usize, checks: &[CheckRecord<'_>]) {
        let check = &request.checks[at];
        let counter = &self.history.counters[check.counter];
        let was_used = counter.snapshots.iter().any(|it| it.effect.charged != 0);
        let capacities =
            checks.iter().map(|(it, at)| u64::from(self.limit(&it.checks[*at]).capacity()));
        let share = capacities.min().unwrap_or(0) / u64::from(self.processes().get());
        // Whether this process may have charged another check of the counter by itself, or may have received a late
        // answer.
        let was_local = checks.iter().any(|(it, position)| {
            (it.action, *position) != (request.action, at)
                && decided(it, *position).is_none_or(|it| it.source != DecisionSource::Store)
        });
        if needs(check.charge) <= share && !was_used && !was_local {
            let what =
                format!("check {at}: the process refused by itself, although nothing was used");
            self.add("refusals have a reason", Some(request.action), what);
        }
    }

    /// After the last fault, every process decides by the store again, and reports what is stored.
    pub(super) fn verify_recovery(&mut self) {
        for (process, outcome) in &self.history.recovered {
            let Outcome::Decided(decisions) = outcome else {
                let what = format!("process {process}: {outcome:?}");
                self.found.push(Violation::of_run("the store decides again after a fault", what));
                continue;
            };
            for (number, decision) in decisions.iter().enumerate() {
                let counter = &self.history.counters[number];
                let limit = self.scenario.counters[number].limits[0];
                let at_end = u64::try_from(counter.at_end).unwrap_or(0);
                let used = (u64::from(limit.capacity()) + decision.excess)
                    .saturating_sub(decision.remaining);
                // If the clock was set back, the usage of GCRA is a part of a hit higher, and is rounded up.
                let rounding = u64::from(limit.algorithm() == Algorithm::Gcra);
                let expected = at_end..=at_end + rounding;
                let is_known =
                    self.scenario.is_one_window && self.scenario.kind != StoreKind::Memory;
                if decision.source != DecisionSource::Store || is_known && !expected.contains(&used)
                {
                    let what = format!(
                        "process {process}, counter {number}: {decision:?} where {at_end} hits are used"
                    );
                    self.found
                        .push(Violation::of_run("the store decides again after a fault", what));
                }
            }
        }
    }
}

/// A request, and the position of one of its checks.
type CheckRecord<'h> = (&'h RequestRecord, usize);

/// Hits of conditional charges that a process has admitted by itself.
fn admitted<'a, 'h: 'a>(checks: impl Iterator<Item = &'a CheckRecord<'h>>) -> u64 {
    let charged = checks.filter_map(|(it, at)| {
        let is_local = |it: &&Decision| it.source == DecisionSource::LocalFallback && it.allowed;
        let decision = decided(it, *at).filter(is_local)?;
        is_conditional(it.checks[*at].charge).then_some(decision.charged)
    });
    charged.sum()
}
