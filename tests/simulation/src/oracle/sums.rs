//! Verifies the sums at the end of a run: the hits that the scripts have charged are those that answers report, that
//! processes have debited, or that they count as unknown.

use std::time::Duration;

use sluicegate_core::{
    Algorithm, Charge, OnFailure,
    store::{DecisionSource, RefusalScope},
};

use super::{Oracle, Violation, decided, is_conditional, is_over, is_refused, needs, span::Span};
use crate::{
    history::{Outcome, RequestRecord},
    world::{Delays, Effect},
};

/// The most calls that a request can wait for: calls may find no script or be redirected, and are repeated.
const CALLS_MAX: u32 = 6;

/// Whether a conditional charge of a check is refunded: the request or its descriptor is refused.
fn is_refunded(request: &RequestRecord, at: usize) -> bool {
    let Outcome::Decided(decisions) = &request.outcome else { return false };
    let allowed: Vec<bool> = decisions.iter().map(|it| it.allowed).collect();
    is_refused(&request.checks, &allowed)
        || is_over(&request.checks, &allowed, request.checks[at].descriptor)
}

/// Whether the charge of a check is final: nothing that happens after the decision makes or undoes it.
fn is_final(request: &RequestRecord, at: usize) -> bool {
    let (check, decision) = (&request.checks[at], decided(request, at));
    let Some(decision) = decision else { return false };
    match decision.source {
        DecisionSource::DenyCache => true,
        DecisionSource::Store => {
            !matches!(check.charge, Charge::Refund { .. })
                && (!is_conditional(check.charge) || !decision.allowed || !is_refunded(request, at))
        }
        DecisionSource::NotAsked
        | DecisionSource::LocalFallback
        | DecisionSource::FailurePolicy => false,
    }
}

