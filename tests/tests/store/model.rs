//! A model of the scripts: counters are settled by core, and stored as the scripts store them in Redis:
//!
//! - A counter is stored at the end of a call if one of its checks was charged or refunded hits. Otherwise it stays
//!   unchanged, not even advanced to the current time.
//! - The stored state is that of the current time, under the limit of the last check. If the counter is unused in this
//!   state, it is removed.
//! - If keys expire, the counter is removed after the number of milliseconds, rounded up, after which it is unused.

use std::collections::BTreeMap;

use sluicegate_core::{
    Answers, Charge, Check, CounterKey, Limit, StoreError, Time, algorithm::State,
    store::RefusalScope,
};
use sluicegate_core_testkit::settle_states;

/// The longest expiry of a key, in microseconds.
const EXPIRY_MAX: u64 = (1 << 53) - 1;

/// The stored counters.
#[derive(Default)]
pub(crate) struct Model {
    kept: BTreeMap<Vec<u8>, Kept>,
    /// The expiry in milliseconds of each counter that the last call stored.
    pub(crate) given: BTreeMap<Vec<u8>, u64>,
}

/// A stored counter.
struct Kept {
    state: State,
    /// The last millisecond at which the counter exists, since the Unix epoch.
    expires: u64,
}

/// A counter during a call.
struct Open {
    key: CounterKey,
    limit: Limit,
    changed: bool,
}

impl Model {
    /// The state of a counter; of an unused one if it is not stored.
    pub(crate) fn state(&self, check: &Check) -> State {
        let kept = self.kept.get(check.key.as_bytes()).map(|kept| kept.state.clone());
        kept.unwrap_or_else(|| State::new(check.limit.algorithm()))
    }

    /// Removes the counters that have expired.
    pub(crate) fn expire(&mut self, now: Time) {
        self.kept.retain(|_, kept| now.as_micros() / 1_000 <= kept.expires);
    }

    /// Settles the groups of one call.
    pub(crate) fn settle(&mut self, groups: &[Vec<Check>], now: Time) -> Answers {
        let mut open: Vec<Open> = Vec::new();
        let mut states = Vec::new();
        let mut answers = Answers::new();
        self.given.clear();
        for group in groups {
            let state_positions: Vec<_> = group
                .iter()
                .map(|check| {
                    let at = open.iter().position(|it| it.key == check.key).unwrap_or_else(|| {
                        let (key, limit) = (check.key.clone(), check.limit);
                        open.push(Open { key, limit, changed: false });
                        states.push(self.state(check));
                        open.len() - 1
                    });
                    open[at].limit = check.limit;
                    Some(at)
                })
                .collect();
            for (position, at) in state_positions.iter().enumerate() {
                open[at.unwrap()].changed |=
                    refunds_hits(group, &state_positions, &states, position, now);
            }
            let settled =
                settle_states(group, &state_positions, &mut states, now, StoreError::Full);
            for (at, answer) in state_positions.iter().zip(&settled) {
                open[at.unwrap()].changed |= answer.unwrap().charged > 0;
            }
            answers.extend(settled);
        }
        for (it, state) in open.into_iter().zip(states) {
            if it.changed {
                self.store(&it, state, now);
            }
        }
        answers
    }

    fn store(&mut self, it: &Open, mut state: State, now: Time) {
        let key = it.key.as_bytes();
        let present = state.advance(&it.limit, now);
        let expires_after = state.expires_after(&it.limit, present);
        if expires_after == 0 {
            self.kept.remove(key);
            return;
        }
        let ahead = present.as_micros() - now.as_micros();
        let given = (ahead + expires_after).min(EXPIRY_MAX).div_ceil(1_000);
        self.given.insert(key.to_vec(), given);
        self.kept.insert(key.to_vec(), Kept { state, expires: now.as_micros() / 1_000 + given });
    }
}

/// Whether a check refunds hits: whether it changes the state after the checks before it. The earlier checks of its own
/// descriptor are not undone yet; those of earlier descriptors are, if their descriptor is over its limit.
fn refunds_hits(
    group: &[Check],
    state_positions: &[Option<usize>],
    states: &[State],
    position: usize,
    now: Time,
) -> bool {
    let check = &group[position];
    if !matches!(check.charge, Charge::Refund { .. }) {
        return false;
    }
    let mut states = states.to_vec();
    let first = group.iter().position(|it| it.descriptor == check.descriptor).unwrap();
    let mut settle = |from: usize, to: usize| {
        let mut checks = group[from..to].to_vec();
        checks.iter_mut().for_each(|check| check.refusal_scope = RefusalScope::None);
        settle_states(&checks, &state_positions[from..to], &mut states, now, StoreError::Full);
        let mut state = states[state_positions[position].unwrap()].clone();
        state.advance(&check.limit, now);
        state
    };
    settle(0, first);
    for position in first..position {
        settle(position, position + 1);
    }
    settle(0, 0) != settle(position, position + 1)
}
