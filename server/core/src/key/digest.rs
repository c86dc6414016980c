//! Digests that replace long values.

use std::fmt;

use super::escape::{PART_MAX, hex};

/// Bytes of a digest; its text has twice as many hex digits.
const BYTES: usize = 16;

/// The most cached digests: a request with one long value in many descriptors has few of them.
const REMEMBERED: usize = 4;

/// Distinguishes digests of several values from digests of one.
const PARTS_CONTEXT: &str = "sluicegate 2026-11 parts of a counter's key";

/// The digest that replaces a long value: `%#` and 32 hex digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Digest([u8; Self::LENGTH]);

impl Digest {
    /// The first bytes of each digest. No escaped value contains them.
    pub(super) const MARK: &[u8] = b"%#";

    /// Length of the text.
    pub const LENGTH: usize = Self::MARK.len() + 2 * BYTES;

    /// The digest of a value.
    pub(super) fn of_value(value: &[u8]) -> Self {
        Self::new(&blake3::hash(value))
    }

    /// The digest of several values.
    pub(super) fn of_parts(framed: &[u8]) -> Self {
        Self::new(&blake3::Hasher::new_derive_key(PARTS_CONTEXT).update(framed).finalize())
    }

    fn new(hash: &blake3::Hash) -> Self {
        let digits = hash.as_bytes().iter().take(BYTES);
        let digits = digits.flat_map(|byte| [hex(byte >> 4), hex(byte & 15)]);
        let mut text = [0; Self::LENGTH];
        let characters = Self::MARK.iter().copied().chain(digits);
        text.iter_mut().zip(characters).for_each(|(place, character)| *place = character);
        Self(text)
    }

    /// The text: printable ASCII.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Computes digests of long values, with a small cache.
#[derive(Debug, Default)]
pub struct DigestCache<'v> {
    /// The last few values and digests: comparing values is far cheaper than a digest.
    known: Vec<(&'v [u8], Digest)>,
}

impl<'v> DigestCache<'v> {
    /// An empty cache.
    #[must_use]
    pub const fn new() -> Self {
        Self { known: Vec::new() }
    }

    /// The digest that replaces a value; `None` if the value is short.
    pub fn for_long_value(&mut self, value: &'v [u8]) -> Option<Digest> {
        (value.len() > PART_MAX).then(|| self.of(value))
    }

    /// The digest of a value of any length.
    #[cold]
    pub(super) fn of(&mut self, value: &'v [u8]) -> Digest {
        if let Some((_, digest)) = self.known.iter().find(|(known, _)| *known == value) {
            return *digest;
        }
        let digest = Digest::of_value(value);
        if self.known.len() == REMEMBERED {
            self.known.remove(0);
        }
        self.known.push((value, digest));
        digest
    }
}
