//! Settling: applies the checks of one request to the states of their counters. Conditional charges are made all or
//! none.
//!
//! Checks are decided and charged in order. If a check of a descriptor is refused, the conditional charges of that
//! descriptor are undone at once. If the request is refused, all of its conditional charges are undone. Undoing a
//! charge at the time of the charge restores the exact state, so that a refusal has no effect.

use std::mem;

use smallvec::SmallVec;

use crate::{
    Charge, Decision, OnFailure, StoreError, Time,
    algorithm::{AlgorithmState, HITS_MAX, State, dispatch},
    defect_fixes::DefectFix,
    limit::duration,
    store::{Answers, Check, DecisionSource, RefusalScope},
};

/// Access to the counters of one group, which are locked while the group is settled.
pub trait CounterAccess {
    /// The present time, by the clock that the check's counter follows.
    fn now(&self, check: &Check) -> Time;

    /// Calls `access` with the state of a check's counter. `access` may change the state, and returns the time to which
    /// the state has advanced. `position` is the check's position in its group. Checks of the same counter get the same
    /// state.
    ///
    /// # Errors
    /// There is no such counter, and no room for another.
    fn with_state(
        &mut self,
        position: usize,
        check: &Check,
        access: impl FnOnce(&mut State) -> Time,
    ) -> Result<(), StoreError>;
}

/// Settles the checks of one group, each at the present time of its counter. Returns an answer to each, in order.
///
/// A check without a counter is answered with the error of [`CounterAccess::with_state`]. It counts as over its limit,
/// unless its failure policy is `allow`.
pub fn settle(checks: &[Check], counters: &mut impl CounterAccess) -> Answers {
    let mut answers = Answers::new();
    let mut times = SmallVec::<[Time; 4]>::new();
    let mut tally = RefusalTally::default();
    for of_descriptor in checks.chunk_by(|a, b| a.descriptor == b.descriptor) {
        let first = answers.len();
        let mut over = false;
        for check in of_descriptor {
            let position = answers.len();
            answers.push(Err(StoreError::Unavailable));
            // The answer is written in place, because it is large.
            let Some(answer) = answers.last_mut() else { continue };
            let now = counters.now(check);
            let mut time = now;
            let found = counters.with_state(position, check, |state| {
                time = settle_check(check, state, now, answer);
                time
            });
            if let Err(error) = found {
                *answer = Err(error);
            }
            over |= is_over(check, answer);
            times.push(time);
        }
        if over {
            undo_charges(checks, counters, &times, first, &mut answers);
        }
        if let Some(check) = of_descriptor.first() {
            tally.add(check.refusal_scope, over);
        }
    }
    if tally.refused() {
        undo_charges(checks, counters, &times, 0, &mut answers);
    }
    answers
}

/// The answer to one check.
type Answer = Result<Decision, StoreError>;

/// Decides one check and charges its counter. Returns the time to which the state was advanced.
fn settle_check(check: &Check, state: &mut State, now: Time, answer: &mut Answer) -> Time {
    dispatch!(state, algorithm_state => settle_state(check, algorithm_state, now, answer))
}

fn settle_state<A: AlgorithmState>(
    check: &Check,
    state: &mut A,
    now: Time,
    answer: &mut Answer,
) -> Time {
    let limit = &check.limit;
    let now = state.advance(limit, now);
    let available = state.available(limit, now);
    let fits = |needs: u64| i64::try_from(needs).is_ok_and(|needs| needs <= available);
    let (allowed, charged, needs) = match check.charge {
        Charge::IfAllowed(hits) => {
            let needs = hits.max(1);
            let allowed = fits(needs);
            (allowed, if allowed { hits } else { 0 }, needs)
        }
        Charge::Always { hits, needs } => (fits(needs), hits.min(HITS_MAX), needs.max(1)),
        Charge::Refund { hits, receipt } => {
            state.refund(limit, now, hits.min(HITS_MAX), receipt);
            (true, 0, 0)
        }
    };
    // Computed before the charge, because a retry needs room for these hits only once.
    let retry_after = if allowed { Some(0) } else { retry_after(state, check, now, needs) };
    let receipt = (charged > 0).then(|| state.charge(limit, now, charged));
    // A charge within the limit reduces the available hits by the charged hits. Beyond the limit the state may not
    // record all of them.
    let available_after = match i64::try_from(charged) {
        Ok(charged) if charged <= available && check.charge.is_conditional() => available - charged,
        _ => state.available(limit, now),
    };
    let (remaining, excess) = remaining_and_excess(available_after);
    *answer = Ok(Decision {
        allowed,
        charged,
        remaining,
        excess,
        reset_after: duration(state.reset_after(limit, now)),
        retry_after: retry_after.map(duration),
        receipt,
        source: DecisionSource::Store,
    });
    now
}

