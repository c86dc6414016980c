//! Top counters: those that refuse most, and those that are near their limits.
//!
//! They are counted by the space-saving sketch of Metwally, Agrawal and El Abbadi ("Efficient Computation of Frequent
//! and Top-k Elements in Data Streams", 2005), in windows of ten seconds, of which two are kept. So a counter that no
//! longer refuses disappears after at most two windows. A decision far from its limits costs a comparison; others lock
//! a shard of the sketch. If the lock is held, the decision does not wait, and counts as missed.

mod label;
mod sketch;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use sluicegate_core::{Check, Code, CounterKey, Decision, DescriptorStatus, store::DecisionSource};

pub(crate) use label::{RuleLabel, RuleLabels};
use sketch::{Entry, Sketch};

use super::count::Count;
use crate::values::NearLimitRatio;

/// The length of a window.
pub(crate) const WINDOW: Duration = Duration::from_secs(10);

/// The most shards of a sketch: more than the threads that are likely to use it at the same time.
const SHARDS_MAX: usize = 16;

/// The fewest counters of a shard. With fewer, the choice of the counters that are kept would be random.
const SHARD_KEYS_MIN: usize = 64;

/// The lists of top counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TopList {
    /// Counters, by the descriptors that they refuse.
    Refused,
    /// Counters, by the descriptors that they allow near the limit, or would refuse without shadow mode.
    Near,
}

/// Counters that refuse, and counters near their limits.
pub(crate) struct TopCounters {
    began: Instant,
    near_ratio: NearLimitRatio,
    refused: ShardedSketch,
    near: ShardedSketch,
}

/// The counters of one list.
struct ShardedSketch {
    shards: Box<[Mutex<Shard>]>,
    missed: Count,
}

/// A part of the counters, in the current window and in the previous one.
struct Shard {
    /// The number of the current window.
    window: u128,
    current: Sketch,
    previous: Sketch,
}

/// A top counter.
#[derive(Clone, Debug)]
pub(crate) struct TopEntry {
    /// Domain and rule.
    pub(crate) label: Arc<RuleLabel>,
    /// Text of the key.
    pub(crate) key: Vec<u8>,
    /// Upper bound of the number of descriptors in both windows, not counting missed ones.
    pub(crate) count: u64,
    /// The amount by which `count` may exceed the true number.
    pub(crate) error: u64,
    /// Lower bound of the descriptors per second in the last ten seconds.
    pub(crate) rate: f64,
    /// Lower bound of the number of descriptors since the counter entered the list, which it has not left since.
    pub(crate) total: u64,
    /// The time since the last descriptor.
    pub(crate) age: Duration,
    /// Thousandths of the limit that were used after the last descriptor.
    pub(crate) used_permille: u32,
}

impl TopCounters {
    /// Records at most `keys` counters in each list; `None` for 0.
    pub(crate) fn new(keys: usize, near_ratio: NearLimitRatio) -> Option<Self> {
        (keys > 0).then(|| Self {
            began: Instant::now(),
            near_ratio,
            refused: ShardedSketch::new(keys),
            near: ShardedSketch::new(keys),
        })
    }

    /// Counts a descriptor, according to the check that determines its status, if it is refused or near its limit.
    pub(crate) fn count<'l>(
        &self,
        status: &DescriptorStatus<'_>,
        check: &Check,
        decision: &Decision,
        label: impl FnOnce() -> Option<&'l Arc<RuleLabel>>,
    ) {
        // Failure policies refuse independently of the counter, and a replica's share of the limit does not show
        // whether the limit is near.
        let depends_on_limit = match decision.source {
            DecisionSource::Store => true,
            DecisionSource::DenyCache | DecisionSource::LocalFallback => !decision.allowed,
            DecisionSource::FailurePolicy | DecisionSource::NotAsked => false,
        };
        if !depends_on_limit || !check.charge.adds_hits() {
            return;
        }
        let capacity = check.limit.capacity();
        let used = u64::from(capacity).saturating_sub(decision.remaining) + decision.excess;
        let sketch = match status.code {
            Code::OverLimit => &self.refused,
            Code::Ok if used > self.near_ratio.threshold(capacity) || status.shadowed => &self.near,
            Code::Ok => return,
        };
        if let Some(label) = label() {
            let used = if decision.allowed { permille(used, capacity) } else { FULL };
            sketch.add(self.began.elapsed(), &check.key, label, used);
        }
    }

    /// The counters of a list, unsorted.
    pub(crate) fn list(&self, list: TopList) -> Vec<TopEntry> {
        self.sketch(list).list(self.began.elapsed())
    }

    /// The descriptors that a list missed because its lock was held.
    pub(crate) fn missed(&self, list: TopList) -> u64 {
        self.sketch(list).missed.get()
    }

    const fn sketch(&self, list: TopList) -> &ShardedSketch {
        match list {
            TopList::Refused => &self.refused,
            TopList::Near => &self.near,
        }
    }
}

