//! Top counters: those that refuse most, and those that are near their limits.
//!
//! Counted by the space-saving sketch of Metwally, Agrawal and El Abbadi ("Efficient Computation of Frequent and Top-k
//! Elements in Data Streams", 2005) for windows of ten seconds, of which the last two are kept: a counter that no longer
//! refuses disappears after at most two. A decision far from its limits costs a comparison; others lock a part
//! of the sketch. If the lock is taken, the decision does not wait and counts as missed.

mod label;
mod sketch;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use sluicegate_core::{Check, Code, CounterKey, Decision, Status, store::Source};

pub(crate) use label::{RuleLabel, RuleLabels};
use sketch::{Entry, Sketch};

use super::count::Count;
use crate::values::NearLimitRatio;

/// How long what happens counts before it is a part of the past.
pub(crate) const WINDOW: Duration = Duration::from_secs(10);

/// Parts of the sketch: more than threads that are likely to meet.
const SHARDS_MAX: usize = 16;

/// Fewer counters than this in a part would let chance decide which are kept.
const SHARD_KEYS_MIN: usize = 64;

/// What counters are counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TopList {
    /// Descriptors that they refuse.
    Denied,
    /// Descriptors that pass near the limit.
    Near,
}

/// Counters that refuse, and counters near their limits.
pub(crate) struct Top {
    began: Instant,
    near_ratio: NearLimitRatio,
    denied: ShardedSketch,
    near: ShardedSketch,
}

/// The counters of one kind.
struct ShardedSketch {
    shards: Box<[Mutex<Shard>]>,
    missed: Count,
}

/// A part of the counters: those of this window and of the one before it.
struct Shard {
    /// Windows since the beginning, at the start of the present one.
    window: u128,
    present: Sketch,
    past: Sketch,
}

/// A top counter.
#[derive(Clone, Debug)]
pub(crate) struct TopEntry {
    /// Domain and rule.
    pub(crate) label: Arc<RuleLabel>,
    /// Text of the key.
    pub(crate) key: Vec<u8>,
    /// How often, since the window before this one began; never less than the truth, except for what was missed.
    pub(crate) count: u64,
    /// By how much that may be too much.
    pub(crate) error: u64,
    /// How often per second, over the last ten; never more than the truth.
    pub(crate) rate: f64,
    /// How often since it was first kept, without a break; never more than the truth.
    pub(crate) total: u64,
    /// Since the last time.
    pub(crate) age: Duration,
    /// Thousandths of the limit that were used then.
    pub(crate) used_permille: u32,
}

impl Top {
    /// Remembers so many counters of each kind; `None` if none.
    pub(crate) fn new(keys: usize, near_ratio: NearLimitRatio) -> Option<Self> {
        (keys > 0).then(|| Self {
            began: Instant::now(),
            near_ratio,
            denied: ShardedSketch::new(keys),
            near: ShardedSketch::new(keys),
        })
    }

    /// Counts a descriptor, by the check that speaks for it, if it is refused or near its limit.
    pub(crate) fn note<'l>(
        &self,
        status: &Status<'_>,
        check: &Check,
        decision: &Decision,
        label: impl FnOnce() -> Option<&'l Arc<RuleLabel>>,
    ) {
        // Refusals of failure policies do not depend on the counter, and a local share is not the limit.
        let known = match decision.source {
            Source::Store => true,
            Source::DenyCache | Source::Local => !decision.allowed,
            Source::Policy | Source::NotAsked => false,
        };
        if !known || !check.charge.adds_hits() {
            return;
        }
        let capacity = check.limit.capacity();
        let used = u64::from(capacity).saturating_sub(decision.remaining) + decision.excess;
        let counted = match status.code {
            Code::OverLimit => &self.denied,
            Code::Ok if used > self.near_ratio.of(capacity) || status.shadowed => &self.near,
            Code::Ok => return,
        };
        if let Some(label) = label() {
            let used = if decision.allowed { permille(used, capacity) } else { FULL };
            counted.add(self.began.elapsed(), &check.key, label, used);
        }
    }

    /// The counters of a kind, in no order.
    pub(crate) fn list(&self, kind: TopList) -> Vec<TopEntry> {
        self.of(kind).list(self.began.elapsed())
    }

    /// Descriptors of a kind that were not counted because the lock was taken.
    pub(crate) fn missed(&self, kind: TopList) -> u64 {
        self.of(kind).missed.get()
    }

    const fn of(&self, kind: TopList) -> &ShardedSketch {
        match kind {
            TopList::Denied => &self.denied,
            TopList::Near => &self.near,
        }
    }
}

/// A limit that is used up.
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
            let (present, past) = (Sketch::new(share(shard)), Sketch::new(share(shard)));
            Mutex::new(Shard { window: 0, present, past })
        };
        Self { shards: (0..shards).map(shard).collect(), missed: Count::default() }
    }

    /// `at` is the time since the beginning.
    fn add(&self, at: Duration, key: &CounterKey, label: &Arc<RuleLabel>, used_permille: u32) {
        let place = (u128::from(key.hash64()) * self.shards.len() as u128) >> u64::BITS;
        let shard = usize::try_from(place).ok().and_then(|place| self.shards.get(place));
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
    /// Begins another window, if it is time.
    fn turn(&mut self, at: Duration) {
        let window = at.as_millis() / WINDOW.as_millis();
        match window.saturating_sub(self.window) {
            0 => return,
            1 => std::mem::swap(&mut self.present, &mut self.past),
            _ => self.past.clear(),
        }
        self.present.clear();
        self.window = window;
    }

    fn add(&mut self, at: Duration, key: &CounterKey, label: &Arc<RuleLabel>, used_permille: u32) {
        self.turn(at);
        let past = &self.past;
        self.present.add(key, |entry, is_new| {
            if is_new {
                entry.label = Some(Arc::clone(label));
                entry.total = past.get(key.hash64(), key.as_bytes()).map_or(0, |it| it.total);
            }
            entry.total += 1;
            entry.last = at;
            entry.used_permille = used_permille;
        });
    }

    fn list(&mut self, at: Duration, listed: &mut Vec<TopEntry>) {
        self.turn(at);
        let into = at.as_secs_f64() % WINDOW.as_secs_f64();
        let share_of_past = 1.0 - into / WINDOW.as_secs_f64();
        let span = at.min(WINDOW).as_secs_f64().max(1.0);
        let mut show = |newest: &Entry, present: Option<&Entry>, past: Option<&Entry>| {
            let Some(label) = &newest.label else { return };
            // Where a sketch has no entry, it may have lost one of at most its least count.
            let bounds = |entry: Option<&Entry>, of: &Sketch| {
                entry.map_or((of.least(), of.least()), |entry| (entry.count, entry.error))
            };
            let (present_count, present_error) = bounds(present, &self.present);
            let (past_count, past_error) = bounds(past, &self.past);
            let sure = |entry: Option<&Entry>| entry.map_or(0, |it| it.count - it.error);
            listed.push(TopEntry {
                label: Arc::clone(label),
                key: newest.key.to_vec(),
                count: present_count + past_count,
                error: present_error + past_error,
                rate: (number(sure(present)) + number(sure(past)) * share_of_past) / span,
                total: newest.total,
                age: at.saturating_sub(newest.last),
                used_permille: newest.used_permille,
            });
        };
        for present in self.present.entries() {
            show(present, Some(present), self.past.get(present.hash, &present.key));
        }
        for past in self.past.entries() {
            if self.present.get(past.hash, &past.key).is_none() {
                show(past, None, Some(past));
            }
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of seconds")]
const fn number(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests;
