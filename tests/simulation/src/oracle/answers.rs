//! What the store answered: each answer is explained by the counter at some moment between question and answer.

use std::time::Duration;

use sluicegate_core::{Charge, Decision, store::Source};

use super::{Judge, is_conditional, needs, span::Span};
use crate::history::{Outcome, RequestRecord};

/// How long a refusal may be remembered.
const REMEMBERED: Duration = Duration::from_secs(1);

impl Judge<'_> {
    /// The answers to one request of a store in Redis.
    pub(super) fn answers(&mut self, request: &RequestRecord) {
        let Outcome::Decided(decisions) = &request.outcome else { return };
        for (at, decision) in decisions.iter().enumerate() {
            match decision.source {
                Source::Store => {
                    self.reported(request, at, decisions);
                    if decision.allowed {
                        self.admission(request, at, decisions);
                    } else {
                        self.refusal(request, at, decisions);
                    }
                }
                Source::DenyCache => self.remembered(request, at),
                Source::NotAsked | Source::Local | Source::Policy => {}
            }
        }
    }

    /// The least and the most hits that the checks before one had charged on its counter when it was asked.
    fn charged_before(
        &self,
        request: &RequestRecord,
        at: usize,
        decisions: &[Decision],
    ) -> (u64, u64) {
        let counter = request.checks[at].counter;
        // Each slot is settled by itself: there a descriptor is over if the store allows one of its checks there not. After
        // an outage, a process may refuse by itself what the store has allowed and charged.
        let is_over_there = |descriptor: usize| {
            request.checks.iter().zip(decisions).any(|(it, decision)| {
                it.descriptor == descriptor
                    && !decision.allowed
                    && decision.source == Source::Store
                    && self.scenario.is_on_one_slot(it.counter, counter)
            })
        };
        let (mut least, mut most) = (0, 0);
        for (check, decision) in request.checks[..at].iter().zip(decisions) {
            // A descriptor that is over is undone before the next one is asked.
            let is_undone = is_conditional(check.take)
                && check.descriptor != request.checks[at].descriptor
                && is_over_there(check.descriptor);
            if check.counter != counter || is_undone {
                continue;
            }
            let hits = check.take.hits();
            let (low, high) = match (decision.source, check.take) {
                (Source::Local, Charge::Always { .. } | Charge::Exactly(_)) => (0, hits),
                (Source::Store, Charge::Always { .. }) => (hits, hits),
                (Source::Store, Charge::Exactly(_)) if decision.allowed => (hits, hits),
                _ => (0, 0),
            };
            least += low;
            most += high;
        }
        (least, most)
    }

    /// What an answer reports of the counter was true.
    fn reported(&mut self, request: &RequestRecord, at: usize, decisions: &[Decision]) {
        let (check, decision) = (&request.checks[at], &decisions[at]);
        let limit = self.limit(check);
        let counter = &self.history.counters[check.counter];
        let (least, most) =
            (Span::of(request).least(counter, &limit), Span::of(request).most(counter, &limit));
        // What is charged unconditionally is described before charges of a refused request are undone.
        let most = match check.take {
            Charge::Always { .. } => most + self.charged_before(request, at, decisions).1,
            _ => most,
        };
        let used =
            (u64::from(limit.capacity()) + decision.excess).saturating_sub(decision.remaining);
        if !(least..=most).contains(&used) || decision.remaining > u64::from(limit.capacity()) {
            let what = format!(
                "check {at}: {} hits reported as left and {} beyond {}, where {least} to {most} are used",
                decision.remaining,
                decision.excess,
                limit.capacity()
            );
            self.add("answers report their counters", Some(request.action), what);
        }
    }

    /// Nothing is admitted past a limit: there was room at some moment.
    fn admission(&mut self, request: &RequestRecord, at: usize, decisions: &[Decision]) {
        let (check, granted) = (&request.checks[at], decisions[at].charged);
        let limit = self.limit(check);
        let (before, _) = self.charged_before(request, at, decisions);
        let least = Span::of(request).least(&self.history.counters[check.counter], &limit);
        let granted = if is_conditional(check.take) { granted } else { 0 };
        let needs = needs(check.take).max(granted);
        if needs > 0 && least + before + needs > u64::from(limit.capacity()) {
            let what = format!(
                "check {at}: {needs} hits pass where at least {least} of {} are used, and {before} by checks before it",
                limit.capacity()
            );
            self.add("nothing is admitted past a limit", Some(request.action), what);
        }
    }

    /// Every refusal has a reason at some moment.
    fn refusal(&mut self, request: &RequestRecord, at: usize, decisions: &[Decision]) {
        let check = &request.checks[at];
        let limit = self.limit(check);
        let most = Span::of(request).most(&self.history.counters[check.counter], &limit);
        let (_, before) = self.charged_before(request, at, decisions);
        self.explain(request, at, most, before);
    }

    /// A refusal that was remembered has a reason since the process last heard of hits that came back, and not long ago.
    fn remembered(&mut self, request: &RequestRecord, at: usize) {
        let check = &request.checks[at];
        let limit = self.limit(check);
        let known = self.history.invalidations.iter().filter(|it| {
            it.process == request.process
                && it.counter.is_none_or(|counter| counter == check.counter)
                && it.ended.0 < request.began.0
                // A reply is read after it has arrived, and the process still refunds until it has read all replies to a call.
                && (!it.is_undo || it.ended.1 < request.began.1 && request.was_settled)
        });
        let span = Span {
            first_event: known.map(|it| it.ended.0).max().unwrap_or(0),
            begins: request.began.1.saturating_sub(REMEMBERED),
            looked_at: request.began.1,
            ..Span::of(request)
        };
        let most = span.most(&self.history.counters[check.counter], &limit);
        self.explain(request, at, most, 0);
        if self.scenario.deny_cache_entries == 0 {
            let what = format!("check {at}: nothing is remembered");
            self.add("refusals have a reason", Some(request.action), what);
        }
    }

    fn explain(&mut self, request: &RequestRecord, at: usize, most: u64, before: u64) {
        let check = &request.checks[at];
        let capacity = u64::from(self.limit(check).capacity());
        let needs = needs(check.take);
        if most + before + needs <= capacity {
            let what = format!(
                "check {at}: {needs} hits refused where at most {most} of {capacity} are used, and {before} by checks before it"
            );
            self.add("refusals have a reason", Some(request.action), what);
        }
    }
}
