//! Settling against given states.

use sluicegate_core::{Answers, Check, CounterAccess, StoreError, Time, algorithm::State, settle};

/// Settles the checks of one group at `now` against given states.
///
/// `state_positions` has for each check the position of its counter in `states`; checks on the same counter share one.
/// `None`: there is no counter, and the check is answered with `missing`.
pub fn settle_states(
    checks: &[Check],
    state_positions: &[Option<usize>],
    states: &mut [State],
    now: Time,
    missing: StoreError,
) -> Answers {
    settle(checks, &mut GivenStates { state_positions, states, now, missing })
}

/// The arguments of [`settle_states`] as counters.
struct GivenStates<'a> {
    state_positions: &'a [Option<usize>],
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
        let state_position = self.state_positions.get(position).copied().flatten();
        let state = state_position.and_then(|position| self.states.get_mut(position));
        access(state.ok_or(self.missing)?);
        Ok(())
    }
}
