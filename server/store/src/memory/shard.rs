//! One shard: counters by key, and the hand that sweeps the expired ones.

use std::mem;

use foldhash::fast::RandomState;
use indexmap::IndexMap;
use sluicegate_core::{Algorithm, Time, algorithm::State};

/// Counters behind one lock.
#[derive(Debug)]
pub(super) struct Shard {
    counters: IndexMap<Box<[u8]>, Counter, RandomState>,
    counters_max: usize,
    /// Room promised to counters that are being settled.
    reserved: usize,
    /// Where sweeping goes on.
    hand: usize,
}

#[derive(Debug)]
struct Counter {
    state: State,
    /// From then on the state is as if never used.
    expires: Time,
}

impl Shard {
    pub(super) fn new(counters_max: usize) -> Self {
        Self { counters: IndexMap::default(), counters_max, reserved: 0, hand: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.counters.len()
    }

    pub(super) fn has_room(&self, counters: usize) -> bool {
        self.counters.len() + self.reserved + counters <= self.counters_max
    }

    /// Looks at the next `steps` counters and drops those that have expired.
    pub(super) fn sweep(&mut self, now: Time, steps: usize) {
        for _ in 0..steps.min(self.counters.len()) {
            if self.hand >= self.counters.len() {
                self.hand = 0;
            }
            let expired = |(_, counter): (_, &Counter)| counter.expires <= now;
            if self.counters.get_index(self.hand).is_some_and(expired) {
                // The last counter moves here, so the hand stays.
                self.counters.swap_remove_index(self.hand);
            } else {
                self.hand += 1;
            }
        }
        if self.counters.len() * 4 < self.counters.capacity()
            && self.counters.capacity() > SHRINK_MIN
        {
            self.counters.shrink_to(self.counters.len() * 2);
        }
    }

    /// Takes a counter's state out, to be put back.
    pub(super) fn take(&mut self, key: &[u8]) -> Option<(usize, State)> {
        let (at, _, counter) = self.counters.get_full_mut(key)?;
        let hole = State::new(Algorithm::FixedWindow);
        Some((at, mem::replace(&mut counter.state, hole)))
    }

    /// Puts a state back where it was taken.
    pub(super) fn put_back(&mut self, at: usize, state: State, expires: Time) {
        if let Some((_, counter)) = self.counters.get_index_mut(at) {
            *counter = Counter { state, expires };
        }
    }

    /// Promises room for a new counter; false if there is none.
    pub(super) fn reserve(&mut self) -> bool {
        let has_room = self.has_room(1);
        self.reserved += usize::from(has_room);
        has_room
    }

    /// Uses the promised room, or gives it up.
    pub(super) fn release(&mut self, key: &[u8], counter: Option<(State, Time)>) {
        self.reserved -= 1;
        if let Some((state, expires)) = counter {
            self.counters.insert(key.into(), Counter { state, expires });
        }
    }
}

/// Below this a shard keeps its memory.
const SHRINK_MIN: usize = 1024;
