//! Digests that replace long values.

use std::fmt;

use super::escape::{KEY_PART_BYTES_MAX, hex};

/// Bytes of the hash in a digest. The text has twice as many hex digits.
const BYTES: usize = 16;

/// The most cached digests. Enough for a request that repeats a few long values in many descriptors.
const CACHED_DIGESTS_MAX: usize = 4;

/// Domain separation of BLAKE3: digests of several parts never equal the digest of one value.
const PARTS_CONTEXT: &str = "sluicegate 2026-11 parts of a counter's key";

/// The digest that replaces a long value: `%#` and 32 hex digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Digest([u8; Self::LENGTH]);

impl Digest {
    /// The first bytes of the text. An escaped value never contains them.
    pub(super) const MARK: &[u8] = b"%#";

    /// Length of the text in bytes.
    pub const LENGTH: usize = Self::MARK.len() + 2 * BYTES;

    /// The digest of a value.
    pub(super) fn of_value(value: &[u8]) -> Self {
        Self::new(&blake3::hash(value))
    }

    /// The digest of the parts that a [`DigestInput`](super::text::DigestInput) has encoded.
    pub(super) fn of_parts(input: &[u8]) -> Self {
        Self::new(&blake3::Hasher::new_derive_key(PARTS_CONTEXT).update(input).finalize())
    }

    fn new(hash: &blake3::Hash) -> Self {
        let digits = hash.as_bytes().iter().take(BYTES);
        let digits = digits.flat_map(|byte| [hex(byte >> 4), hex(byte & 15)]);
        let mut text = [0; Self::LENGTH];
        let characters = Self::MARK.iter().copied().chain(digits);
        text.iter_mut().zip(characters).for_each(|(byte, character)| *byte = character);
        Self(text)
    }

    /// The text: printable ASCII.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The text, as a string.
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

/// Computes digests of values and caches the last few, because the descriptors of a request often repeat a value.
#[derive(Debug, Default)]
pub struct DigestCache<'v> {
    /// Values with their digests, oldest first. Comparing values is far cheaper than computing a digest.
    cached: Vec<(&'v [u8], Digest)>,
}

impl<'v> DigestCache<'v> {
    /// An empty cache.
    #[must_use]
    pub const fn new() -> Self {
        Self { cached: Vec::new() }
    }

    /// The digest that replaces a value; `None` if the value has at most [`KEY_PART_BYTES_MAX`] bytes and is not
    /// replaced.
    pub fn for_long_value(&mut self, value: &'v [u8]) -> Option<Digest> {
        (value.len() > KEY_PART_BYTES_MAX).then(|| self.of(value))
    }

    /// The digest of a value of any length.
    #[cold]
    pub(super) fn of(&mut self, value: &'v [u8]) -> Digest {
        if let Some((_, digest)) = self.cached.iter().find(|(cached, _)| *cached == value) {
            return *digest;
        }
        let digest = Digest::of_value(value);
        if self.cached.len() == CACHED_DIGESTS_MAX {
            self.cached.remove(0);
        }
        self.cached.push((value, digest));
        digest
    }
}
