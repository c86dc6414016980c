//! Writes the text of a counter key: unescaped if possible, else escaped, with digests in place of parts that are too
//! long.

use std::fmt;

use super::{
    digest::{Digest, DigestCache},
    escape::{KEY_PART_BYTES_MAX, escape, is_plain},
};

/// Bytes reserved for the text before the hash tag: format version, algorithm and window.
const PREFIX_MAX: usize = 24;

/// Bytes reserved for a key: the text before the hash tag, both parts, and a block after them for
/// [`KeyText::is_unambiguous`].
const TEXT_MAX: usize = PREFIX_MAX + 2 * KEY_PART_BYTES_MAX + 2 * BLOCK;

/// Bytes that [`KeyText::is_unambiguous`] checks together.
const BLOCK: usize = 16;

/// A part of a key that a digest replaces if its text is longer than [`KEY_PART_BYTES_MAX`].
pub(super) trait KeyPart<'v> {
    /// Writes the text.
    fn write(&self, sink: &mut impl Sink<'v>);

    /// Writes the digest that replaces the text.
    fn write_digest(&self, text: &mut KeyText, digests: &mut DigestCache<'v>);
}

/// Receives the text of a part.
pub(super) trait Sink<'v> {
    /// Appends a byte of syntax.
    fn syntax(&mut self, byte: u8);

    /// Appends bytes that must not be taken for syntax.
    fn value(&mut self, bytes: &'v [u8]);
}

/// Receives the parts of a key.
pub(super) trait PartSink<'v>: Sink<'v> {
    /// Appends a part, or what replaces it if it is too long.
    fn part(&mut self, part: &impl KeyPart<'v>);
}

/// Input of the digest of a part, unambiguously encoded: each value with its length before it, and a long value as its
/// own digest, so that a repeated long value is hashed once.
pub(super) struct DigestInput<'a, 'v> {
    pub(super) bytes: Vec<u8>,
    pub(super) digests: &'a mut DigestCache<'v>,
}

/// The first byte of each element of a [`DigestInput`].
mod element {
    pub(super) const SYNTAX: u8 = 0;
    pub(super) const VALUE: u8 = 1;
    pub(super) const DIGEST: u8 = 2;
}

impl<'v> Sink<'v> for DigestInput<'_, 'v> {
    fn syntax(&mut self, byte: u8) {
        self.bytes.extend([element::SYNTAX, byte]);
    }

    fn value(&mut self, bytes: &'v [u8]) {
        match u16::try_from(bytes.len()) {
            Ok(length) if bytes.len() <= KEY_PART_BYTES_MAX => {
                self.bytes.push(element::VALUE);
                self.bytes.extend(length.to_le_bytes());
                self.bytes.extend_from_slice(bytes);
            }
            _ => {
                self.bytes.push(element::DIGEST);
                self.bytes.extend_from_slice(self.digests.of(bytes).as_bytes());
            }
        }
    }
}

/// Text of a key, with reserved bytes before the hash tag. As a sink it writes without escaping, and
/// [`is_unambiguous`](Self::is_unambiguous) returns afterwards whether that was valid.
pub(super) struct KeyText {
    bytes: [u8; TEXT_MAX],
    end: usize,
    /// Bytes of syntax that were written.
    syntax: usize,
    /// Whether a part was longer than [`KEY_PART_BYTES_MAX`].
    is_too_long: bool,
}

impl<'v> Sink<'v> for KeyText {
    fn syntax(&mut self, byte: u8) {
        self.syntax += 1;
        self.put(&[byte]);
    }

    fn value(&mut self, bytes: &'v [u8]) {
        self.put(bytes);
    }
}

impl<'v> PartSink<'v> for KeyText {
    fn part(&mut self, part: &impl KeyPart<'v>) {
        let start = self.end;
        part.write(self);
        if self.end - start > KEY_PART_BYTES_MAX {
            self.is_too_long = true;
            self.end = start;
        }
    }
}

/// A sink that writes escaped text, with digests in place of long values and parts.
pub(super) struct EscapedText<'a, 'v> {
    pub(super) text: &'a mut KeyText,
    pub(super) digests: &'a mut DigestCache<'v>,
}

impl<'v> Sink<'v> for EscapedText<'_, 'v> {
    fn syntax(&mut self, byte: u8) {
        self.text.put(&[byte]);
    }

    fn value(&mut self, bytes: &'v [u8]) {
        if self.text.is_full() {
            return;
        }
        if bytes.len() > KEY_PART_BYTES_MAX {
            self.text.put(self.digests.of(bytes).as_bytes());
        } else {
            escape(bytes, |text| self.text.put(text));
        }
    }
}

impl<'v> PartSink<'v> for EscapedText<'_, 'v> {
    fn part(&mut self, part: &impl KeyPart<'v>) {
        let start = self.text.end;
        part.write(self);
        if self.text.end - start > KEY_PART_BYTES_MAX {
            self.text.end = start;
            part.write_digest(self.text, self.digests);
        }
    }
}

impl KeyText {
    pub(super) const fn new() -> Self {
        Self { bytes: [0; TEXT_MAX], end: PREFIX_MAX, syntax: 0, is_too_long: false }
    }

    pub(super) fn clear(&mut self) {
        self.end = PREFIX_MAX;
        self.syntax = 0;
        self.is_too_long = false;
    }

    /// Appends text unchanged. If it does not fit, appends nothing and marks the text as full.
    pub(super) fn put(&mut self, text: &[u8]) {
        let end = self.end + text.len();
        match self.bytes.get_mut(self.end..end) {
            Some(target) => {
                target.copy_from_slice(text);
                self.end = end;
            }
            None => self.end = TEXT_MAX,
        }
    }

    /// Whether some text did not fit.
    const fn is_full(&self) -> bool {
        self.end == TEXT_MAX
    }

    /// Whether the text is valid without escaping: no part is too long, and no byte of a value could be taken for
    /// syntax.
    pub(super) fn is_unambiguous(&mut self) -> bool {
        if self.is_too_long {
            return false;
        }
        // The last block may extend beyond the end.
        if let Some(padding) = self.bytes.get_mut(self.end..self.end + BLOCK) {
            padding.fill(b'0');
        }
        let text = self.bytes.get(PREFIX_MAX..).unwrap_or_default();
        let (blocks, _) = text.as_chunks::<BLOCK>();
        let mut counts = [0_u8; BLOCK];
        // There is no branch for a byte, so that the compiler vectorizes the comparison.
        for block in blocks.iter().take((self.end - PREFIX_MAX).div_ceil(BLOCK)) {
            counts
                .iter_mut()
                .zip(block)
                .for_each(|(count, &byte)| *count += u8::from(!is_plain(byte)));
        }
        usize::from(counts.into_iter().map(u16::from).sum::<u16>()) == self.syntax
    }

    /// The whole key: format version, algorithm, window in seconds, and the text.
    pub(super) fn with_prefix(&mut self, algorithm: &str, window: u32) -> &[u8] {
        let mut start = PREFIX_MAX;
        let mut put = |byte| {
            start -= 1;
            if let Some(target) = self.bytes.get_mut(start) {
                *target = byte;
            }
        };
        put(b':');
        let mut rest = window;
        loop {
            put(b'0' + (rest % 10) as u8);
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        put(b':');
        for before in [algorithm, "s1:"] {
            let end = start;
            start -= before.len();
            if let Some(target) = self.bytes.get_mut(start..end) {
                target.copy_from_slice(before.as_bytes());
            }
        }
        self.bytes.get(start..self.end).unwrap_or_default()
    }
}

impl fmt::Debug for KeyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.bytes.get(PREFIX_MAX..self.end).unwrap_or_default();
        f.write_str(&String::from_utf8_lossy(text))
    }
}

/// The escaped text of a value, or its digest if the value or the text has more than `max` bytes.
pub(super) fn value_or_digest(value: &[u8], max: usize) -> Vec<u8> {
    let mut text = Vec::new();
    if value.len() <= max {
        escape(value, |piece| text.extend_from_slice(piece));
        if text.len() <= max {
            return text;
        }
    }
    Digest::of_value(value).as_bytes().to_vec()
}
