//! Judges refusals: whether a limit can have been reached, and how many of the other hits an exact limiter would have
//! admitted.

use sluicegate_core::{Counting, store::RefusalScope};

use super::{
    Findings, Verified, Verifier,
    bound::{Charge, Span},
    counter::{Explanations, Reason},
    planned::{MatchedDescriptor, PlannedRequest},
    rows::Rows,
};

/// The row of refusals without statuses.
const WITHOUT_STATUSES: &str = "refused without a status for each descriptor";

/// The row of refusals whose statuses refuse nothing.
const WITHOUT_REASON: &str = "refused, though no descriptor was over its limit";

/// A refused request, or one that passed though descriptors of quota rules were over.
pub(super) struct Refusal {
    pub(super) span: Span,
    /// Position of the request's draw.
    pub(super) draw: usize,
    pub(super) is_allowed: bool,
    /// The row, if the answer does not show which limit refused.
    pub(super) unnamed: Option<usize>,
    /// The descriptors that are over; without statuses all of them.
    pub(super) claims: Vec<Claim>,
}

/// A descriptor that is said to be over, or may be.
pub(super) struct Claim {
    pub(super) descriptor: usize,
    /// Position of the limit that the status shows, if it is known.
    pub(super) limit: Option<usize>,
    /// Hits that the request itself may have charged.
    pub(super) own: i64,
}

impl Claim {
    /// Counters of the limits that may have refused.
    fn counters(&self, met: &MatchedDescriptor) -> impl Iterator<Item = usize> {
        let limits = met.limits.iter().enumerate();
        let shown = limits.filter(|(at, _)| self.limit.is_none_or(|shown| shown == *at));
        shown.map(|(_, limit)| limit.counter)
    }

    fn row(&self, met: &MatchedDescriptor) -> usize {
        met.limits.get(self.limit.unwrap_or(0)).map_or(met.row, |limit| limit.row)
    }
}

impl Findings {
    /// The row of a refusal whose answer does not show which limit refused.
    pub(super) fn unnamed(
        &mut self,
        shape: &PlannedRequest,
        is_vetoed: bool,
        has_statuses: bool,
        claims: &[Claim],
    ) -> Option<usize> {
        let is_over = |claim: &Claim| {
            shape.met.get(claim.descriptor).is_some_and(|met| met.limits.is_empty())
        };
        let words = match has_statuses {
            true if is_vetoed || claims.iter().any(is_over) => return None,
            true => WITHOUT_REASON,
            false => WITHOUT_STATUSES,
        };
        let row = self.rows.position(None, words.to_owned());
        self.rows.update(row, |row| {
            row.requests += 1;
            row.refused += 1;
        });
        Some(row)
    }

    /// Takes in a refusal.
    pub(super) fn refused(&mut self, shape: &PlannedRequest, refusal: Refusal, has_statuses: bool) {
        for claim in &refusal.claims {
            let Some(met) = shape.met.get(claim.descriptor) else { continue };
            if has_statuses {
                self.rows.update(claim.row(met), |row| row.refused += 1);
            }
            for counter in claim.counters(met) {
                if let Some(counter) = self.counters.get_mut(counter) {
                    counter.refuses = true;
                }
            }
        }
        self.refusals.push(refusal);
    }

    /// Compares everything that was taken in with the bounds.
    pub(super) fn judge(mut self, verifier: &Verifier<'_>, shapes: &[PlannedRequest]) -> Verified {
        for counter in &mut self.counters {
            counter.find_edges();
            let (over, edges) = (counter.over(), counter.uncertainty());
            self.rows.update(counter.row, |row| {
                row.over += over;
                row.edges = row.edges.max(edges);
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
            if let Some(shape) = shapes.get(refusal.draw) {
                judge.judge(refusal, shape);
            }
        }
        let unexplained = judge.unexplained;
        for (counter, refused) in self.counters.iter().zip(unexplained) {
            self.rows.update(counter.row, |row| {
                row.under += counter.missed(&refused);
                row.used_before += if counter.refuses { counter.used_before() } else { 0 };
            });
        }
        Verified { rows: self.rows.into_ordered() }
    }
}

/// Judges one refusal after the other.
struct Judge<'f> {
    rows: &'f mut Rows,
    /// By counter: what may explain its refusals, if it refuses.
    explanations: Vec<Option<Explanations>>,
    /// By counter: refused hits that nothing explains.
    unexplained: Vec<Vec<Charge>>,
    /// Hits of each request.
    hits: i64,
}

impl Judge<'_> {
    fn judge(&mut self, refusal: &Refusal, shape: &PlannedRequest) {
        let claims = refusal.claims.iter();
        let judged: Vec<_> = claims
            .filter_map(|claim| {
                let met = shape.met.get(claim.descriptor)?;
                Some((claim, met, self.reason(refusal.span, claim, met)))
            })
            .collect();
        if refusal.is_allowed {
            for (claim, met, reason) in judged {
                let counter = claim.counters(met).next();
                self.count(claim.row(met), reason, refusal.span, counter);
            }
            return;
        }
        let reason_of = |at: usize| {
            let claim = judged.iter().find(|(claim, ..)| claim.descriptor == at);
            claim.and_then(|(.., reason)| *reason)
        };
        // What is as strong as this explains the refusal of the whole request.
        let reason = Reason::ALL.into_iter().find(|weakest| {
            let is_explained = |at| reason_of(at).is_some_and(|reason| reason <= *weakest);
            let is_unverified = |met: &MatchedDescriptor| !met.is_verified;
            shape.is_vetoed(is_explained)
                || (*weakest == Reason::Unknown && judged.iter().any(|it| is_unverified(it.1)))
        });
        if let Some(row) = refusal.unnamed {
            let with_limits = || shape.met.iter().filter(|met| !met.limits.is_empty());
            let alone = with_limits().find(|met| met.scope == RefusalScope::Request);
            let met = alone.or_else(|| with_limits().next());
            let counter = met.and_then(|met| met.limits.first()).map(|limit| limit.counter);
            return self.count(row, reason, refusal.span, counter);
        }
        for (claim, met, own) in judged {
            if own == reason {
                let counter = claim.counters(met).next();
                self.count(claim.row(met), reason, refusal.span, counter);
            }
        }
    }

    /// What explains that a descriptor was over.
    fn reason(&self, span: Span, claim: &Claim, met: &MatchedDescriptor) -> Option<Reason> {
        if !met.is_verified {
            return Some(Reason::Unknown);
        }
        let needs = match met.counting {
            Counting::Free => self.hits.max(1),
            Counting::Debit => 1,
            Counting::Upstream => self.hits,
        };
        let explanations = claim.counters(met).filter_map(|at| self.explanations.get(at)?.as_ref());
        explanations.filter_map(|it| it.reason(span, needs, claim.own)).min()
    }

    /// Counts a refusal in its row, and its hits at the counter where nothing explains them.
    fn count(&mut self, row: usize, reason: Option<Reason>, span: Span, counter: Option<usize>) {
        let hits = self.hits;
        let counter = counter.and_then(|counter| self.unexplained.get_mut(counter));
        self.rows.update(row, |row| match reason {
            Some(Reason::Answered) => {}
            Some(Reason::Unanswered) => row.explained_by_errors += 1,
            Some(Reason::Unknown) => row.not_judged += 1,
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
