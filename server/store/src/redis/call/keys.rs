//! The keys of a call, each once.

use std::hash::{BuildHasherDefault, Hasher};

use indexmap::IndexMap;
use sluicegate_core::CounterKey;

use crate::redis::command::CommandWriter;

/// The keys of a call, in the order of their first check.
#[derive(Default)]
pub(super) struct Keys<'a> {
    /// The number of checks of each.
    checks: IndexMap<&'a CounterKey, usize, BuildHasherDefault<PassHasher>>,
}

impl<'a> Keys<'a> {
    /// Adds a check of a key. Returns the position of the key, from 0.
    pub(super) fn add(&mut self, key: &'a CounterKey) -> usize {
        let entry = self.checks.entry(key);
        let position = entry.index();
        *entry.or_default() += 1;
        position
    }

    /// Whether the key at a position has one check only.
    pub(super) fn is_used_once(&self, position: usize) -> bool {
        self.checks.get_index(position).is_some_and(|(_, checks)| *checks == 1)
    }

    pub(super) fn len(&self) -> usize {
        self.checks.len()
    }

    /// Bytes of all keys, with the prefix.
    pub(super) fn text_len(&self, prefix: &[u8]) -> usize {
        self.checks.keys().map(|key| prefix.len() + key.as_bytes().len()).sum()
    }

    /// Appends the keys to a command, with the prefix.
    pub(super) fn write(&self, prefix: &[u8], to: &mut CommandWriter) {
        self.checks.keys().for_each(|key| to.argument([prefix, key.as_bytes()]));
    }
}

/// Passes on the hash that a [`CounterKey`] already has.
#[derive(Default)]
struct PassHasher(u64);

impl Hasher for PassHasher {
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
