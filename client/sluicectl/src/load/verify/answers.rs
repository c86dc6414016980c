//! Interprets the answers: which hits were charged, and which requests were refused.

use sluicegate_core::{Counting, store::RefusalScope};

use super::{
    VerificationState, Verifier,
    bound::{Charge, Micros, Span},
    planned::{MatchedDescriptor, PlannedRequest},
    refusals::{OverLimitDescriptor, Refusal},
};
use crate::load::history::{DescriptorAnswer, History, Outcome, Record};

/// Time after an error in which the hits of its request may still be charged.
const LATE_CHARGE: Micros = 10_000_000;

/// Time after a refusal in which a temporary charge of its request may refuse others: a request with several limits may
/// be charged to one of them until another one refuses and the hits are refunded, within a second, and a server may
/// cache the refusals of that second for another second.
const TEMPORARY_CHARGE: Micros = 2_000_000;

/// Whether the hits of a request were charged to one descriptor.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Charged {
    /// Charged, and admitted.
    Admitted,
    /// Possibly charged.
    Possibly,
    /// Possibly charged, and then refunded.
    Temporarily,
    /// Not charged.
    No,
}

/// The answer about one descriptor.
#[derive(Clone, Copy)]
struct DescriptorOutcome<'h> {
    /// `None` without a status.
    status: Option<&'h DescriptorAnswer>,
    /// Whether the request was allowed.
    is_allowed: bool,
    /// Whether the statuses of the descriptors together refuse the request.
    should_refuse: bool,
}

impl DescriptorOutcome<'_> {
    fn charged(self, matched: &MatchedDescriptor, planned: &PlannedRequest) -> Charged {
        let Self { status, is_allowed, should_refuse } = self;
        let refunded = if planned.has_one_limit { Charged::No } else { Charged::Temporarily };
        let Some(DescriptorAnswer { over, .. }) = status else {
            return match matched.counting {
                // The descriptor did not refuse, because its refusal would have refused the request.
                _ if is_allowed && matched.scope == RefusalScope::Request => Charged::Admitted,
                Counting::Free if !is_allowed => refunded,
                Counting::Free | Counting::Debit | Counting::Upstream => Charged::Possibly,
            };
        };
        // If a request is allowed although its statuses together refuse it, its hits were admitted, whatever the
        // statuses report.
        let is_wrongly_allowed = is_allowed && should_refuse;
        match matched.counting {
            _ if is_wrongly_allowed => Charged::Admitted,
            Counting::Free if *over => Charged::No,
            Counting::Free if is_allowed => Charged::Admitted,
            // Another limit refused.
            Counting::Free => refunded,
            Counting::Debit | Counting::Upstream if *over => Charged::Possibly,
            Counting::Debit | Counting::Upstream => Charged::Admitted,
        }
    }
}

impl VerificationState {
    /// Adds a request and its answer.
    pub(super) fn add(
        &mut self,
        verifier: &Verifier<'_>,
        record: &Record,
        history: &History,
        planned: &PlannedRequest,
    ) {
        let hits = verifier.hits();
        let tolerance = verifier.tolerance;
        let span = Span { from: record.sent - tolerance, to: record.answered + tolerance };
        match &record.outcome {
            Outcome::Failed => self.add_unanswered(span, hits, planned),
            Outcome::Answered { allowed, statuses } => {
                // A proxy or an overloaded server may answer without statuses.
                let statuses =
                    (statuses.len() == planned.descriptors.len()).then_some(&statuses[..]);
                self.add_answered((record.draw, planned), span, hits, *allowed, statuses, history);
            }
        }
    }

    fn add_unanswered(&mut self, span: Span, hits: i64, planned: &PlannedRequest) {
        let late = Span { to: span.to + LATE_CHARGE, ..span };
        for matched in &planned.descriptors {
            self.count(matched, |row| row.errors += 1);
            for limit in &matched.limits {
                if let Some(counter) = self.counters.get_mut(limit.counter) {
                    counter.record_request(span, !planned.has_one_limit);
                    counter.unanswered.push(Charge { span: late, hits, window_ends: None });
                }
            }
        }
    }

