//! The charges and answers of one counter.

use sluicegate_core::{Counting, Limit as CoreLimit};

use super::{
    bound::{Bound, Charge, Micros, RunTime, Span},
    rows::Uncertainty,
    usage::Usage,
    window_starts::{WindowStartEstimate, end},
};
use crate::load::history::DescriptorAnswer;

/// Hits of a counter whose usage is unknown: more than any limit.
const UNKNOWN_HITS: i64 = 1 << 40;

/// The charges and answers of one counter.
pub(super) struct Counter {
    pub(super) row: usize,
    /// Whether it may have refused a request.
    pub(super) refuses: bool,
    bound: Bound,
    counting: Counting,
    window_start: WindowStartEstimate,
    /// Charges that were certainly made, and admitted.
    pub(super) admitted: Vec<Charge>,
    /// Further charges that answered requests may have made.
    pub(super) possible: Vec<Charge>,
    /// Charges that requests without an answer may have made.
    pub(super) unanswered: Vec<Charge>,
    /// Charges that refused requests may have made before their refund.
    pub(super) temporary: Vec<Charge>,
    /// Time of the first request.
    first_request: RunTime,
    /// The first answer.
    first_answer: Option<FirstAnswer>,
    /// Remaining hits after admitted requests. `None` if a refund is possible.
    remaining: Option<Vec<(Span, u32)>>,
}

/// An answer about a counter.
#[derive(Clone, Copy)]
struct FirstAnswer {
    span: Span,
    /// Maximum of the hits that were used before its request.
    used_before: i64,
}

/// Explanation of a refusal, the strongest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Explanation {
    /// The hits of answered requests may have reached the limit.
    Answered,
    /// The hits of requests without an answer are needed too.
    Unanswered,
    /// Unknown hits may have reached it.
    Unknown,
}

impl Explanation {
    /// All explanations.
    pub(super) const ALL: [Self; 3] = [Self::Answered, Self::Unanswered, Self::Unknown];
}

/// The hits that may explain refusals by one counter.
pub(super) struct ExplainingHits {
    answered: Usage,
    /// With the hits of requests without an answer, if there are any.
    with_unanswered: Option<Usage>,
    /// With unknown hits, if there may be any.
    with_unknown: Option<Usage>,
    /// Time of the first answer. The usage before the run is known from then on.
    known_from: RunTime,
}

impl ExplainingHits {
    /// Explanation for the refusal of `needs` hits, if the request itself may have charged `own` hits before.
    pub(super) fn explanation(&self, span: Span, needs: i64, own: i64) -> Option<Explanation> {
        let may_refuse = |usage: &Usage| usage.may_refuse(span, needs - own);
        if may_refuse(&self.answered) {
            Some(Explanation::Answered)
        } else if self.with_unanswered.as_ref().is_some_and(may_refuse) {
            Some(Explanation::Unanswered)
        } else if span.from <= self.known_from || self.with_unknown.as_ref().is_some_and(may_refuse)
        {
            Some(Explanation::Unknown)
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
            window_start: WindowStartEstimate::new(bound.window()),
            admitted: Vec::new(),
            possible: Vec::new(),
            unanswered: Vec::new(),
            temporary: Vec::new(),
            first_request: RunTime::MAX,
            first_answer: None,
            remaining: Some(Vec::new()),
        }
    }

    /// Adds a request. `may_refund`: its hits are refunded if another limit refuses.
    pub(super) fn record_request(&mut self, span: Span, may_refund: bool) {
        self.first_request = self.first_request.min(span.from);
        if may_refund {
            self.remaining = None;
        }
    }

    /// Adds an answer. `extra_requests`: the limit in the answer, less the limit in the files. `charged`: hits that
    /// its request charged. Returns the span in which the charged window ends, if the answer shows it.
    pub(super) fn record_answer(
        &mut self,
        span: Span,
        answer: &DescriptorAnswer,
        extra_requests: i64,
        charged: i64,
        is_admitted: bool,
    ) -> Option<Span> {
        if self.first_answer.is_none_or(|first| span.to < first.span.to) {
            // Answers do not show the capacity of a bucket. Assume that it differs from the files by as much as
            // the rate.
            let used = self.bound.capacity() + extra_requests - i64::from(answer.remaining);
            // If usage can exceed the limit, answers do not show by how much.
            let is_known = answer.remaining > 0 || self.counting == Counting::Free;
            let used_before = if is_known { (used - charged).max(0) } else { UNKNOWN_HITS };
            self.first_answer = Some(FirstAnswer { span, used_before });
        }
        let is_charged = is_admitted && charged > 0 && !answer.over;
        if let (Some(remaining), true) = (&mut self.remaining, is_charged) {
            remaining.push((span, answer.remaining));
        }
        // A refusal shows the time to wait, which need not be the end of a window.
        let until = answer.until_reset.filter(|until| *until > 0 && is_charged)?;
        let ends = self.bound.window_end(end(span, Micros::from(until) * 1_000_000))?;
        self.window_start.record(ends);
        Some(ends)
    }

