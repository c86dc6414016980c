//! The locked shards of one group.

use parking_lot::{Mutex, MutexGuard};
use sluicegate_core::{Check, CounterKey, Counters, StoreError, Time, algorithm::State};
use smallvec::SmallVec;

use super::shard::Shard;
use crate::Reading;

/// The most shards of a store: more than cores, so that threads rarely contend.
pub(super) const SHARDS_MAX: usize = u64::BITS as usize;

/// Locked shards, in ascending order.
pub(super) struct Locked<'s> {
    shards: SmallVec<[(u64, MutexGuard<'s, Shard>); 4]>,
    /// Shards of the store.
    of: u64,
    /// The present.
    now: Reading,
}

impl<'s> Locked<'s> {
    /// Locks the shards of a group's counters, out of at most [`SHARDS_MAX`].
    pub(super) fn new(
        shards: &'s [Mutex<Shard>],
        group: &[Check],
        now: impl Fn() -> Reading,
    ) -> Self {
        let of = shards.len() as u64;
        // A bit for each shard: iteration yields them in order, and each once.
        let mut which =
            group.iter().fold(0_u64, |which, check| which | 1 << number(&check.key, of));
        let mut locked = SmallVec::new();
        while let Some(shard) = shards.get(which.trailing_zeros() as usize) {
            locked.push((u64::from(which.trailing_zeros()), shard.lock()));
            which &= which - 1;
        }
        // Read while the locks are held: a thread that waited for them must not use an old time.
        Self { shards: locked, of, now: now() }
    }
}

impl Counters for Locked<'_> {
    fn now(&self, check: &Check) -> Time {
        self.now.of(check.limit.algorithm())
    }

    fn with_state(
        &mut self,
        _position: usize,
        check: &Check,
        look: impl FnOnce(&mut State) -> Time,
    ) -> Result<(), StoreError> {
        let number = number(&check.key, self.of);
        let shard = self.shards.iter_mut().find(|(of, _)| *of == number);
        // All shards of the group are locked.
        let (_, shard) = shard.ok_or(StoreError::Unavailable)?;
        shard.with(check, self.now, look)
    }
}

/// The shard of a counter. From bits of the hash that the shard's table does not use: it uses the lowest and
/// the highest seven.
pub(super) fn number(key: &CounterKey, shards: u64) -> u64 {
    let part = key.hash64() >> 25 & u64::from(u32::MAX);
    (part * shards) >> 32
}
