//! Takes in what was answered: which hits were charged, and which requests were refused.

use sluicegate_core::{Counting, store::RefusalScope};

use super::{
    Findings, Verifier,
    bound::{Charge, Micros, Span},
    planned::{MatchedDescriptor, PlannedRequest},
    refusals::{Claim, Refusal},
};
use crate::load::history::{DescriptorAnswer, History, Outcome, Record};

/// How long after an error the hits of its request may still be charged.
const LATE_CHARGE: Micros = 10_000_000;

/// How long after a refusal what its request held for a moment may still refuse others: a request with several limits may
/// be charged for one of them until another one has refused and the hits are given back, within a second, and a server
/// may remember the refusals of that second for one more.
const HELD: Micros = 2_000_000;

/// What became of a request's hits of one descriptor.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Charged {
    /// They were charged, and admitted.
    Admitted,
    /// They may have been charged.
    Possibly,
    /// They may have been charged, and were given back.
    Held,
    /// They were not charged.
    No,
}

/// What an answer says about one descriptor.
#[derive(Clone, Copy)]
struct DescriptorOutcome<'h> {
    /// `None` without a status.
    status: Option<&'h DescriptorAnswer>,
    /// Whether the request was allowed.
    is_allowed: bool,
    /// Whether refusals of descriptors refuse the request.
    is_vetoed: bool,
}

impl DescriptorOutcome<'_> {
    fn charged(self, met: &MatchedDescriptor, shape: &PlannedRequest) -> Charged {
        let Self { status, is_allowed, is_vetoed } = self;
        let given_back = if shape.has_one_limit { Charged::No } else { Charged::Held };
        let Some(DescriptorAnswer { over, .. }) = status else {
            return match met.counting {
                // It refused nothing, and would have refused the request.
                _ if is_allowed && met.scope == RefusalScope::Request => Charged::Admitted,
                Counting::Free if !is_allowed => given_back,
                Counting::Free | Counting::Debit | Counting::Upstream => Charged::Possibly,
            };
        };
        // A request that passes although it is refused has used what it was refused, whatever the server says.
        let passes_refused = is_allowed && is_vetoed;
        match met.counting {
            _ if passes_refused => Charged::Admitted,
            Counting::Free if *over => Charged::No,
            Counting::Free if is_allowed => Charged::Admitted,
            // Another limit refused.
            Counting::Free => given_back,
            Counting::Debit | Counting::Upstream if *over => Charged::Possibly,
            Counting::Debit | Counting::Upstream => Charged::Admitted,
        }
    }
}

impl Findings {
    /// Takes in a request and its answer.
    pub(super) fn add(
        &mut self,
        verifier: &Verifier<'_>,
        record: &Record,
        history: &History,
        shape: &PlannedRequest,
    ) {
        let hits = verifier.hits();
        let tolerance = verifier.tolerance;
        let span = Span { from: record.sent - tolerance, to: record.answered + tolerance };
        match &record.outcome {
            Outcome::Failed => self.add_unanswered(span, hits, shape),
            Outcome::Answered { allowed, statuses } => {
                // A proxy or an overloaded server may answer without statuses.
                let statuses = (statuses.len() == shape.met.len()).then_some(&statuses[..]);
                self.add_answered((record.draw, shape), span, hits, *allowed, statuses, history);
            }
        }
    }

    fn add_unanswered(&mut self, span: Span, hits: i64, shape: &PlannedRequest) {
        let late = Span { to: span.to + LATE_CHARGE, ..span };
        for met in &shape.met {
            self.count(met, |row| row.errors += 1);
            for limit in &met.limits {
                if let Some(counter) = self.counters.get_mut(limit.counter) {
                    counter.asked(span, !shape.has_one_limit);
                    counter.unanswered.push(Charge { span: late, hits, window_ends: None });
                }
            }
        }
    }

    fn add_answered(
        &mut self,
        (draw, shape): (usize, &PlannedRequest),
        span: Span,
        hits: i64,
        is_allowed: bool,
        statuses: Option<&[DescriptorAnswer]>,
        history: &History,
    ) {
        let status = |at: usize| statuses.and_then(|statuses| statuses.get(at));
        let over = |at: usize| status(at).is_some_and(|status| status.over);
        let is_vetoed = shape.is_vetoed(over);
        let mut claims = Vec::new();
        for (at, met) in shape.met.iter().enumerate() {
            self.count(met, |row| row.allowed += u64::from(is_allowed));
            let outcome = DescriptorOutcome { status: status(at), is_allowed, is_vetoed };
            let charged = outcome.charged(met, shape);
            let shown = status(at).and_then(|status| {
                let limit = history.limit(status.limit?)?;
                Some((met.shown_limit(limit)?, status, limit.requests_per_unit))
            });
            let mut window_ends = None;
            if let Some((limit, status, requests)) = shown {
                window_ends = self.add_shown(met, limit, status, requests, (span, hits), charged);
            }
            let shown = shown.map(|(limit, ..)| limit);
            for (position, limit) in met.limits.iter().enumerate() {
                let Some(counter) = self.counters.get_mut(limit.counter) else { continue };
                counter.asked(span, !shape.has_one_limit);
                // Of several limits the answer shows one.
                let is_shown = shown == Some(position);
                let window_ends = window_ends.filter(|_| is_shown);
                let charge = Charge { span, hits, window_ends };
                let held = Charge { span: Span { to: span.to + HELD, ..span }, ..charge };
                match charged {
                    Charged::Admitted => {
                        counter.admitted.push(charge);
                        self.rows.update(limit.row, |row| row.admitted += hits);
                    }
                    Charged::Possibly => counter.possible.push(charge),
                    Charged::Held => counter.held.push(held),
                    // Until the limit that is shown refused.
                    Charged::No if !is_allowed && shown.is_some() && !is_shown => {
                        counter.held.push(held);
                    }
                    Charged::No => {}
                }
            }
            let is_claim = match status(at) {
                Some(status) => status.over && (!is_allowed || !met.limits.is_empty()),
                None => !is_allowed,
            };
            if is_claim {
                let own = if charged == Charged::No { 0 } else { hits };
                claims.push(Claim { descriptor: at, limit: shown, own });
            }
        }
        if is_allowed && claims.is_empty() {
            return;
        }
        let has_statuses = statuses.is_some();
        let unnamed =
            if is_allowed { None } else { self.unnamed(shape, is_vetoed, has_statuses, &claims) };
        let refusal = Refusal { span, draw, is_allowed, unnamed, claims };
        self.refused(shape, refusal, has_statuses);
    }

    /// Learns from the status that shows a limit. Returns where the window ends in which the hits were charged, if it says.
    fn add_shown(
        &mut self,
        met: &MatchedDescriptor,
        limit: usize,
        status: &DescriptorAnswer,
        requests: u32,
        (span, hits): (Span, i64),
        charged: Charged,
    ) -> Option<Span> {
        let limit = met.limits.get(limit)?;
        if requests != limit.requests_per_unit {
            self.rows.update(limit.row, |row| row.server_requests = Some(requests));
        }
        let more = i64::from(requests) - i64::from(limit.requests_per_unit);
        let own = match charged {
            Charged::Admitted | Charged::Possibly => hits,
            Charged::Held | Charged::No => 0,
        };
        let is_admitted = charged == Charged::Admitted;
        self.counters.get_mut(limit.counter)?.answered(span, status, more, own, is_admitted)
    }
}
