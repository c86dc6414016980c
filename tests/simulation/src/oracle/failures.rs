//! What was answered while the store could not, and whether it decides again afterwards.

use std::{num::NonZeroU32, time::Duration};

use sluicegate_core::{Algorithm, Charge, Decision, OnFailure, store::Source};

use super::{Judge, Violation, decided, is_conditional, is_refused, needs};
use crate::{
    history::{Outcome, RequestRecord},
    run::RECOVERY,
    scenario::{CheckPlan, Kind},
};

impl Judge<'_> {
    /// What was not answered by the store has a reason, and follows from its failure policy.
    pub(super) fn failures(&mut self, request: &RequestRecord) {
        let may_fail = self.may_fail(request);
        let mut add = |what: String| {
            self.found.push(Violation::new("failures have a reason", request.action, what));
        };
        let decisions = match &request.outcome {
            Outcome::Decided(decisions) => decisions,
            Outcome::Deferred => {
                let defers = |it: &CheckPlan| it.on_failure == OnFailure::Defer;
                if !request.checks.iter().any(defers) {
                    add("deferred though no rule defers".to_owned());
                }
                if !may_fail {
                    add("deferred though nothing failed".to_owned());
                }
                return;
            }
            Outcome::Left => return,
        };
        let allowed: Vec<bool> = decisions.iter().map(|it| it.allowed).collect();
        let is_refused = is_refused(&request.checks, &allowed);
        let is_remembered = decisions.iter().any(|it| it.source == Source::DenyCache);
        for (at, (check, decision)) in request.checks.iter().zip(decisions).enumerate() {
            let may_be = match decision.source {
                Source::Store | Source::DenyCache => continue,
                Source::NotAsked if is_remembered => continue,
                // Refused already, so that the process itself is not asked.
                Source::NotAsked => is_refused && check.on_failure == OnFailure::Local,
                Source::Local => check.on_failure == OnFailure::Local,
                Source::Policy if matches!(check.take, Charge::Refund { .. }) => decision.allowed,
                Source::Policy => match check.on_failure {
                    OnFailure::Allow | OnFailure::Defer => decision.allowed,
                    OnFailure::Deny => !decision.allowed,
                    OnFailure::Local => false,
                },
            };
            if !may_be {
                let (source, allowed) = (decision.source, decision.allowed);
                let policy = check.on_failure;
                add(format!("check {at}: {source:?} says {allowed} for {policy:?}"));
            }
            if !may_fail {
                add(format!("check {at}: {:?} though nothing failed", decision.source));
            }
        }
    }

    /// Whether the store may not have answered: the request ended at its deadline, or something failed shortly before.
    fn may_fail(&self, request: &RequestRecord) -> bool {
        let ended = request.ended.1;
        let is_near =
            |&(from, to): &(Duration, Duration)| from <= ended && request.began.1 <= to + RECOVERY;
        // Requests are settled after their callers have left, and may then miss their deadlines.
        let left = self.history.requests.iter().filter(|it| matches!(it.outcome, Outcome::Left));
        !self.scenario.is_calm
            && (ended >= request.deadline
                || self.history.faults.iter().any(is_near)
                || left.map(|it| (it.deadline, it.deadline)).any(|it| is_near(&it)))
    }

    /// While the store does not answer, a process admits no more than its share: of the limit, or of what it last heard was
    /// left.
    pub(super) fn local(&mut self, request: &RequestRecord) {
        for (at, check) in request.checks.iter().enumerate() {
            let decision = decided(request, at).filter(|it| it.source == Source::Local);
            let Some(decision) = decision.filter(|_| self.scenario.is_exact) else { continue };
            // Everything that this process was asked about the counter.
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
                self.share_of_left(request, at, &of_counter);
            } else {
                self.local_refusal(request, at, &of_counter);
            }
        }
    }

    fn processes(&self) -> NonZeroU32 {
        u32::try_from(self.scenario.processes).ok().and_then(NonZeroU32::new).unwrap()
    }

    /// Hits that this process may admit by itself of a check's limit.
    fn share(&self, check: &CheckPlan) -> u64 {
        let capacity = self.limit(check).capacity();
        if capacity == 0 { 0 } else { u64::from((capacity / self.processes()).max(1)) }
    }

    fn share_of_limit(&mut self, request: &RequestRecord, at: usize, asked: &[CheckRecord<'_>]) {
        let shares = asked.iter().map(|(it, at)| self.share(&it.checks[*at]));
        let share = shares.max().unwrap_or(0);
        let is_until = |it: &RequestRecord| it.ended.0 <= request.ended.0;
        let admitted = admitted(asked.iter().filter(|(it, _)| is_until(it)));
        if admitted > share {
            let what = format!(
                "check {at}: the process admitted {admitted} hits by itself, where its share is {share}"
            );
            self.add("local decisions keep to their share", Some(request.action), what);
        }
    }

    fn share_of_left(&mut self, request: &RequestRecord, at: usize, asked: &[CheckRecord<'_>]) {
        let check = &request.checks[at];
        let counter = &self.history.counters[check.counter];
        if counter.snapshots.iter().any(|it| it.effect.removed != 0) {
            return;
        }
        let is_other = |it: &CheckPlan| {
            it.limit != check.limit || it.on_failure != check.on_failure || !is_conditional(it.take)
        };
        if asked.iter().any(|(it, at)| is_other(&it.checks[*at])) {
            return;
        }
        let heard = asked.iter().filter_map(|(it, at)| {
            let decision = decided(it, *at).filter(|it| it.source == Source::Store)?;
            (it.ended.0 < request.began.0).then_some((it, decision))
        });
        let heard: Vec<_> = heard.collect();
        let Some((last, _)) = heard.iter().max_by_key(|(it, _)| it.ended.0) else { return };
        // Of answers to questions that were open together, any may be the latest.
        let left = heard.iter().filter(|(it, _)| it.ended.0 > last.began.0);
        let left = left.map(|(_, decision)| decision.remaining).max().unwrap_or(0);
        let since = asked
            .iter()
            .filter(|(it, _)| it.began.0 > last.ended.0 && it.ended.0 <= request.ended.0);
        let admitted = admitted(since);
        // A counter that was not used is as good as unknown: each process may admit at least one hit.
        let was_used = left < u64::from(self.limit(check).capacity());
        if was_used && admitted * u64::from(self.processes().get()) > left {
            let what = format!(
                "check {at}: the process admitted {admitted} hits by itself, where {left} were left for {}",
                self.scenario.processes
            );
            self.add("local decisions keep to their share", Some(request.action), what);
        }
    }

    /// A process that knows of no hit refuses nothing that fits its share.
    fn local_refusal(&mut self, request: &RequestRecord, at: usize, asked: &[CheckRecord<'_>]) {
        let check = &request.checks[at];
        let counter = &self.history.counters[check.counter];
        let was_used = counter.snapshots.iter().any(|it| it.effect.charged != 0);
        let left = asked.iter().map(|(it, at)| u64::from(self.limit(&it.checks[*at]).capacity()));
        let share = left.min().unwrap_or(0) / u64::from(self.processes().get());
        // Another check that this process may have charged by itself, or that the store may have answered late.
        let was_local = asked.iter().any(|(it, position)| {
            (it.action, *position) != (request.action, at)
                && decided(it, *position).is_none_or(|it| it.source != Source::Store)
        });
        if needs(check.take) <= share && !was_used && !was_local {
            let what =
                format!("check {at}: the process refused by itself, though nothing was used");
            self.add("refusals have a reason", Some(request.action), what);
        }
    }

    /// Every process decides by the store again some time after the last failure, and reports what is stored.
    pub(super) fn recovery(&mut self) {
        for (process, outcome) in &self.history.recovered {
            let Outcome::Decided(decisions) = outcome else {
                let what = format!("process {process}: {outcome:?}");
                self.found.push(Violation::of_run("the store decides again", what));
                continue;
            };
            for (number, decision) in decisions.iter().enumerate() {
                let counter = &self.history.counters[number];
                let limit = self.scenario.counters[number].limits[0];
                let at_end = u64::try_from(counter.at_end).unwrap_or(0);
                let used = (u64::from(limit.capacity()) + decision.excess)
                    .saturating_sub(decision.remaining);
                // Where the clock was set back, GCRA sees a part of a hit more, and rounds up.
                let part = u64::from(limit.algorithm() == Algorithm::Gcra);
                let expected = at_end..=at_end + part;
                let is_known = self.scenario.is_exact && self.scenario.kind != Kind::Memory;
                if decision.source != Source::Store || is_known && !expected.contains(&used) {
                    let what = format!(
                        "process {process}, counter {number}: {decision:?} where {at_end} hits are used"
                    );
                    self.found.push(Violation::of_run("the store decides again", what));
                }
            }
        }
    }
}

/// A request, and the position of one of its checks.
type CheckRecord<'h> = (&'h RequestRecord, usize);

/// Hits that a process admitted by itself on condition.
fn admitted<'a, 'h: 'a>(asked: impl Iterator<Item = &'a CheckRecord<'h>>) -> u64 {
    let granted = asked.filter_map(|(it, at)| {
        let is_local = |it: &&Decision| it.source == Source::Local && it.allowed;
        let decision = decided(it, *at).filter(is_local)?;
        is_conditional(it.checks[*at].take).then_some(decision.charged)
    });
    granted.sum()
}
