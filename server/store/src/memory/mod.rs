//! The embedded store: counters in this process's memory.
//!
//! Counters are in shards, each with its own lock. A group locks the shards of its counters in
//! ascending order, so that its checks are settled atomically and groups do not deadlock.
//!
//! Fixed windows follow the wall clock. All other states, and expiry, follow the steady clock, which ignores steps of
//! the wall clock.

mod inspect;
mod locked_shards;
mod record;
mod shard;

use std::{slice, time::Duration};

use parking_lot::Mutex;
use sluicegate_core::{Answers, Batch, Check, CounterAccess, Store, algorithm::State, settle};

use crate::{Clock, SystemClock};
use locked_shards::{LockedShards, SHARDS_MAX};
use shard::Shard;

/// Minimum number of counters of a shard: with fewer, one shard could be full long before the others.
const SHARD_COUNTERS_MIN: usize = 1024;

/// Size of a memory store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySettings {
    /// The most counters, divided among the shards. A check that needs another one in a full shard is answered
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

    /// Number of counters, including expired ones that are not swept yet.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Whether there is no counter.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes expired counters from the next `steps` buckets of each shard. Each new counter sweeps some buckets, too;
    /// this call is for times without new counters.
    pub fn sweep(&self, steps: usize) {
        let now = self.clock.read().steady;
        for shard in &self.shards {
            shard.lock().sweep(now, steps);
        }
    }

    /// Charges the counter of a check until at most `remaining_max` hits remain. Does not charge a fixed window that
    /// ends more than half a window later than `reset_after`: it is a later window than the caller means.
    pub(crate) fn cap_remaining(&self, check: &Check, remaining_max: u64, reset_after: Duration) {
        let limit = &check.limit;
        let latest = reset_after + Duration::from_micros(limit.window().micros() / 2);
        let mut locked =
            LockedShards::new(&self.shards, slice::from_ref(check), || self.clock.read());
        let now = locked.now(check);
        let capped = locked.with_state(0, check, |state| {
            let now = state.advance(limit, now);
            let remaining_max = i64::try_from(remaining_max).unwrap_or(i64::MAX);
            let is_meant = !matches!(state, State::FixedWindow(_))
                || Duration::from_micros(state.reset_after(limit, now)) <= latest;
            if let Ok(hits @ 1..) =
                u64::try_from(state.available(limit, now).saturating_sub(remaining_max))
                && is_meant
            {
                state.charge(limit, now, hits);
            }
            now
        });
        // Without room for the counter, the check itself is refused afterwards.
        let _full = capped.is_err();
    }

    /// Settles one request's checks.
    fn settle(&self, group: &[Check]) -> Answers {
        let mut locked = LockedShards::new(&self.shards, group, || self.clock.read());
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
