//! Judges refusals: whether a limit may have been reached, and how many of the unexplained hits an exact limiter would
//! have admitted.

use sluicegate_core::{Counting, store::RefusalScope};

use super::{
    VerificationState, Verified, Verifier,
    bound::{Charge, Span},
    counter::{ExplainingHits, Explanation},
    planned::{MatchedDescriptor, PlannedRequest},
    rows::LimitRows,
};

/// The row of refusals without statuses.
const WITHOUT_STATUSES: &str = "refused without a status for each descriptor";

/// The row of refusals whose statuses refuse nothing.
const WITHOUT_REASON: &str = "refused, though no descriptor was over its limit";

/// A refused request, or an allowed one with quota rules over their limits.
pub(super) struct Refusal {
    pub(super) span: Span,
    /// Index of the request's draw.
    pub(super) draw: usize,
    pub(super) is_allowed: bool,
    /// The row, if the answer does not show which limit refused.
    pub(super) unattributed: Option<usize>,
    /// The descriptors that are over their limits; without statuses, all of them.
    pub(super) over_limit: Vec<OverLimitDescriptor>,
}

/// A descriptor that is over its limit according to its status, or that may be.
pub(super) struct OverLimitDescriptor {
    pub(super) descriptor: usize,
    /// Index of the limit that the status shows, if it is known.
    pub(super) limit: Option<usize>,
    /// Hits that the request itself may have charged.
    pub(super) own: i64,
}

impl OverLimitDescriptor {
    /// Counters of the limits that may have refused.
    fn counters(&self, matched: &MatchedDescriptor) -> impl Iterator<Item = usize> {
        let limits = matched.limits.iter().enumerate();
        let shown = limits.filter(|(at, _)| self.limit.is_none_or(|shown| shown == *at));
        shown.map(|(_, limit)| limit.counter)
    }

    fn row(&self, matched: &MatchedDescriptor) -> usize {
        matched.limits.get(self.limit.unwrap_or(0)).map_or(matched.row, |limit| limit.row)
    }
}

impl VerificationState {
    /// The row of a refusal whose answer does not show which limit refused.
    pub(super) fn unattributed(
        &mut self,
        planned: &PlannedRequest,
        should_refuse: bool,
        has_statuses: bool,
        over_limit: &[OverLimitDescriptor],
    ) -> Option<usize> {
        let is_over = |over: &OverLimitDescriptor| {
            planned
                .descriptors
                .get(over.descriptor)
                .is_some_and(|matched| matched.limits.is_empty())
        };
        let text = match has_statuses {
            true if should_refuse || over_limit.iter().any(is_over) => return None,
            true => WITHOUT_REASON,
            false => WITHOUT_STATUSES,
        };
        let row = self.rows.position(None, text.to_owned());
        self.rows.update(row, |row| {
            row.requests += 1;
            row.refused += 1;
        });
        Some(row)
    }

    /// Adds a refusal.
    pub(super) fn refused(
        &mut self,
        planned: &PlannedRequest,
        refusal: Refusal,
        has_statuses: bool,
    ) {
        for over in &refusal.over_limit {
            let Some(matched) = planned.descriptors.get(over.descriptor) else { continue };
            if has_statuses {
                self.rows.update(over.row(matched), |row| row.refused += 1);
            }
            for counter in over.counters(matched) {
                if let Some(counter) = self.counters.get_mut(counter) {
                    counter.refuses = true;
                }
            }
        }
        self.refusals.push(refusal);
    }

    /// Compares the answers with the bounds.
    pub(super) fn judge(mut self, verifier: &Verifier<'_>, planned: &[PlannedRequest]) -> Verified {
        for counter in &mut self.counters {
            counter.find_edge();
            let (over, uncertainty) = (counter.over_admitted(), counter.uncertainty());
            self.rows.update(counter.row, |row| {
                row.over += over;
                row.window_start_uncertainty = row.window_start_uncertainty.max(uncertainty);
            });
        }
        let counters = self.counters.iter();
        let mut judge = Judge {
            explanations: counters
                .map(|it| it.refuses.then(|| it.explanations(verifier.tolerance)))
                .collect(),
            unexplained: vec![Vec::new(); self.counters.len()],
            rows: &mut self.rows,
            hits: verifier.hits(),
        };
        for refusal in &self.refusals {
            if let Some(planned) = planned.get(refusal.draw) {
                judge.judge(refusal, planned);
            }
        }
        let unexplained = judge.unexplained;
        for (counter, refused) in self.counters.iter().zip(unexplained) {
            self.rows.update(counter.row, |row| {
                row.under += counter.under_admitted(&refused);
                row.used_before += if counter.refuses { counter.used_before() } else { 0 };
            });
        }
        Verified { rows: self.rows.into_ordered() }
    }
}