impl Oracle<'_> {
    /// The scripts charge the hits that answers report, and debits. Hits that they charge beyond that are counted as
    /// unknown.
    pub(super) fn verify_sums(&mut self) {
        let mut missing = 0;
        for (number, counter) in self.history.counters.iter().enumerate() {
            let (mut least, mut most) = (0, 0);
            for request in &self.history.requests {
                for at in 0..request.checks.len() {
                    if request.checks[at].counter == number {
                        let (low, high) = self.charged(request, at);
                        least += low;
                        most += high;
                    }
                }
            }
            let charged = counter.sum(|it| it.charged - it.debited);
            // Hits that a reset or a failover has removed can no longer be refunded.
            let removed = counter.sum(|it| it.removed.max(0));
            // A refund without a receipt may reduce hits of a log that a multi-slot request has charged. If that
            // request is refused, it undoes fewer hits.
            let is_log = counter.limit.algorithm() == Algorithm::SlidingWindowLog;
            let refunded = |is_undo: bool| {
                let of_kind = |it: &Effect| if it.is_undo == is_undo { it.refunded } else { 0 };
                counter.sum(|it| i64::try_from(of_kind(it)).unwrap())
            };
            let not_undone = if is_log { refunded(true).min(refunded(false)) } else { 0 };
            missing += (charged - most - removed - not_undone).max(0);
            if charged < least {
                let what = format!(
                    "counter {number}: the scripts charged {charged} hits, answers report {least} to {most}"
                );
                self.found.push(Violation::of_run("counters equal the sum of the answers", what));
            }
            let stored = counter.sum(|it| it.charged - it.removed);
            if self.scenario.is_one_window && stored != counter.at_end {
                let what = format!(
                    "counter {number}: {stored} hits were charged and not removed, {} are stored",
                    counter.at_end
                );
                self.found.push(Violation::of_run("counters keep their charges", what));
            }
        }
        let unknown: u64 = self.history.end_states.iter().map(|it| it.hits_unknown).sum();
        if missing > i64::try_from(unknown).unwrap() {
            let what = format!(
                "{missing} hits are charged and not reported, {unknown} are counted as unknown"
            );
            self.found.push(Violation::of_run("missing hits are counted as unknown", what));
        }
    }

    /// Processes debit the hits that they have admitted by themselves, or count them as unknown or dropped.
    pub(super) fn verify_debits(&mut self) {
        let has_resets = (0..self.scenario.counters.len()).any(|it| self.scenario.resets(it));
        if !self.scenario.is_one_window || has_resets {
            return;
        }
        let (mut least, mut most) = (0, 0);
        for (process, end) in self.history.end_states.iter().enumerate() {
            let fallback = &end.fallback;
            let settled =
                fallback.debited + fallback.unknown + fallback.dropped + fallback.undebited;
            let (mut admitted, mut uncertain) = (0, 0);
            for request in self.history.requests.iter().filter(|it| it.process == process) {
                for (at, check) in request.checks.iter().enumerate() {
                    match decided(request, at) {
                        Some(it) if it.source == DecisionSource::LocalFallback && it.allowed => {
                            admitted += it.charged;
                        }
                        // The store may have charged it before the process refused.
                        Some(it) if it.source == DecisionSource::LocalFallback => {
                            uncertain += it.charged;
                        }
                        None if check.on_failure == OnFailure::Local => {
                            uncertain += check.charge.hits();
                        }
                        _ => {}
                    }
                }
            }
            if !(admitted..=admitted + uncertain).contains(&settled) {
                let what = format!(
                    "process {process}: {admitted} hits admitted by itself, {uncertain} uncertain, {fallback:?}"
                );
                self.found.push(Violation::of_run("local decisions are debited", what));
            }
            least += fallback.debited;
            most += fallback.debited + fallback.unknown;
        }
        let debited: i64 = self.history.counters.iter().map(|it| it.sum(|it| it.debited)).sum();
        if !(least..=most).contains(&u64::try_from(debited).unwrap_or(0)) {
            let what = format!("{debited} hits are debited, processes report {least} to {most}");
            self.found.push(Violation::of_run("local decisions are debited", what));
        }
    }

    /// The least and the most hits that a check has charged, without debits and hits that are counted as unknown.
    fn charged(&self, request: &RequestRecord, at: usize) -> (i64, i64) {
        let check = &request.checks[at];
        let hits = i64::try_from(check.charge.hits()).unwrap();
        let (low, high) = self.charged_without_expiry(request, at, hits);
        // In short windows, hits may have expired before they are refunded.
        let may_expire = !self.scenario.is_one_window && !is_final(request, at);
        match check.charge {
            Charge::Refund { .. } if may_expire => (low, 0),
            _ if may_expire => (low, hits),
            _ => (low, high),
        }
    }

    /// As [`charged`](Self::charged), if no hits expire.
    fn charged_without_expiry(&self, request: &RequestRecord, at: usize, hits: i64) -> (i64, i64) {
        let check = &request.checks[at];
        let conditional = is_conditional(check.charge);
        let decisions = match &request.outcome {
            Outcome::Decided(decisions) => decisions,
            // After a fault, it may be unknown what the request has charged.
            Outcome::Disconnected => {
                let is_refunded =
                    self.scenario.is_fault_free && conditional && self.must_be_refused(request);
                return (0, if is_refunded { 0 } else { hits });
            }
            Outcome::Deferred => return (0, if conditional { 0 } else { hits }),
        };
        let (decision, is_refunded) = (&decisions[at], is_refunded(request, at));
        match decision.source {
            DecisionSource::Store if matches!(check.charge, Charge::Refund { .. }) => {
                (-hits, -hits)
            }
            _ if matches!(check.charge, Charge::Refund { .. }) => (-hits, 0),
            DecisionSource::DenyCache => (0, 0),
            DecisionSource::NotAsked if self.scenario.is_fault_free => (0, 0),
            // A call that was not answered in time may have charged hits, which are not refunded.
            DecisionSource::FailurePolicy if decision.allowed && !is_refunded => (0, hits),
            // Charges that a late answer reports are refunded.
            DecisionSource::NotAsked
            | DecisionSource::LocalFallback
            | DecisionSource::FailurePolicy
                if conditional =>
            {
                (0, 0)
            }
            DecisionSource::NotAsked
            | DecisionSource::LocalFallback
            | DecisionSource::FailurePolicy => (0, hits),
            DecisionSource::Store if !conditional => (hits, hits),
            DecisionSource::Store if !decision.allowed || is_refunded => (0, 0),
            DecisionSource::Store => (hits, hits),
        }
    }

    /// Whether a request whose caller has disconnected cannot have been allowed: the hits of one of its checks, which
    /// refuses it alone, did not fit at any time.
    fn must_be_refused(&self, request: &RequestRecord) -> bool {
        let Delays { max, slow_max, .. } = self.scenario.delays;
        let call = Duration::from_millis(2 * max.max(slow_max));
        let span = Span {
            last_event: u64::MAX,
            ends: request.deadline.min(request.ended.1 + call * CALLS_MAX),
            ..Span::of(request)
        };
        request.checks.iter().any(|check| {
            let limit = self.limit(check);
            let capacity = u64::from(limit.capacity());
            let least = span.least(&self.history.counters[check.counter], &limit);
            let is_full = least + needs(check.charge) > capacity;
            check.scope == RefusalScope::Request && is_full
        })
    }
}
