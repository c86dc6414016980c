//! The sums at the end: what the scripts have charged is what callers were told, what processes debited, and what they count
//! as unknown.

use std::time::Duration;

use sluicegate_core::{
    Algorithm, Charge, OnFailure,
    store::{RefusalScope, Source},
};

use super::{Judge, Violation, decided, is_conditional, is_over, is_refused, needs, span::Span};
use crate::{
    history::{Outcome, RequestRecord},
    world::{Delays, Effect},
};

/// Calls that a request waits for at most: one finds no script, one is redirected.
const CALLS_MAX: u32 = 6;

/// Whether what a check takes on condition is refunded.
fn is_free(request: &RequestRecord, at: usize) -> bool {
    let Outcome::Decided(decisions) = &request.outcome else { return false };
    let allowed: Vec<bool> = decisions.iter().map(|it| it.allowed).collect();
    is_refused(&request.checks, &allowed)
        || is_over(&request.checks, &allowed, request.checks[at].descriptor)
}

/// Whether a check was charged, or was not, for good.
fn is_certain(request: &RequestRecord, at: usize) -> bool {
    let (check, decision) = (&request.checks[at], decided(request, at));
    let Some(decision) = decision else { return false };
    match decision.source {
        Source::DenyCache => true,
        Source::Store => {
            !matches!(check.take, Charge::Refund { .. })
                && (!is_conditional(check.take) || !decision.allowed || !is_free(request, at))
        }
        Source::NotAsked | Source::Local | Source::Policy => false,
    }
}

impl Judge<'_> {
    /// What the scripts have charged, without debits, is what callers were told. What is charged beyond it is counted as
    /// unknown.
    pub(super) fn sums(&mut self) {
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
            // What a reset or a failover has removed can no longer be refunded.
            let removed = counter.sum(|it| it.removed.max(0));
            // A refund may take hits of a log that another request holds: when that is refused, it has fewer to undo.
            let is_log = counter.limit.algorithm() == Algorithm::SlidingWindowLog;
            let refunded = |undoes: bool| {
                let of_kind = |it: &Effect| if it.undoes == undoes { it.refunded } else { 0 };
                counter.sum(|it| i64::try_from(of_kind(it)).unwrap())
            };
            let held = if is_log { refunded(true).min(refunded(false)) } else { 0 };
            missing += (charged - most - removed - held).max(0);
            if charged < least {
                let what = format!(
                    "counter {number}: the scripts charged {charged} hits, answers say {least} to {most}"
                );
                self.found
                    .push(Violation::of_run("counters are the sum of what was answered", what));
            }
            let stored = counter.sum(|it| it.charged - it.removed);
            if self.scenario.is_exact && stored != counter.at_end {
                let what = format!(
                    "counter {number}: {stored} hits were charged and not removed, {} are stored",
                    counter.at_end
                );
                self.found.push(Violation::of_run("counters keep what they are charged", what));
            }
        }
        let unknown: u64 = self.history.rest.iter().map(|it| it.hits_unknown).sum();
        if missing > i64::try_from(unknown).unwrap() {
            let what = format!(
                "{missing} hits are charged and told to no caller, {unknown} counted as unknown"
            );
            self.found.push(Violation::of_run("missing hits are counted as unknown", what));
        }
    }

    /// What processes admitted by themselves, they debit or count as unknown.
    pub(super) fn debits(&mut self) {
        let has_resets = (0..self.scenario.counters.len()).any(|it| self.scenario.resets(it));
        if !self.scenario.is_exact || has_resets {
            return;
        }
        let (mut least, mut most) = (0, 0);
        for (process, rest) in self.history.rest.iter().enumerate() {
            let fallback = &rest.fallback;
            let settled = fallback.debited + fallback.unknown + fallback.dropped + fallback.owed;
            let (mut admitted, mut open) = (0, 0);
            for request in self.history.requests.iter().filter(|it| it.process == process) {
                for (at, check) in request.checks.iter().enumerate() {
                    match decided(request, at) {
                        Some(it) if it.source == Source::Local && it.allowed => {
                            admitted += it.charged;
                        }
                        // Charged by the store before the process refused.
                        Some(it) if it.source == Source::Local => open += it.charged,
                        None if check.on_failure == OnFailure::Local => open += check.take.hits(),
                        _ => {}
                    }
                }
            }
            if !(admitted..=admitted + open).contains(&settled) {
                let what = format!(
                    "process {process}: {admitted} hits admitted by itself, {fallback:?} and {open} open"
                );
                self.found.push(Violation::of_run("local decisions are debited", what));
            }
            least += fallback.debited;
            most += fallback.debited + fallback.unknown;
        }
        let debited: i64 = self.history.counters.iter().map(|it| it.sum(|it| it.debited)).sum();
        if !(least..=most).contains(&u64::try_from(debited).unwrap_or(0)) {
            let what = format!("{debited} hits are debited, processes say {least} to {most}");
            self.found.push(Violation::of_run("local decisions are debited", what));
        }
    }

    /// The hits that a check has charged, at least and at most, beside what is debited or counted as unknown.
    fn charged(&self, request: &RequestRecord, at: usize) -> (i64, i64) {
        let check = &request.checks[at];
        let hits = i64::try_from(check.take.hits()).unwrap();
        let (low, high) = self.charged_in_time(request, at, hits);
        // In short windows, what was charged and is refunded may have expired before.
        let may_expire = !self.scenario.is_exact && !is_certain(request, at);
        match check.take {
            Charge::Refund { .. } if may_expire => (low, 0),
            _ if may_expire => (low, hits),
            _ => (low, high),
        }
    }

    fn charged_in_time(&self, request: &RequestRecord, at: usize, hits: i64) -> (i64, i64) {
        let check = &request.checks[at];
        let conditional = is_conditional(check.take);
        let decisions = match &request.outcome {
            Outcome::Decided(decisions) => decisions,
            // Where something failed, what a request has charged may be unknown.
            Outcome::Left => {
                let is_free = self.scenario.is_calm && conditional && self.must_be_refused(request);
                return (0, if is_free { 0 } else { hits });
            }
            Outcome::Deferred => return (0, if conditional { 0 } else { hits }),
        };
        let (decision, is_free) = (&decisions[at], is_free(request, at));
        match decision.source {
            Source::Store if matches!(check.take, Charge::Refund { .. }) => (-hits, -hits),
            _ if matches!(check.take, Charge::Refund { .. }) => (-hits, 0),
            Source::DenyCache => (0, 0),
            Source::NotAsked if self.scenario.is_calm => (0, 0),
            // A call without an answer in time may have charged, and stays charged.
            Source::Policy if decision.allowed && !is_free => (0, hits),
            // What a late answer says to be charged is refunded.
            Source::NotAsked | Source::Local | Source::Policy if conditional => (0, 0),
            Source::NotAsked | Source::Local | Source::Policy => (0, hits),
            Source::Store if !conditional => (hits, hits),
            Source::Store if !decision.allowed || is_free => (0, 0),
            Source::Store => (hits, hits),
        }
    }

    /// Whether a request whose caller has left cannot have been admitted: one of its checks, which may refuse alone, had
    /// no room at any moment.
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
            let is_full = least + needs(check.take) > capacity;
            check.scope == RefusalScope::Request && is_full
        })
    }
}