    fn add_answered(
        &mut self,
        (draw, planned): (usize, &PlannedRequest),
        span: Span,
        hits: i64,
        is_allowed: bool,
        statuses: Option<&[DescriptorAnswer]>,
        history: &History,
    ) {
        let status = |at: usize| statuses.and_then(|statuses| statuses.get(at));
        let over = |at: usize| status(at).is_some_and(|status| status.over);
        let should_refuse = planned.should_refuse(over);
        let mut over_limit = Vec::new();
        for (at, matched) in planned.descriptors.iter().enumerate() {
            self.count(matched, |row| row.allowed += u64::from(is_allowed));
            let outcome = DescriptorOutcome { status: status(at), is_allowed, should_refuse };
            let charged = outcome.charged(matched, planned);
            let shown = status(at).and_then(|status| {
                let limit = history.limit(status.limit?)?;
                Some((matched.shown_limit(limit)?, status, limit.requests_per_unit))
            });
            let mut window_ends = None;
            if let Some((limit, status, requests)) = shown {
                window_ends =
                    self.add_shown(matched, limit, status, requests, (span, hits), charged);
            }
            let shown = shown.map(|(limit, ..)| limit);
            for (position, limit) in matched.limits.iter().enumerate() {
                let Some(counter) = self.counters.get_mut(limit.counter) else { continue };
                counter.record_request(span, !planned.has_one_limit);
                // The answer shows one of several limits.
                let is_shown = shown == Some(position);
                let window_ends = window_ends.filter(|_| is_shown);
                let charge = Charge { span, hits, window_ends };
                let temporary =
                    Charge { span: Span { to: span.to + TEMPORARY_CHARGE, ..span }, ..charge };
                match charged {
                    Charged::Admitted => {
                        counter.admitted.push(charge);
                        self.rows.update(limit.row, |row| row.admitted += hits);
                    }
                    Charged::Possibly => counter.possible.push(charge),
                    Charged::Temporarily => counter.temporary.push(temporary),
                    // Charged until the shown limit refused.
                    Charged::No if !is_allowed && shown.is_some() && !is_shown => {
                        counter.temporary.push(temporary);
                    }
                    Charged::No => {}
                }
            }
            let is_claim = match status(at) {
                Some(status) => status.over && (!is_allowed || !matched.limits.is_empty()),
                None => !is_allowed,
            };
            if is_claim {
                let own = if charged == Charged::No { 0 } else { hits };
                over_limit.push(OverLimitDescriptor { descriptor: at, limit: shown, own });
            }
        }
        if is_allowed && over_limit.is_empty() {
            return;
        }
        let has_statuses = statuses.is_some();
        let unattributed = if is_allowed {
            None
        } else {
            self.unattributed(planned, should_refuse, has_statuses, &over_limit)
        };
        let refusal = Refusal { span, draw, is_allowed, unattributed, over_limit };
        self.refused(planned, refusal, has_statuses);
    }

    /// Adds a status that shows a limit. Returns the end of the window that the hits were charged to, if the status
    /// shows it.
    fn add_shown(
        &mut self,
        matched: &MatchedDescriptor,
        limit: usize,
        status: &DescriptorAnswer,
        requests: u32,
        (span, hits): (Span, i64),
        charged: Charged,
    ) -> Option<Span> {
        let limit = matched.limits.get(limit)?;
        if requests != limit.requests_per_unit {
            self.rows.update(limit.row, |row| row.server_requests_per_unit = Some(requests));
        }
        let extra_requests = i64::from(requests) - i64::from(limit.requests_per_unit);
        let own = match charged {
            Charged::Admitted | Charged::Possibly => hits,
            Charged::Temporarily | Charged::No => 0,
        };
        let is_admitted = charged == Charged::Admitted;
        self.counters.get_mut(limit.counter)?.record_answer(
            span,
            status,
            extra_requests,
            own,
            is_admitted,
        )
    }
}
