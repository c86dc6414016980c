//! The embedded store: counters in this process's memory.
//!
//! Counters are in shards, each behind its own lock. A group locks the shards of its counters in
//! ascending order, so its checks are settled atomically, and no two
//! groups can wait for each other.
//!
//! Fixed windows follow the wall clock; all other states, and expiry, follow the steady clock, which ignores steps of
//! the wall clock.

mod inspect;
mod locked;
mod record;
mod shard;

use std::{slice, time::Duration};

use parking_lot::Mutex;
use sluicegate_core::{Answers, Batch, Check, Counters, Store, algorithm::State, settle};

use crate::{Clock, SystemClock};
use locked::{Locked, SHARDS_MAX};
use shard::Shard;

/// Fewer counters than this in a shard would make "full" a matter of chance.
const SHARD_COUNTERS_MIN: usize = 1024;

/// Size of a memory store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySettings {
    /// The most counters held at once. What is beyond is answered
    /// [`StoreError::Full`](sluicegate_core::StoreError::Full).
    pub counters_max: usize,
}

/// Counters in memory.
#[derive(Debug)]
pub struct Memory<C = SystemClock> {
    shards: Box<[Mutex<Shard>]>,
    clock: C,
}

impl<C: Clock> Memory<C> {
    /// An empty store with this clock.
    pub fn new(settings: MemorySettings, clock: C) -> Self {
        let shards = (settings.counters_max / SHARD_COUNTERS_MIN).clamp(1, SHARDS_MAX);
        let share = |shard| (settings.counters_max + shard) / shards;
        Self {
            shards: (0..shards).map(|shard| Mutex::new(Shard::new(share(shard)))).collect(),
            clock,
        }
    }

    /// Counters held, including expired ones that are not swept yet.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Whether no counter is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops expired counters, looking at no more than `steps` places of each shard. New counters sweep as they
    /// come; this is for when there are none.
    pub fn sweep(&self, steps: usize) {
        let now = self.clock.read().steady;
        for shard in &self.shards {
            shard.lock().sweep(now, steps);
        }
    }

    /// Charges the counter of a check so that at most `left_max` hits of the limit are left. A fixed window that ends long
    /// after `until_reset` is a later one than meant, and is not charged.
    pub(crate) fn lower(&self, check: &Check, left_max: u64, until_reset: Duration) {
        let limit = &check.limit;
        let latest = until_reset + Duration::from_micros(limit.window().micros() / 2);
        let mut locked = Locked::new(&self.shards, slice::from_ref(check), || self.clock.read());
        let now = locked.now(check);
        let lowered = locked.with_state(0, check, |state| {
            let now = state.advance(limit, now);
            let left_max = i64::try_from(left_max).unwrap_or(i64::MAX);
            let is_meant = !matches!(state, State::FixedWindow(_))
                || Duration::from_micros(state.reset_after(limit, now)) <= latest;
            if let Ok(hits @ 1..) =
                u64::try_from(state.available(limit, now).saturating_sub(left_max))
                && is_meant
            {
                state.charge(limit, now, hits);
            }
            now
        });
        // Without room for the counter, the check itself is refused.
        let _full = lowered.is_err();
    }

    /// Settles one request's checks.
    fn settle(&self, group: &[Check]) -> Answers {
        let mut locked = Locked::new(&self.shards, group, || self.clock.read());
        settle(group, &mut locked)
    }
}

impl<C: Clock> Store for Memory<C> {
    async fn decide(&self, batch: Batch) -> Answers {
        match batch.groups.as_slice() {
            [group] => self.settle(group),
            groups => groups.iter().flat_map(|group| self.settle(group)).collect(),
        }
    }
}
