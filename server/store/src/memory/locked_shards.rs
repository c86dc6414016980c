//! The locked shards of a group's counters.

use parking_lot::{Mutex, MutexGuard};
use sluicegate_core::{Check, CounterAccess, CounterKey, StoreError, Time, algorithm::State};
use smallvec::SmallVec;

use super::shard::Shard;
use crate::ClockTimes;

/// The most shards of a store: more than cores, so that threads rarely contend.
pub(super) const SHARDS_MAX: usize = u64::BITS as usize;

/// Locked shards, in ascending order.
pub(super) struct LockedShards<'s> {
    shards: SmallVec<[(u64, MutexGuard<'s, Shard>); 4]>,
    /// Number of shards of the store.
    count: u64,
    /// The present.
    now: ClockTimes,
}

impl<'s> LockedShards<'s> {
    /// Locks the shards of a group's counters, out of at most [`SHARDS_MAX`].
    pub(super) fn new(
        shards: &'s [Mutex<Shard>],
        group: &[Check],
        now: impl Fn() -> ClockTimes,
    ) -> Self {
        let count = shards.len() as u64;
        // One bit for each shard, so that each shard is locked once, in ascending order.
        let mut which =
            group.iter().fold(0_u64, |which, check| which | 1 << shard_number(&check.key, count));
        let mut locked = SmallVec::new();
        while let Some(shard) = shards.get(which.trailing_zeros() as usize) {
            locked.push((u64::from(which.trailing_zeros()), shard.lock()));
            which &= which - 1;
        }
        // The time is read under the locks: a time from before the wait for them could be older than a state.
        Self { shards: locked, count, now: now() }
    }
}

impl CounterAccess for LockedShards<'_> {
    fn now(&self, check: &Check) -> Time {
        self.now.for_algorithm(check.limit.algorithm())
    }

    fn with_state(
        &mut self,
        _position: usize,
        check: &Check,
        change: impl FnOnce(&mut State) -> Time,
    ) -> Result<(), StoreError> {
        let number = shard_number(&check.key, self.count);
        let shard = self.shards.iter_mut().find(|(locked, _)| *locked == number);
        // Never missing: all shards of the group are locked.
        let (_, shard) = shard.ok_or(StoreError::Unavailable)?;
        shard.with_state(check, self.now, change)
    }
}

/// Number of a counter's shard. Computed from bits of the hash that the shard's table does not use: the table uses the
/// lowest bits and the highest seven.
pub(super) fn shard_number(key: &CounterKey, shards: u64) -> u64 {
    let part = key.hash64() >> 25 & u64::from(u32::MAX);
    (part * shards) >> 32
}
