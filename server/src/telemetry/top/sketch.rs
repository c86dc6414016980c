//! The space-saving sketch: a fixed number of counters. A new entry evicts the one with the least count, which becomes
//! the new entry's error bound.
//!
//! So a count is never below the true number, and above it by at most its error, which is at most the least count.
//! Every key with more events than the total divided by the number of counters is in the sketch.

use std::{collections::HashMap, sync::Arc, time::Duration};

use sluicegate_core::CounterKey;
use smallvec::SmallVec;

use super::RuleLabel;

/// Counts of the most frequent keys.
#[derive(Debug)]
pub(super) struct Sketch {
    /// How many there may be.
    keys_max: usize,
    /// By count, the least first; those without a label are free. Made at the first use, all at once.
    entries: Vec<Entry>,
    /// Where the entry of a key with this hash is.
    places: HashMap<u64, usize>,
}

/// One key.
#[derive(Clone, Debug, Default)]
pub(super) struct Entry {
    /// Its hash.
    pub(super) hash: u64,
    /// Its text.
    pub(super) key: SmallVec<[u8; 88]>,
    /// Domain and rule.
    pub(super) label: Option<Arc<RuleLabel>>,
    /// How often; never less than the truth.
    pub(super) count: u64,
    /// By how much that may be too much.
    pub(super) error: u64,
    /// How often since it was first kept, in this sketch and those before it.
    pub(super) total: u64,
    /// When it was counted last.
    pub(super) last: Duration,
    /// Thousandths of the limit that were used then.
    pub(super) used_permille: u32,
}

impl Sketch {
    pub(super) fn new(keys_max: usize) -> Self {
        Self { keys_max, entries: Vec::new(), places: HashMap::new() }
    }

    /// Counts a key, and lets `note` write to its entry, and know whether that is new.
    pub(super) fn add(&mut self, key: &CounterKey, note: impl FnOnce(&mut Entry, bool)) {
        if self.entries.is_empty() {
            self.entries.resize_with(self.keys_max, Entry::default);
            self.places.reserve(self.keys_max);
        }
        let known = self.places.get(&key.hash64()).copied();
        let place = known.unwrap_or(0);
        let Some(entry) = self.entries.get_mut(place) else { return };
        if known.is_none() {
            if entry.label.is_some() {
                self.places.remove(&entry.hash);
            }
            entry.hash = key.hash64();
            entry.key.clear();
            entry.key.extend_from_slice(key.as_bytes());
            entry.error = entry.count;
        } else if *entry.key != *key.as_bytes() {
            // Two keys of one hash: the one that came first stays.
            return;
        }
        note(entry, known.is_none());
        self.increment(place);
    }

    /// Adds one to an entry, and puts it behind all that have as many as it had.
    fn increment(&mut self, place: usize) {
        let Some(count) = self.entries.get(place).map(|entry| entry.count) else { return };
        let behind = self.entries.partition_point(|entry| entry.count <= count);
        let Some(to) = behind.checked_sub(1) else { return };
        self.entries.swap(place, to);
        for moved in [place, to] {
            if let Some(entry) = self.entries.get(moved).filter(|entry| entry.label.is_some()) {
                self.places.insert(entry.hash, moved);
            }
        }
        if let Some(entry) = self.entries.get_mut(to) {
            entry.count += 1;
        }
    }

    /// The entry of a key.
    pub(super) fn get(&self, hash: u64, key: &[u8]) -> Option<&Entry> {
        let entry = self.entries.get(*self.places.get(&hash)?)?;
        (*entry.key == *key).then_some(entry)
    }

    /// Every key that is counted.
    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| entry.label.is_some())
    }

    /// The most that a key which is not here can have.
    pub(super) fn least(&self) -> u64 {
        self.entries.first().map_or(0, |entry| entry.count)
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.places.clear();
        for entry in self.entries.iter_mut().rev().take_while(|entry| entry.label.is_some()) {
            entry.label = None;
            (entry.count, entry.error, entry.total) = (0, 0, 0);
            entry.key.clear();
        }
    }
}
