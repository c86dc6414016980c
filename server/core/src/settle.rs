//! Applies one request's checks to their counters' states, all or nothing.
//!
//! Checks are asked and charged in order. Where a descriptor turns out to be over, what its checks took
//! is given back at once; where the request is refused, so is everything else that was taken on
//! condition. Giving back with a receipt at the time of the take undoes it exactly, so a refusal
//! leaves no trace.

use std::mem;

use smallvec::SmallVec;

use crate::{
    Decision, OnFailure, StoreError, Take, Time,
    algorithm::{Counter, HITS_MAX, State},
    limit::span,
    mends::Mend,
    store::{Answers, Check, Source, Veto},
};

/// The counters of one group, which nobody else changes while it is settled.
pub trait Counters {
    /// The present by the clock that the check's counter goes by.
    fn now(&self, check: &Check) -> Time;

    /// Lets `look` see and change the state of the counter of a check, the one at `position` in its group. It
    /// returns the time that counts for the state then. Checks on the same counter see the same state.
    ///
    /// # Errors
    /// There is no counter to ask.
    fn with(
        &mut self,
        position: usize,
        check: &Check,
        look: impl FnOnce(&mut State) -> Time,
    ) -> Result<(), StoreError>;
}

/// Settles the checks of one group at `now` against states at hand.
///
/// `slots` says for each check which of `states` is its counter's; checks on the same counter share one.
/// A check without a slot has no counter to ask and is answered with `missing`. As [`settle_with`].
pub fn settle(
    checks: &[Check],
    slots: &[Option<usize>],
    states: &mut [State],
    now: Time,
    missing: StoreError,
) -> Answers {
    settle_with(checks, &mut AtHand { slots, states, now, missing })
}

/// States at hand, as [`settle`] gets them.
struct AtHand<'a> {
    slots: &'a [Option<usize>],
    states: &'a mut [State],
    now: Time,
    missing: StoreError,
}

impl Counters for AtHand<'_> {
    fn now(&self, _check: &Check) -> Time {
        self.now
    }

    fn with(
        &mut self,
        position: usize,
        _check: &Check,
        look: impl FnOnce(&mut State) -> Time,
    ) -> Result<(), StoreError> {
        let slot = self.slots.get(position).copied().flatten();
        let state = slot.and_then(|slot| self.states.get_mut(slot));
        look(state.ok_or(self.missing)?);
        Ok(())
    }
}

/// Settles the checks of one group, each at the present of its counter.
///
/// A check without a counter is answered with the error, and counts as over unless its failure policy will let it
/// pass.
pub fn settle_with(checks: &[Check], counters: &mut impl Counters) -> Answers {
    let mut answers = Answers::new();
    let mut times = SmallVec::<[Time; 4]>::new();
    let mut tally = Tally::default();
    for of_descriptor in checks.chunk_by(|a, b| a.descriptor == b.descriptor) {
        let first = answers.len();
        let mut over = false;
        for check in of_descriptor {
            let position = answers.len();
            answers.push(Err(StoreError::Unavailable));
            // In its place, because it is large.
            let Some(answer) = answers.last_mut() else { continue };
            let now = counters.now(check);
            let mut time = now;
            let asked = counters.with(position, check, |state| {
                time = ask(check, state, now, answer);
                time
            });
            if let Err(error) = asked {
                *answer = Err(error);
            }
            over |= is_over(check, answer);
            times.push(time);
        }
        if over {
            undo(checks, counters, &times, first, &mut answers);
        }
        if let Some(check) = of_descriptor.first() {
            tally.add(check.veto, over);
        }
    }
    if tally.refused() {
        undo(checks, counters, &times, 0, &mut answers);
    }
    answers
}

/// The answer to one check.
type Answer = Result<Decision, StoreError>;

/// Asks one counter and charges it where the check says so. Returns the time that counts for its state.
fn ask(check: &Check, state: &mut State, now: Time, answer: &mut Answer) -> Time {
    match state {
        State::FixedWindow(counter) => ask_counter(check, counter, now, answer),
        State::SlidingWindowLog(counter) => ask_counter(check, &mut **counter, now, answer),
        State::SlidingWindowCounter(counter) => ask_counter(check, counter, now, answer),
        State::TokenBucket(counter) => ask_counter(check, counter, now, answer),
        State::Gcra(counter) => ask_counter(check, counter, now, answer),
    }
}

