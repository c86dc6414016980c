//! What is known about one counter.

use sluicegate_core::{Counting, Limit as CoreLimit};

use super::{
    bound::{Bound, Charge, Micros, Span},
    edges::{Edges, end},
    rows::Uncertainty,
    usage::Usage,
};
use crate::load::history::DescriptorAnswer;

/// Hits of a counter of which nothing is known: more than any limit.
const UNKNOWN: i64 = 1 << 40;

/// What is known about one counter.
pub(super) struct Counter {
    pub(super) row: usize,
    /// Whether it may have refused a request.
    pub(super) refuses: bool,
    bound: Bound,
    counting: Counting,
    edges: Edges,
    /// Charges that certainly were made, and admitted.
    pub(super) admitted: Vec<Charge>,
    /// Charges that answered requests may have made beside them.
    pub(super) possible: Vec<Charge>,
    /// Charges that requests without an answer may have made.
    pub(super) unanswered: Vec<Charge>,
    /// Hits that refused requests may have held before they gave them back.
    pub(super) held: Vec<Charge>,
    /// The first moment at which anything was asked.
    since: Micros,
    /// The first answer.
    first: Option<FirstAnswer>,
    /// Hits that were left after admitted ones, if nothing was ever given back.
    left: Option<Vec<(Span, u32)>>,
}

/// An answer about a counter.
#[derive(Clone, Copy)]
struct FirstAnswer {
    span: Span,
    /// Hits that had been used before its own, at most.
    used_before: i64,
}

/// What explains a refusal, the strongest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reason {
    /// Hits of requests that were answered can have reached the limit.
    Answered,
    /// Only with hits of requests without an answer it can have been reached.
    Unanswered,
    /// Hits of which nothing is known can have reached it.
    Unknown,
}

impl Reason {
    /// All of them.
    pub(super) const ALL: [Self; 3] = [Self::Answered, Self::Unanswered, Self::Unknown];
}

/// The hits that may explain refusals by one counter.
pub(super) struct Explanations {
    answered: Usage,
    /// With those of requests without an answer, where there are any.
    with_unanswered: Option<Usage>,
    /// With those of which nothing is known, where there may be any.
    with_unknown: Option<Usage>,
    /// When the first answer was there. What had been used before is known from then on.
    known_from: Micros,
}

impl Explanations {
    /// What explains that so many hits were refused, by a request that may itself have charged `own` of them.
    pub(super) fn reason(&self, span: Span, needs: i64, own: i64) -> Option<Reason> {
        let may_refuse = |usage: &Usage| usage.may_refuse(span, needs - own);
        if may_refuse(&self.answered) {
            Some(Reason::Answered)
        } else if self.with_unanswered.as_ref().is_some_and(may_refuse) {
            Some(Reason::Unanswered)
        } else if span.from <= self.known_from || self.with_unknown.as_ref().is_some_and(may_refuse)
        {
            Some(Reason::Unknown)
        } else {
            None
        }
    }
}

impl Counter {
    pub(super) fn new(limit: &CoreLimit, counting: Counting, row: usize) -> Self {
        let bound = Bound::new(limit, counting);
        Self {
            row,
            refuses: false,
            bound,
            counting,
            edges: Edges::new(bound.window()),
            admitted: Vec::new(),
            possible: Vec::new(),
            unanswered: Vec::new(),
            held: Vec::new(),
            since: Micros::MAX,
            first: None,
            left: Some(Vec::new()),
        }
    }

    /// Takes in that a request asked. `may_give_back`: hits of requests like it are given back where another limit
    /// refuses.
    pub(super) fn asked(&mut self, span: Span, may_give_back: bool) {
        self.since = self.since.min(span.from);
        if may_give_back {
            self.left = None;
        }
    }

