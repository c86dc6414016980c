//! One shard: counters by key, and the sweep of expired ones.

use hashbrown::HashTable;
use sluicegate_core::{Check, CounterKey, StoreError, Time, algorithm::State};

use super::record::{self, Record};
use crate::Reading;

/// Slots of the table that are swept for each new counter. Enough that sweeping outruns filling,
/// although some slots are empty.
const SWEEP_STEPS: usize = 4;

/// Slots swept if a shard is full.
const SWEEP_STEPS_FULL: usize = 64;

/// Below this a shard keeps its memory.
const SHRINK_MIN: usize = 1024;

/// Position of the sweep in a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    at: usize,
    /// Number of rearrangements of the table at that time.
    moves: u64,
}

/// Counters behind one lock.
#[derive(Debug)]
pub(super) struct Shard {
    counters: HashTable<Record>,
    counters_max: usize,
    /// Next slot of the sweep.
    hand: usize,
    /// Number of rearrangements of the table.
    moves: u64,
}

impl Shard {
    pub(super) fn new(counters_max: usize) -> Self {
        Self { counters: HashTable::new(), counters_max, hand: 0, moves: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.counters.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.counters.len() >= self.counters_max
    }

    /// Keys of wanted, unexpired counters in at most `steps` slots from `from` on, and the next position. Starts again if
    /// the table was rearranged since.
    pub(super) fn keys(
        &self,
        from: Place,
        steps: usize,
        now: Time,
        wanted: impl Fn(&[u8]) -> bool,
    ) -> (Vec<CounterKey>, Option<Place>) {
        let first = if from.moves == self.moves { from.at } else { 0 };
        let places = self.counters.num_buckets();
        let end = places.min(first.saturating_add(steps));
        let counters = (first..end).filter_map(|place| self.counters.get_bucket(place));
        let live = counters.filter(|counter| counter.expires() > now).map(Record::key);
        let found = live.filter(|key| wanted(key)).filter_map(CounterKey::from_text).collect();
        (found, (end < places).then_some(Place { at: end, moves: self.moves }))
    }

    /// Whether a counter is held that has not expired.
    pub(super) fn holds(&self, key: &CounterKey, now: Time) -> bool {
        let same = |counter: &Record| counter.key() == key.as_bytes();
        let found = self.counters.find(key.hash64(), same);
        found.is_some_and(|counter| counter.expires() > now)
    }

    /// Removes a counter. Returns whether it existed and had not expired.
    pub(super) fn remove(&mut self, key: &CounterKey, now: Time) -> bool {
        let same = |counter: &Record| counter.key() == key.as_bytes();
        let Ok(counter) = self.counters.find_entry(key.hash64(), same) else { return false };
        let (counter, _) = counter.remove();
        counter.expires() > now
    }

    /// Removes expired counters from the next `steps` slots.
    pub(super) fn sweep(&mut self, now: Time, steps: usize) {
        let places = self.counters.num_buckets();
        for _ in 0..steps.min(places) {
            if self.hand >= places {
                self.hand = 0;
            }
            if let Ok(counter) = self.counters.get_bucket_entry(self.hand)
                && counter.get().expires() <= now
            {
                counter.remove();
            }
            self.hand += 1;
        }
        let (len, capacity) = (self.counters.len(), self.counters.capacity());
        if len * 4 < capacity && capacity > SHRINK_MIN {
            self.moves += 1;
            self.counters.shrink_to(len * 2, hash);
        }
    }

    /// Calls `look` with the state of a check's counter, which may change it. An unused counter is not stored.
    ///
    /// # Errors
    /// The counter is new, would be charged, and there is no room.
    pub(super) fn with(
        &mut self,
        check: &Check,
        now: Reading,
        look: impl FnOnce(&mut State) -> Time,
    ) -> Result<(), StoreError> {
        let same = |counter: &Record| counter.key() == check.key.as_bytes();
        let Ok(mut counter) = self.counters.find_entry(check.key.hash64(), same) else {
            return self.with_new(check, now, look);
        };
        if counter.get_mut().with(&check.limit, now, look) <= now.steady {
            counter.remove();
        }
        Ok(())
    }

    fn with_new(
        &mut self,
        check: &Check,
        now: Reading,
        look: impl FnOnce(&mut State) -> Time,
    ) -> Result<(), StoreError> {
        if check.charge.adds_hits() && self.is_full() {
            self.sweep(now.steady, SWEEP_STEPS_FULL);
            if self.is_full() {
                return Err(StoreError::Full);
            }
        }
        let mut state = State::new(check.limit.algorithm());
        // The counter may have existed a moment ago, when it was checked.
        state.advance(&check.limit, now.of(check.limit.algorithm()));
        let time = look(&mut state);
        let expires = record::expires(&state, &check.limit, time, now);
        if expires > now.steady {
            self.sweep(now.steady, SWEEP_STEPS);
            let counter = Record::new(check.key.as_bytes(), state, expires);
            // Without room the table grows, or is rehashed in place.
            self.moves += u64::from(self.counters.len() == self.counters.capacity());
            self.counters.insert_unique(check.key.hash64(), counter, hash);
        }
        Ok(())
    }
}

/// Hash of a counter for the table. Computed again when the table is resized: a stored hash
/// would cost as much memory as the state.
fn hash(counter: &Record) -> u64 {
    CounterKey::hash64_of(counter.key())
}