/// Microseconds until `needs` hits would pass; `None` if they never can.
fn retry_after<A: AlgorithmState>(state: &A, check: &Check, now: Time, needs: u64) -> Option<u64> {
    (needs <= u64::from(check.limit.capacity()))
        .then(|| state.retry_after(&check.limit, now, needs))
}

/// Splits available hits into remaining hits, and hits by which usage exceeds the limit.
fn remaining_and_excess(available: i64) -> (u64, u64) {
    let hits = available.unsigned_abs();
    if available < 0 { (0, hits) } else { (hits, 0) }
}

/// Updates what a decision reports of its counter: remaining hits, excess and reset.
fn update_remaining(decision: &mut Decision, check: &Check, state: &mut State, now: Time) {
    // Another limit on the same counter may have rescaled the state to its own units.
    if DefectFix::UndoInOwnUnits.is_active() {
        state.advance(&check.limit, now);
    }
    (decision.remaining, decision.excess) =
        remaining_and_excess(state.available(&check.limit, now));
    decision.reset_after = duration(state.reset_after(&check.limit, now));
}

/// Undoes the conditional charges of the checks from position `first` on, newest first, and updates their decisions.
#[cold]
fn undo_charges(
    checks: &[Check],
    counters: &mut impl CounterAccess,
    times: &[Time],
    first: usize,
    answers: &mut Answers,
) {
    let checks_after = || checks.iter().zip(times).enumerate().skip(first);
    for ((position, (check, &now)), answer) in
        checks_after().zip(answers.iter_mut().skip(first)).rev()
    {
        let (true, Ok(decision)) = (check.charge.is_conditional(), answer) else { continue };
        let Some(receipt) = decision.receipt.take() else { continue };
        let hits = mem::take(&mut decision.charged);
        let undone = counters.with_state(position, check, |state| {
            if DefectFix::UndoInOwnUnits.is_active() {
                state.advance(&check.limit, now);
            }
            state.refund(&check.limit, now, hits, Some(receipt));
            update_remaining(decision, check, state, now);
            now
        });
        debug_assert!(undone.is_ok());
    }
    // If two checks are of one counter, the later decision was updated before the earlier charge was undone.
    let settled = checks.get(first..times.len()).unwrap_or_default();
    let is_repeated =
        |(at, check): (usize, &Check)| settled.iter().take(at).any(|it| it.key == check.key);
    if !settled.iter().enumerate().any(is_repeated) {
        return;
    }
    for ((position, (check, &now)), answer) in checks_after().zip(answers.iter_mut().skip(first)) {
        if let (true, Ok(decision)) = (check.charge.is_conditional(), answer) {
            let updated = counters.with_state(position, check, |state| {
                update_remaining(decision, check, state, now);
                now
            });
            debug_assert!(updated.is_ok());
        }
    }
}

/// Whether a check counts as over its limit.
fn is_over(check: &Check, answer: &Answer) -> bool {
    match answer {
        Ok(decision) => !decision.allowed,
        Err(_) => check.on_failure != OnFailure::Allow,
    }
}

/// Counts descriptors that are over their limits, to decide whether the request is refused.
#[derive(Clone, Copy, Debug, Default)]
pub struct RefusalTally {
    /// Whether a descriptor that refuses the request alone is over its limit.
    request_over: bool,
    /// Number of quota descriptors.
    quota: usize,
    /// Number of quota descriptors that are over their limits.
    quota_over: usize,
}

impl RefusalTally {
    /// Adds a descriptor. `over`: whether it is over its limit.
    pub fn add(&mut self, refusal_scope: RefusalScope, over: bool) {
        match refusal_scope {
            RefusalScope::Request => self.request_over |= over,
            RefusalScope::Quota => {
                self.quota += 1;
                self.quota_over += usize::from(over);
            }
            RefusalScope::None => {}
        }
    }

    /// Whether the request is refused.
    #[must_use]
    pub const fn refused(&self) -> bool {
        self.request_over || (self.quota > 0 && self.quota_over == self.quota)
    }
}