    /// Takes in an answer that shows the limit as `requests` a unit, of which `more` are not in the files. `charged` hits
    /// were charged by its request. Returns where the window ends in which they were charged, if the answer says.
    pub(super) fn answered(
        &mut self,
        span: Span,
        answer: &DescriptorAnswer,
        more: i64,
        charged: i64,
        is_admitted: bool,
    ) -> Option<Span> {
        if self.first.is_none_or(|first| span.to < first.span.to) {
            // No answer tells how much a bucket holds: as much as by the files, or by how much more the rate is.
            let used = self.bound.capacity() + more - i64::from(answer.remaining);
            // Where usage can pass the limit, no answer tells by how much it has.
            let is_known = answer.remaining > 0 || self.counting == Counting::Free;
            let used_before = if is_known { (used - charged).max(0) } else { UNKNOWN };
            self.first = Some(FirstAnswer { span, used_before });
        }
        let is_charged = is_admitted && charged > 0 && !answer.over;
        if let (Some(left), true) = (&mut self.left, is_charged) {
            left.push((span, answer.remaining));
        }
        // A refusal is told how long to wait, which need not be the end of a window.
        let until = answer.until_reset.filter(|until| *until > 0 && is_charged)?;
        let ends = self.bound.window_end(end(span, Micros::from(until) * 1_000_000))?;
        self.edges.note(ends);
        Some(ends)
    }

    /// Learns where windows end from how much is left: within a window it only becomes less. For windows of a second, of
    /// whose end answers tell nothing.
    pub(super) fn find_edges(&mut self) {
        let Some(mut sent) = self.left.take().filter(|_| self.bound.only_uses_up()) else { return };
        let mut answered = sent.clone();
        sent.sort_unstable_by_key(|(span, _)| span.from);
        answered.sort_unstable_by_key(|(span, _)| span.to);
        let mut before = answered.into_iter().peekable();
        let mut last = None;
        for (span, left) in sent {
            while let Some(earlier) = before.next_if(|(earlier, _)| earlier.to < span.from) {
                last = Some(earlier);
            }
            if let Some((earlier, left_before)) = last
                && left >= left_before
            {
                self.edges.note(Span { from: earlier.from, to: span.to });
            }
        }
    }

    /// How well it is known where windows begin; `None` where they are not aligned.
    pub(super) fn uncertainty(&self) -> Option<Uncertainty> {
        let within = self.edges.uncertainty().map_or(Uncertainty::Unknown, Uncertainty::Within);
        self.bound.is_aligned().then_some(within)
    }

    /// Hits admitted past the limit.
    pub(super) fn over(&self) -> i64 {
        self.bound.over(self.edges.edge(), &self.admitted)
    }

    /// Hits that were used before the first answer, as far as it is known.
    pub(super) fn used_before(&self) -> i64 {
        self.before().filter(|before| before.hits != UNKNOWN).map_or(0, |before| before.hits)
    }

    /// Of refused hits that nothing explains, those that an exact limiter would have admitted.
    pub(super) fn missed(&self, refused: &[Charge]) -> i64 {
        if refused.is_empty() {
            return 0;
        }
        let mut others = [&self.admitted[..], &self.unanswered].concat();
        others.extend(self.before().filter(|before| before.hits != UNKNOWN));
        self.bound.missed(self.edges.edge(), &others, refused)
    }

    /// The hits that may explain refusals. Spans are longer by the tolerance at both ends.
    pub(super) fn explanations(&self, tolerance: Micros) -> Explanations {
        let usage =
            |charges: &[Charge]| Usage::new(self.bound, self.edges.edge(), charges, &self.held);
        let mut charges = [&self.admitted[..], &self.possible].concat();
        let (unknown, known): (Vec<_>, Vec<_>) =
            self.before().into_iter().partition(|before| before.hits == UNKNOWN);
        charges.extend(known);
        let answered = usage(&charges);
        charges.extend(&self.unanswered);
        let with_unanswered = (!self.unanswered.is_empty()).then(|| usage(&charges));
        charges.extend(&unknown);
        let with_unknown = (!unknown.is_empty()).then(|| usage(&charges));
        // What was sent after an answer arrived is known by this machine's clock alone.
        let known_from = self.first.map_or(self.since, |first| first.span.to) - 2 * tolerance;
        Explanations { answered, with_unanswered, with_unknown, known_from }
    }

    /// What was used before the first answer, as one charge.
    fn before(&self) -> Option<Charge> {
        let (to, hits) = match self.first {
            Some(FirstAnswer { span, used_before }) => (span.to, used_before),
            None => (self.since, UNKNOWN),
        };
        let span = Span { from: self.since, to };
        (hits > 0).then_some(Charge { span, hits, window_ends: None })
    }
}
