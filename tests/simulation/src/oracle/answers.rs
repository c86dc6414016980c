//! Verifies the answers of a store in Redis: at some time between the request and its answer, the counter had a state
//! that explains the answer.

use std::time::Duration;

use sluicegate_core::{Charge, Decision, store::DecisionSource};

use super::{Oracle, is_conditional, needs, span::Span};
use crate::history::{Outcome, RequestRecord};

/// The longest lifetime of a refusal in the deny cache.
const CACHED_MAX: Duration = Duration::from_secs(1);

impl Oracle<'_> {
    /// Verifies the answers to one request.
    pub(super) fn verify_answers(&mut self, request: &RequestRecord) {
        let Outcome::Decided(decisions) = &request.outcome else { return };
        for (at, decision) in decisions.iter().enumerate() {
            match decision.source {
                DecisionSource::Store => {
                    self.verify_report(request, at, decisions);
                    if decision.allowed {
                        self.admission(request, at, decisions);
                    } else {
                        self.refusal(request, at, decisions);
                    }
                }
                DecisionSource::DenyCache => self.cached_refusal(request, at),
                DecisionSource::NotAsked
                | DecisionSource::LocalFallback
                | DecisionSource::FailurePolicy => {}
            }
        }
    }

    /// The least and the most hits that earlier checks of the request had charged to a check's counter when it was
    /// decided.
    fn charged_before(
        &self,
        request: &RequestRecord,
        at: usize,
        decisions: &[Decision],
    ) -> (u64, u64) {
        let counter = request.checks[at].counter;
        // Each slot is settled by itself, and there a descriptor is over its limit if the store refuses one of its
        // checks on that slot. During an outage, a process may itself refuse what the store has allowed and charged.
        let is_over_on_slot = |descriptor: usize| {
            request.checks.iter().zip(decisions).any(|(it, decision)| {
                it.descriptor == descriptor
                    && !decision.allowed
                    && decision.source == DecisionSource::Store
                    && self.scenario.are_on_one_slot(it.counter, counter)
            })
        };
        let (mut least, mut most) = (0, 0);
        for (check, decision) in request.checks[..at].iter().zip(decisions) {
            // The charges of a descriptor that is over its limit are undone before the next one is decided.
            let is_undone = is_conditional(check.charge)
                && check.descriptor != request.checks[at].descriptor
                && is_over_on_slot(check.descriptor);
            if check.counter != counter || is_undone {
                continue;
            }
            let hits = check.charge.hits();
            let (low, high) = match (decision.source, check.charge) {
                (DecisionSource::LocalFallback, Charge::Always { .. } | Charge::IfAllowed(_)) => {
                    (0, hits)
                }
                (DecisionSource::Store, Charge::Always { .. }) => (hits, hits),
                (DecisionSource::Store, Charge::IfAllowed(_)) if decision.allowed => (hits, hits),
                _ => (0, 0),
            };
            least += low;
            most += high;
        }
        (least, most)
    }

    /// An answer reports the remaining hits, and the hits beyond the limit, that the counter had at some time.
    fn verify_report(&mut self, request: &RequestRecord, at: usize, decisions: &[Decision]) {
        let (check, decision) = (&request.checks[at], &decisions[at]);
        let limit = self.limit(check);
        let counter = &self.history.counters[check.counter];
        let (least, most) =
            (Span::of(request).least(counter, &limit), Span::of(request).most(counter, &limit));
        // An unconditional charge is reported before the charges of a refused request are undone.
        let most = match check.charge {
            Charge::Always { .. } => most + self.charged_before(request, at, decisions).1,
            _ => most,
        };
        let used =
            (u64::from(limit.capacity()) + decision.excess).saturating_sub(decision.remaining);
        if !(least..=most).contains(&used) || decision.remaining > u64::from(limit.capacity()) {
            let what = format!(
                "check {at}: {} hits reported as remaining and {} beyond {}, where {least} to {most} are used",
                decision.remaining,
                decision.excess,
                limit.capacity()
            );
            self.add("answers report their counters", Some(request.action), what);
        }
    }

    /// Nothing is admitted past a limit: at some time the hits did fit.
    fn admission(&mut self, request: &RequestRecord, at: usize, decisions: &[Decision]) {
        let (check, charged) = (&request.checks[at], decisions[at].charged);
        let limit = self.limit(check);
        let (before, _) = self.charged_before(request, at, decisions);
        let least = Span::of(request).least(&self.history.counters[check.counter], &limit);
        let charged = if is_conditional(check.charge) { charged } else { 0 };
        let needs = needs(check.charge).max(charged);
        if needs > 0 && least + before + needs > u64::from(limit.capacity()) {
            let what = format!(
                "check {at}: {needs} hits pass where at least {least} of {} are used, and {before} by checks before it",
                limit.capacity()
            );
            self.add("nothing is admitted past a limit", Some(request.action), what);
        }
    }

    /// A refusal has a reason: at some time the hits did not fit.
    fn refusal(&mut self, request: &RequestRecord, at: usize, decisions: &[Decision]) {
        let check = &request.checks[at];
        let limit = self.limit(check);
        let most = Span::of(request).most(&self.history.counters[check.counter], &limit);
        let (_, before) = self.charged_before(request, at, decisions);
        self.verify_refusal(request, at, most, before);
    }

    /// A refusal by the deny cache has a reason: the hits did not fit at some time since the last refund or reset that
    /// the process knows of, and within the lifetime of the entry.
    fn cached_refusal(&mut self, request: &RequestRecord, at: usize) {
        let check = &request.checks[at];
        let limit = self.limit(check);
        let invalidations = self.history.invalidations.iter().filter(|it| {
            it.process == request.process
                && it.counter.is_none_or(|counter| counter == check.counter)
                && it.ended.0 < request.began.0
                // A reply may have arrived without having been read. Until the process has read all replies to its
                // calls, an undone charge may be missing in its deny cache.
                && (!it.is_undo || it.ended.1 < request.began.1 && request.had_no_refunds_or_late_calls)
        });
        let span = Span {
            first_event: invalidations.map(|it| it.ended.0).max().unwrap_or(0),
            begins: request.began.1.saturating_sub(CACHED_MAX),
            observed_from: request.began.1,
            ..Span::of(request)
        };
        let most = span.most(&self.history.counters[check.counter], &limit);
        self.verify_refusal(request, at, most, 0);
        if self.scenario.deny_cache_entries == 0 {
            let what = format!("check {at}: refused by the deny cache, which is disabled");
            self.add("refusals have a reason", Some(request.action), what);
        }
    }

    /// Adds a violation if the hits of a refused check did fit: `most` were used, and `before` by earlier checks.
    fn verify_refusal(&mut self, request: &RequestRecord, at: usize, most: u64, before: u64) {
        let check = &request.checks[at];
        let capacity = u64::from(self.limit(check).capacity());
        let needs = needs(check.charge);
        if most + before + needs <= capacity {
            let what = format!(
                "check {at}: {needs} hits refused where at most {most} of {capacity} are used, and {before} by checks before it"
            );
            self.add("refusals have a reason", Some(request.action), what);
        }
    }
}