    /// Derives where windows end from the remaining hits, which only decrease within a window. For windows of one
    /// second, whose end the reset times of answers do not show.
    pub(super) fn find_edge(&mut self) {
        let Some(mut sent) =
            self.remaining.take().filter(|_| self.bound.resets_only_at_window_end())
        else {
            return;
        };
        let mut answered = sent.clone();
        sent.sort_unstable_by_key(|(span, _)| span.from);
        answered.sort_unstable_by_key(|(span, _)| span.to);
        let mut before = answered.into_iter().peekable();
        let mut last = None;
        for (span, remaining) in sent {
            while let Some(earlier) = before.next_if(|(earlier, _)| earlier.to < span.from) {
                last = Some(earlier);
            }
            if let Some((earlier, remaining_before)) = last
                && remaining >= remaining_before
            {
                self.window_start.record(Span { from: earlier.from, to: span.to });
            }
        }
    }

    /// Uncertainty of where windows begin; `None` if they are not aligned.
    pub(super) fn uncertainty(&self) -> Option<Uncertainty> {
        let within =
            self.window_start.uncertainty().map_or(Uncertainty::Unknown, Uncertainty::Within);
        self.bound.is_aligned().then_some(within)
    }

    /// Hits admitted past the limit.
    pub(super) fn over_admitted(&self) -> i64 {
        self.bound.over_admitted(self.window_start.span(), &self.admitted)
    }

    /// Hits that were used before the first answer, 0 if unknown.
    pub(super) fn used_before(&self) -> i64 {
        self.charge_before()
            .filter(|before| before.hits != UNKNOWN_HITS)
            .map_or(0, |before| before.hits)
    }

    /// The unexplained refused hits that an exact limiter would have admitted.
    pub(super) fn under_admitted(&self, refused: &[Charge]) -> i64 {
        if refused.is_empty() {
            return 0;
        }
        let mut others = [&self.admitted[..], &self.unanswered].concat();
        others.extend(self.charge_before().filter(|before| before.hits != UNKNOWN_HITS));
        self.bound.under_admitted(self.window_start.span(), &others, refused)
    }

    /// The hits that may explain refusals. The spans of charges include the tolerance at both ends.
    pub(super) fn explanations(&self, tolerance: Micros) -> ExplainingHits {
        let usage = |charges: &[Charge]| {
            Usage::new(self.bound, self.window_start.span(), charges, &self.temporary)
        };
        let mut charges = [&self.admitted[..], &self.possible].concat();
        let (unknown, known): (Vec<_>, Vec<_>) =
            self.charge_before().into_iter().partition(|before| before.hits == UNKNOWN_HITS);
        charges.extend(known);
        let answered = usage(&charges);
        charges.extend(&self.unanswered);
        let with_unanswered = (!self.unanswered.is_empty()).then(|| usage(&charges));
        charges.extend(&unknown);
        let with_unknown = (!unknown.is_empty()).then(|| usage(&charges));
        // Whether a request was sent after an answer arrived needs no tolerance, because both times are of this
        // machine's clock.
        let known_from =
            self.first_answer.map_or(self.first_request, |first| first.span.to) - 2 * tolerance;
        ExplainingHits { answered, with_unanswered, with_unknown, known_from }
    }

    /// The hits used before the first answer, as one charge.
    fn charge_before(&self) -> Option<Charge> {
        let (to, hits) = match self.first_answer {
            Some(FirstAnswer { span, used_before }) => (span.to, used_before),
            None => (self.first_request, UNKNOWN_HITS),
        };
        let span = Span { from: self.first_request, to };
        (hits > 0).then_some(Charge { span, hits, window_ends: None })
    }
}