fn ask_counter<C: Counter>(check: &Check, counter: &mut C, now: Time, answer: &mut Answer) -> Time {
    let limit = &check.limit;
    let now = counter.advance(limit, now);
    let available = counter.available(limit, now);
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
            counter.give_back(limit, now, hits.min(HITS_MAX), receipt);
            (true, 0, 0)
        }
    };
    // What would let a refused check pass is asked before the charge: the wait is for these hits, once.
    let retry_after = if allowed { Some(0) } else { retry_after(counter, check, now, needs) };
    let receipt = (granted > 0).then(|| counter.take(limit, now, granted));
    // Hits that were available lower what is available by as many. Beyond it a state may not record them all.
    let left = match i64::try_from(granted) {
        Ok(granted) if granted <= available && check.take.conditional() => available - granted,
        _ => counter.available(limit, now),
    };
    let (remaining, excess) = remaining_and_excess(left);
    *answer = Ok(Decision {
        allowed,
        granted,
        remaining,
        excess,
        reset_after: span(counter.until_reset(limit, now)),
        retry_after: retry_after.map(span),
        receipt,
        source: Source::Store,
    });
    now
}

/// Microseconds until so many hits would pass; `None` if they never will.
fn retry_after<C: Counter>(counter: &C, check: &Check, now: Time, needs: u64) -> Option<u64> {
    (needs <= u64::from(check.limit.capacity()))
        .then(|| counter.retry_after(&check.limit, now, needs))
}

/// Hits that are left, and hits by which usage has passed the limit.
fn remaining_and_excess(available: i64) -> (u64, u64) {
    let hits = available.unsigned_abs();
    if available < 0 { (0, hits) } else { (hits, 0) }
}

/// Says anew what the counter has left.
fn describe(decision: &mut Decision, check: &Check, state: &mut State, now: Time) {
    // Another limit on the counter may have put it into units of its own.
    if Mend::UndoInOwnUnits.is_on() {
        state.advance(&check.limit, now);
    }
    (decision.remaining, decision.excess) =
        remaining_and_excess(state.available(&check.limit, now));
    decision.reset_after = span(state.until_reset(&check.limit, now));
}

/// Gives back, newest first, what the checks from `first` on took on condition, and says what is left.
#[cold]
fn undo(
    checks: &[Check],
    counters: &mut impl Counters,
    times: &[Time],
    first: usize,
    answers: &mut Answers,
) {
    let asked = || checks.iter().zip(times).enumerate().skip(first);
    for ((position, (check, &now)), answer) in asked().zip(answers.iter_mut().skip(first)).rev() {
        let (true, Ok(decision)) = (check.take.conditional(), answer) else { continue };
        let Some(receipt) = decision.receipt.take() else { continue };
        let hits = mem::take(&mut decision.granted);
        let undone = counters.with(position, check, |state| {
            if Mend::UndoInOwnUnits.is_on() {
                state.advance(&check.limit, now);
            }
            state.give_back(&check.limit, now, hits, Some(receipt));
            describe(decision, check, state, now);
            now
        });
        debug_assert!(undone.is_ok());
    }
    // Where two checks are on one counter, the later one was described before the earlier one gave back.
    let keys = checks.get(first..times.len()).unwrap_or_default();
    let twice = |(at, check): (usize, &Check)| keys.iter().take(at).any(|it| it.key == check.key);
    if !keys.iter().enumerate().any(twice) {
        return;
    }
    for ((position, (check, &now)), answer) in asked().zip(answers.iter_mut().skip(first)) {
        if let (true, Ok(decision)) = (check.take.conditional(), answer) {
            let described = counters.with(position, check, |state| {
                describe(decision, check, state, now);
                now
            });
            debug_assert!(described.is_ok());
        }
    }
}

fn is_over(check: &Check, answer: &Answer) -> bool {
    match answer {
        Ok(decision) => !decision.allowed,
        Err(_) => check.on_failure != OnFailure::Allow,
    }
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
