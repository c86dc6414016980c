//! The space-saving sketch: a fixed number of entries. A new entry evicts the one with the smallest count, which
//! becomes the error bound of the new entry.
//!
//! So a count is never below the true number, and exceeds it by at most its error, which is at most the smallest count.
//! All keys with more events than the total divided by the number of entries are in the sketch.

use std::{collections::HashMap, sync::Arc, time::Duration};

use sluicegate_core::CounterKey;
use smallvec::SmallVec;

use super::RuleLabel;

/// Counts of the most frequent keys.
#[derive(Debug)]
pub(super) struct Sketch {
    /// The number of entries.
    keys_max: usize,
    /// Sorted by count, the smallest first. Entries without a label are unused. All are allocated at the first use.
    entries: Vec<Entry>,
    /// The index of the entry of a key, by the key's hash.
    indexes: HashMap<u64, usize>,
}

/// The entry of a key.
#[derive(Clone, Debug, Default)]
pub(super) struct Entry {
    /// The hash of the key.
    pub(super) hash: u64,
    /// The text of the key.
    pub(super) key: SmallVec<[u8; 88]>,
    /// Domain and rule.
    pub(super) label: Option<Arc<RuleLabel>>,
    /// Upper bound of the number of events.
    pub(super) count: u64,
    /// The amount by which `count` may exceed the true number.
    pub(super) error: u64,
    /// The number of events since the key was first kept, in this sketch and in sketches of earlier windows.
    pub(super) total: u64,
    /// The time of the last event.
    pub(super) last: Duration,
    /// Thousandths of the limit that were used after the last event.
    pub(super) used_permille: u32,
}

impl Sketch {
    pub(super) fn new(keys_max: usize) -> Self {
        Self { keys_max, entries: Vec::new(), indexes: HashMap::new() }
    }

    /// Counts an event of a key. `update` gets the key's entry, and whether it is new.
    pub(super) fn add(&mut self, key: &CounterKey, update: impl FnOnce(&mut Entry, bool)) {
        if self.entries.is_empty() {
            self.entries.resize_with(self.keys_max, Entry::default);
            self.indexes.reserve(self.keys_max);
        }
        let known = self.indexes.get(&key.hash64()).copied();
        let index = known.unwrap_or(0);
        let Some(entry) = self.entries.get_mut(index) else { return };
        if known.is_none() {
            if entry.label.is_some() {
                self.indexes.remove(&entry.hash);
            }
            entry.hash = key.hash64();
            entry.key.clear();
            entry.key.extend_from_slice(key.as_bytes());
            entry.error = entry.count;
        } else if *entry.key != *key.as_bytes() {
            // Another key with the same hash. The first one is kept.
            return;
        }
        update(entry, known.is_none());
        self.increment(index);
    }

    /// Increments the count of an entry. Before that, swaps it with the last entry of equal count, so that the order is
    /// kept.
    fn increment(&mut self, index: usize) {
        let Some(count) = self.entries.get(index).map(|entry| entry.count) else { return };
        let behind = self.entries.partition_point(|entry| entry.count <= count);
        let Some(to) = behind.checked_sub(1) else { return };
        self.entries.swap(index, to);
        for moved in [index, to] {
            if let Some(entry) = self.entries.get(moved).filter(|entry| entry.label.is_some()) {
                self.indexes.insert(entry.hash, moved);
            }
        }
        if let Some(entry) = self.entries.get_mut(to) {
            entry.count += 1;
        }
    }

    /// The entry of a key.
    pub(super) fn get(&self, hash: u64, key: &[u8]) -> Option<&Entry> {
        let entry = self.entries.get(*self.indexes.get(&hash)?)?;
        (*entry.key == *key).then_some(entry)
    }

    /// All used entries.
    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| entry.label.is_some())
    }

    /// The smallest count, which bounds the number of events of keys without an entry.
    pub(super) fn min_count(&self) -> u64 {
        self.entries.first().map_or(0, |entry| entry.count)
    }

    /// Removes all entries.
    pub(super) fn clear(&mut self) {
        self.indexes.clear();
        for entry in self.entries.iter_mut().rev().take_while(|entry| entry.label.is_some()) {
            entry.label = None;
            (entry.count, entry.error, entry.total) = (0, 0, 0);
            entry.key.clear();
        }
    }
}