/// The permille of a limit that is used up.
const FULL: u32 = 1000;

fn permille(used: u64, capacity: u32) -> u32 {
    let share = used.saturating_mul(u64::from(FULL)) / u64::from(capacity.max(1));
    u32::try_from(share).unwrap_or(u32::MAX)
}

impl ShardedSketch {
    fn new(keys: usize) -> Self {
        let shards = (keys / SHARD_KEYS_MIN).clamp(1, SHARDS_MAX);
        let share = |shard| (keys + shard) / shards;
        let shard = |shard| {
            let (current, previous) = (Sketch::new(share(shard)), Sketch::new(share(shard)));
            Mutex::new(Shard { window: 0, current, previous })
        };
        Self { shards: (0..shards).map(shard).collect(), missed: Count::default() }
    }

    /// Counts a descriptor. `at` is the time since [`TopCounters`] was created.
    fn add(&self, at: Duration, key: &CounterKey, label: &Arc<RuleLabel>, used_permille: u32) {
        let index = (u128::from(key.hash64()) * self.shards.len() as u128) >> u64::BITS;
        let shard = usize::try_from(index).ok().and_then(|index| self.shards.get(index));
        match shard.and_then(Mutex::try_lock) {
            Some(mut shard) => shard.add(at, key, label, used_permille),
            None => self.missed.add(1),
        }
    }

    fn list(&self, at: Duration) -> Vec<TopEntry> {
        let mut listed = Vec::new();
        for shard in &self.shards {
            shard.lock().list(at, &mut listed);
        }
        listed
    }
}

impl Shard {
    /// Begins the next window, if it is due.
    fn rotate(&mut self, at: Duration) {
        let window = at.as_millis() / WINDOW.as_millis();
        match window.saturating_sub(self.window) {
            0 => return,
            1 => std::mem::swap(&mut self.current, &mut self.previous),
            _ => self.previous.clear(),
        }
        self.current.clear();
        self.window = window;
    }

    fn add(&mut self, at: Duration, key: &CounterKey, label: &Arc<RuleLabel>, used_permille: u32) {
        self.rotate(at);
        let previous = &self.previous;
        self.current.add(key, |entry, is_new| {
            if is_new {
                entry.label = Some(Arc::clone(label));
                entry.total = previous.get(key.hash64(), key.as_bytes()).map_or(0, |it| it.total);
            }
            entry.total += 1;
            entry.last = at;
            entry.used_permille = used_permille;
        });
    }

    fn list(&mut self, at: Duration, listed: &mut Vec<TopEntry>) {
        self.rotate(at);
        let elapsed = at.as_secs_f64() % WINDOW.as_secs_f64();
        let previous_share = 1.0 - elapsed / WINDOW.as_secs_f64();
        let seconds = at.min(WINDOW).as_secs_f64().max(1.0);
        let mut add = |newest: &Entry, current: Option<&Entry>, previous: Option<&Entry>| {
            let Some(label) = &newest.label else { return };
            // A sketch without an entry for the key may have evicted one, with at most its smallest count.
            let bounds = |entry: Option<&Entry>, sketch: &Sketch| {
                entry.map_or((sketch.min_count(), sketch.min_count()), |it| (it.count, it.error))
            };
            let (current_count, current_error) = bounds(current, &self.current);
            let (previous_count, previous_error) = bounds(previous, &self.previous);
            let at_least =
                |entry: Option<&Entry>| number(entry.map_or(0, |it| it.count - it.error));
            listed.push(TopEntry {
                label: Arc::clone(label),
                key: newest.key.to_vec(),
                count: current_count + previous_count,
                error: current_error + previous_error,
                rate: (at_least(current) + at_least(previous) * previous_share) / seconds,
                total: newest.total,
                age: at.saturating_sub(newest.last),
                used_permille: newest.used_permille,
            });
        };
        for current in self.current.entries() {
            add(current, Some(current), self.previous.get(current.hash, &current.key));
        }
        for previous in self.previous.entries() {
            if self.current.get(previous.hash, &previous.key).is_none() {
                add(previous, None, Some(previous));
            }
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of a few seconds")]
const fn number(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests;