/// Judges one refusal after the other.
struct Judge<'f> {
    rows: &'f mut LimitRows,
    /// For each counter that refuses, what may explain its refusals.
    explanations: Vec<Option<ExplainingHits>>,
    /// For each counter, its unexplained refused hits.
    unexplained: Vec<Vec<Charge>>,
    /// Hits of each request.
    hits: i64,
}

impl Judge<'_> {
    fn judge(&mut self, refusal: &Refusal, planned: &PlannedRequest) {
        let over_limit = refusal.over_limit.iter();
        let judged: Vec<_> = over_limit
            .filter_map(|over| {
                let matched = planned.descriptors.get(over.descriptor)?;
                Some((over, matched, self.explanation(refusal.span, over, matched)))
            })
            .collect();
        if refusal.is_allowed {
            for (over, matched, explanation) in judged {
                let counter = over.counters(matched).next();
                self.count(over.row(matched), explanation, refusal.span, counter);
            }
            return;
        }
        let explanation_of = |at: usize| {
            let over = judged.iter().find(|(over, ..)| over.descriptor == at);
            over.and_then(|(.., explanation)| *explanation)
        };
        // The strongest explanation that explains the refusal of the whole request.
        let explanation = Explanation::ALL.into_iter().find(|weakest| {
            let is_explained =
                |at| explanation_of(at).is_some_and(|explanation| explanation <= *weakest);
            let is_unverified = |matched: &MatchedDescriptor| !matched.is_verified;
            planned.should_refuse(is_explained)
                || (*weakest == Explanation::Unknown && judged.iter().any(|it| is_unverified(it.1)))
        });
        if let Some(row) = refusal.unattributed {
            let with_limits =
                || planned.descriptors.iter().filter(|matched| !matched.limits.is_empty());
            let alone = with_limits().find(|matched| matched.scope == RefusalScope::Request);
            let matched = alone.or_else(|| with_limits().next());
            let counter =
                matched.and_then(|matched| matched.limits.first()).map(|limit| limit.counter);
            return self.count(row, explanation, refusal.span, counter);
        }
        for (over, matched, own) in judged {
            if own == explanation {
                let counter = over.counters(matched).next();
                self.count(over.row(matched), explanation, refusal.span, counter);
            }
        }
    }

    /// Explanation for a descriptor over its limit.
    fn explanation(
        &self,
        span: Span,
        over: &OverLimitDescriptor,
        matched: &MatchedDescriptor,
    ) -> Option<Explanation> {
        if !matched.is_verified {
            return Some(Explanation::Unknown);
        }
        let needs = match matched.counting {
            Counting::Free => self.hits.max(1),
            Counting::Debit => 1,
            Counting::Upstream => self.hits,
        };
        let explanations =
            over.counters(matched).filter_map(|at| self.explanations.get(at)?.as_ref());
        explanations.filter_map(|it| it.explanation(span, needs, over.own)).min()
    }

    /// Counts a refusal in its row. Unexplained hits are added to the counter.
    fn count(
        &mut self,
        row: usize,
        explanation: Option<Explanation>,
        span: Span,
        counter: Option<usize>,
    ) {
        let hits = self.hits;
        let counter = counter.and_then(|counter| self.unexplained.get_mut(counter));
        self.rows.update(row, |row| match explanation {
            Some(Explanation::Answered) => {}
            Some(Explanation::Unanswered) => row.explained_by_errors += 1,
            Some(Explanation::Unknown) => row.not_judged += 1,
            None => {
                row.unexplained += 1;
                match counter {
                    Some(counter) => counter.push(Charge { span, hits, window_ends: None }),
                    None => row.under += hits,
                }
            }
        });
    }
}
