//! Settling against given states.

use sluicegate_core::{Answers, Check, CounterAccess, StoreError, Time, algorithm::State, settle};

/// Settles the checks of one group at `now` against given states.
///
/// `slots` has for each check the position of its counter in `states`; checks on the same counter share one.
/// A check without a slot has no counter and is answered with `missing`.
pub fn settle_states(
    checks: &[Check],
    slots: &[Option<usize>],
    states: &mut [State],
    now: Time,
    missing: StoreError,
) -> Answers {
    settle(checks, &mut GivenStates { slots, states, now, missing })
}

/// The arguments of [`settle_states`] as counters.
struct GivenStates<'a> {
    slots: &'a [Option<usize>],
    states: &'a mut [State],
    now: Time,
    missing: StoreError,
}

impl CounterAccess for GivenStates<'_> {
    fn now(&self, _check: &Check) -> Time {
        self.now
    }

    fn with_state(
        &mut self,
        position: usize,
        _check: &Check,
        access: impl FnOnce(&mut State) -> Time,
    ) -> Result<(), StoreError> {
        let slot = self.slots.get(position).copied().flatten();
        let state = slot.and_then(|slot| self.states.get_mut(slot));
        access(state.ok_or(self.missing)?);
        Ok(())
    }
}
