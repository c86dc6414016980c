//! Applies one request's checks to their counters' states, all or nothing.
//!
//! Checks are asked and charged in order. Where a descriptor turns out to be over, what its checks took
//! is given back at once; where the request is refused, so is everything else that was taken on
//! condition. Giving back with a receipt at the time of the take undoes it exactly, so a refusal
//! leaves no trace.

use smallvec::SmallVec;

use crate::{
    Decision, OnFailure, StoreError, Take, Time,
    algorithm::{HITS_MAX, State},
    limit::span,
    store::{Answers, Check, Source, Veto},
};

/// Settles the checks of one group at `now`.
///
/// `slots` says for each check which of `states` is its counter's; checks on the same counter share one.
/// A check without a slot has no counter to ask: it is answered with `missing`, and counts as over unless its
/// failure policy will let it pass.
pub fn settle(
    checks: &[Check],
    slots: &[Option<usize>],
    states: &mut [State],
    now: Time,
    missing: StoreError,
) -> Answers {
    let mut answers = Answers::new();
    let mut times = SmallVec::<[Time; 4]>::new();
    let mut tally = Tally::default();
    for of_descriptor in checks.chunk_by(|a, b| a.descriptor == b.descriptor) {
        let first = answers.len();
        for check in of_descriptor {
            let state = slot(slots, answers.len()).and_then(|slot| states.get_mut(slot));
            let (time, answer) = match state {
                Some(state) => ask(check, state, now),
                None => (now, Err(missing)),
            };
            times.push(time);
            answers.push(answer);
        }
        let over = of_descriptor.iter().zip(answers.iter().skip(first)).any(is_over);
        if over {
            undo(checks, slots, states, &times, first, &mut answers);
        }
        if let Some(check) = of_descriptor.first() {
            tally.add(check.veto, over);
        }
    }
    if tally.refused() {
        undo(checks, slots, states, &times, 0, &mut answers);
    }
    answers
}

/// Asks one counter and charges it where the check says so. Returns the time that counts for its state
/// beside the answer.
fn ask(check: &Check, state: &mut State, now: Time) -> (Time, Result<Decision, StoreError>) {
    let limit = &check.limit;
    let now = state.advance(limit, now);
    let available = state.available(limit, now);
    let fits = |needs: u64| i64::try_from(needs).is_ok_and(|needs| needs <= available);
    let (allowed, granted, needs) = match check.take {
        Take::Exactly(hits) => {
            let needs = hits.max(1);
            let allowed = fits(needs);
            (allowed, if allowed { hits } else { 0 }, needs)
        }
        Take::UpTo(hits) => {
            let granted = hits.min(u64::try_from(available).unwrap_or(0));
            (granted > 0 || hits == 0, granted, 1)
        }
        Take::Always { hits, needs } => (fits(needs), hits.min(HITS_MAX), needs.max(1)),
        Take::GiveBack { hits, receipt } => {
            state.give_back(limit, now, hits, receipt);
            (true, 0, 0)
        }
    };
    // What would let a refused check pass is asked before the charge: the wait is for these hits, once.
    let retry_after = if allowed { Some(0) } else { state.retry_after(limit, now, needs) };
    let receipt = (granted > 0).then(|| state.take(limit, now, granted));
    let mut decision = Decision {
        allowed,
        granted,
        remaining: 0,
        excess: 0,
        reset_after: span(0),
        retry_after: retry_after.map(span),
        receipt,
        source: Source::Store,
    };
    describe(&mut decision, check, state, now);
    (now, Ok(decision))
}

/// Fills in what the counter has left.
fn describe(decision: &mut Decision, check: &Check, state: &State, now: Time) {
    let available = state.available(&check.limit, now);
    decision.remaining = u64::try_from(available).unwrap_or(0);
    decision.excess = u64::try_from(available.saturating_neg()).unwrap_or(0);
    decision.reset_after = span(state.until_reset(&check.limit, now));
}

/// Gives back, newest first, what the checks from `first` on took on condition, and says what is left.
fn undo(
    checks: &[Check],
    slots: &[Option<usize>],
    states: &mut [State],
    times: &[Time],
    first: usize,
    answers: &mut Answers,
) {
    let taken = checks.iter().zip(times).enumerate().zip(answers.iter_mut());
    let mut undone = SmallVec::<[_; 4]>::new();
    for ((position, (check, now)), answer) in taken.skip(first).rev() {
        let state = slot(slots, position).and_then(|slot| states.get_mut(slot));
        if let (true, Some(state), Ok(decision)) = (check.take.conditional(), state, answer) {
            if let Some(receipt) = decision.receipt.take() {
                state.give_back(&check.limit, *now, decision.granted, Some(receipt));
                decision.granted = 0;
            }
            undone.push((position, check, *now, decision));
        }
    }
    for (position, check, now, decision) in undone {
        if let Some(state) = slot(slots, position).and_then(|slot| states.get(slot)) {
            describe(decision, check, state, now);
        }
    }
}

fn is_over((check, answer): (&Check, &Result<Decision, StoreError>)) -> bool {
    answer.map_or(check.on_failure != OnFailure::Allow, |decision| !decision.allowed)
}

fn slot(slots: &[Option<usize>], position: usize) -> Option<usize> {
    slots.get(position).copied().flatten()
}

/// Which descriptors are over, as far as it decides about the request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    alone_over: bool,
    quota: usize,
    quota_over: usize,
}

impl Tally {
    /// Adds one descriptor.
    pub fn add(&mut self, veto: Veto, over: bool) {
        match veto {
            Veto::Alone => self.alone_over |= over,
            Veto::Quota => {
                self.quota += 1;
                self.quota_over += usize::from(over);
            }
            Veto::None => {}
        }
    }

    /// Whether the request is refused.
    #[must_use]
    pub const fn refused(&self) -> bool {
        self.alone_over || (self.quota > 0 && self.quota_over == self.quota)
    }
}
