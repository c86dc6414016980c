//! One shard: counters by key, and the sweep of expired ones.

use hashbrown::HashTable;
use sluicegate_core::{Check, CounterKey, StoreError, Time, algorithm::State};

use super::record::{self, Record};
use crate::ClockTimes;

/// Buckets of the table that are swept for each new counter. Enough to remove expired counters faster than new ones
/// arrive, although some buckets are empty.
const SWEEP_STEPS: usize = 4;

/// Buckets that are swept if the shard is full.
const SWEEP_STEPS_FULL: usize = 64;

/// Capacity up to which a table is not shrunk.
const SHRINK_MIN: usize = 1024;

/// Position of a scan in a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScanPosition {
    bucket: usize,
    /// The shard's `rearrangements` at that time.
    rearrangements: u64,
}

/// The counters of one shard.
#[derive(Debug)]
pub(super) struct Shard {
    counters: HashTable<Record>,
    counters_max: usize,
    /// Next bucket of the sweep.
    next_swept: usize,
    /// How often the table was resized or rehashed, which moves counters to other buckets.
    rearrangements: u64,
}

impl Shard {
    pub(super) fn new(counters_max: usize) -> Self {
        Self { counters: HashTable::new(), counters_max, next_swept: 0, rearrangements: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.counters.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.counters.len() >= self.counters_max
    }

    /// Keys of unexpired counters that match `is_wanted` in the next `steps` buckets, and the position after them;
    /// `None` at the end. Starts again at the first bucket if the table was rearranged since `from`.
    pub(super) fn scan(
        &self,
        from: ScanPosition,
        steps: usize,
        now: Time,
        is_wanted: impl Fn(&[u8]) -> bool,
    ) -> (Vec<CounterKey>, Option<ScanPosition>) {
        let is_same_table = from.rearrangements == self.rearrangements;
        let first = if is_same_table { from.bucket } else { 0 };
        let buckets = self.counters.num_buckets();
        let end = buckets.min(first.saturating_add(steps));
        let counters = (first..end).filter_map(|bucket| self.counters.get_bucket(bucket));
        let live = counters.filter(|counter| counter.expires() > now).map(Record::key);
        let found = live.filter(|key| is_wanted(key)).filter_map(CounterKey::from_text).collect();
        let next = ScanPosition { bucket: end, rearrangements: self.rearrangements };
        (found, (end < buckets).then_some(next))
    }

    /// Whether the shard has this counter, unexpired.
    pub(super) fn contains(&self, key: &CounterKey, now: Time) -> bool {
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

    /// Removes expired counters from the next `steps` buckets.
    pub(super) fn sweep(&mut self, now: Time, steps: usize) {
        let buckets = self.counters.num_buckets();
        for _ in 0..steps.min(buckets) {
            if self.next_swept >= buckets {
                self.next_swept = 0;
            }
            if let Ok(counter) = self.counters.get_bucket_entry(self.next_swept)
                && counter.get().expires() <= now
            {
                counter.remove();
            }
            self.next_swept += 1;
        }
        let (len, capacity) = (self.counters.len(), self.counters.capacity());
        if len * 4 < capacity && capacity > SHRINK_MIN {
            self.rearrangements += 1;
            self.counters.shrink_to(len * 2, hash);
        }
    }

    /// Calls `change` with the state of a check's counter. `change` returns the time of the state. A counter that is
    /// unused afterwards is not stored.
    ///
    /// # Errors
    /// [`StoreError::Full`]: the check would create a counter in a full shard.
    pub(super) fn with_state(
        &mut self,
        check: &Check,
        now: ClockTimes,
        change: impl FnOnce(&mut State) -> Time,
    ) -> Result<(), StoreError> {
        let same = |counter: &Record| counter.key() == check.key.as_bytes();
        let Ok(mut counter) = self.counters.find_entry(check.key.hash64(), same) else {
            return self.with_new_state(check, now, change);
        };
        if counter.get_mut().with_state(&check.limit, now, change) <= now.steady {
            counter.remove();
        }
        Ok(())
    }

    fn with_new_state(
        &mut self,
        check: &Check,
        now: ClockTimes,
        change: impl FnOnce(&mut State) -> Time,
    ) -> Result<(), StoreError> {
        if check.charge.adds_hits() && self.is_full() {
            self.sweep(now.steady, SWEEP_STEPS_FULL);
            if self.is_full() {
                return Err(StoreError::Full);
            }
        }
        let mut state = State::new(check.limit.algorithm());
        // Advanced, because an undone charge of the same group may have removed the counter, and its state is then read
        // without being advanced.
        state.advance(&check.limit, now.for_algorithm(check.limit.algorithm()));
        let time = change(&mut state);
        let expires = record::expires(&state, &check.limit, time, now);
        if expires > now.steady {
            self.sweep(now.steady, SWEEP_STEPS);
            let counter = Record::new(check.key.as_bytes(), state, expires);
            // Without room the insertion grows the table, or rehashes it in place.
            self.rearrangements += u64::from(self.counters.len() == self.counters.capacity());
            self.counters.insert_unique(check.key.hash64(), counter, hash);
        }
        Ok(())
    }
}

/// Hash of a counter for the table. Not stored, because it would take as much memory as the state; a resize of the
/// table computes it again.
fn hash(counter: &Record) -> u64 {
    CounterKey::hash64_of(counter.key())
}
