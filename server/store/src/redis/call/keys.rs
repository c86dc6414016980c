//! The counters of a call, each once.

use std::hash::{BuildHasherDefault, Hasher};

use indexmap::IndexMap;
use sluicegate_core::CounterKey;

use crate::redis::command::CommandWriter;

/// Counters in the order in which they are first asked.
#[derive(Default)]
pub(super) struct Keys<'a> {
    /// How often each is asked.
    known: IndexMap<&'a CounterKey, usize, BuildHasherDefault<KeyHash>>,
}

impl<'a> Keys<'a> {
    /// Position of a counter that is asked once more, from 0.
    pub(super) fn position(&mut self, key: &'a CounterKey) -> usize {
        let entry = self.known.entry(key);
        let position = entry.index();
        *entry.or_default() += 1;
        position
    }

    /// Whether nothing else is asked of the counter at a position.
    pub(super) fn is_alone(&self, position: usize) -> bool {
        self.known.get_index(position).is_some_and(|(_, times)| *times == 1)
    }

    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// Bytes of all names.
    pub(super) fn text_len(&self, prefix: &[u8]) -> usize {
        self.known.keys().map(|key| prefix.len() + key.as_bytes().len()).sum()
    }

    /// Appends the names as Redis knows them.
    pub(super) fn write(&self, prefix: &[u8], to: &mut CommandWriter) {
        self.known.keys().for_each(|key| to.argument([prefix, key.as_bytes()]));
    }
}

/// A counter's key brings its hash.
#[derive(Default)]
struct KeyHash(u64);

impl Hasher for KeyHash {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }
}
