//! Writes the text of a counter key: plain if possible, else escaped, with digests for parts that are too long.

use std::fmt;

use super::{
    digest::{Digest, DigestCache},
    escape::{PART_MAX, escape, is_plain},
};

/// Room for the text before the tag: format version, algorithm and window.
const PREFIX_MAX: usize = 24;

/// Room for the longest identity, and for a block of bytes after it.
const TEXT_MAX: usize = PREFIX_MAX + 2 * PART_MAX + 2 * BLOCK;

/// Bytes that are checked together.
const BLOCK: usize = 16;

/// A part of an identity that is replaced by a digest if its text is too long.
pub(super) trait KeyPart<'v> {
    fn write(&self, sink: &mut impl Sink<'v>);

    /// Writes the digest.
    fn write_digest(&self, text: &mut KeyText, digests: &mut DigestCache<'v>);
}

/// Target of a part.
pub(super) trait Sink<'v> {
    /// Appends a byte of syntax.
    fn syntax(&mut self, byte: u8);

    /// Appends bytes that must not be taken for syntax.
    fn value(&mut self, bytes: &'v [u8]);
}

/// Target of an identity.
pub(super) trait PartSink<'v>: Sink<'v> {
    /// Appends a part, if it is not too long.
    fn part(&mut self, part: &impl KeyPart<'v>);
}

/// Input of the digest of a part: each value with its length before it, and a long value as its
/// digest. So its cost depends on the short values only.
pub(super) struct DigestInput<'a, 'v> {
    pub(super) bytes: Vec<u8>,
    pub(super) digests: &'a mut DigestCache<'v>,
}

/// Kinds of frames.
mod frame {
    pub(super) const SYNTAX: u8 = 0;
    pub(super) const VALUE: u8 = 1;
    pub(super) const DIGEST: u8 = 2;
}

impl<'v> Sink<'v> for DigestInput<'_, 'v> {
    fn syntax(&mut self, byte: u8) {
        self.bytes.extend([frame::SYNTAX, byte]);
    }

    fn value(&mut self, bytes: &'v [u8]) {
        match u16::try_from(bytes.len()) {
            Ok(length) if bytes.len() <= PART_MAX => {
                self.bytes.push(frame::VALUE);
                self.bytes.extend(length.to_le_bytes());
                self.bytes.extend_from_slice(bytes);
            }
            _ => {
                self.bytes.push(frame::DIGEST);
                self.bytes.extend_from_slice(self.digests.of(bytes).as_bytes());
            }
        }
    }
}

/// The text of an identity without escaping, with room for a head before it. Detects afterwards whether escaping
/// is needed.
pub(super) struct KeyText {
    bytes: [u8; TEXT_MAX],
    end: usize,
    /// Bytes of syntax in it.
    syntax: usize,
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
        if self.end - start > PART_MAX {
            self.is_too_long = true;
            self.end = start;
        }
    }
}

/// An escaped text, with digests in place of long values.
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
        if bytes.len() > PART_MAX {
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
        if self.text.end - start > PART_MAX {
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

    /// Appends unchanged; without room, the text counts as full.
    pub(super) fn put(&mut self, text: &[u8]) {
        let end = self.end + text.len();
        match self.bytes.get_mut(self.end..end) {
            Some(room) => {
                room.copy_from_slice(text);
                self.end = end;
            }
            None => self.end = TEXT_MAX,
        }
    }

    /// Whether there was no room for what was written.
    const fn is_full(&self) -> bool {
        self.end == TEXT_MAX
    }

    /// Whether it is valid without escaping: short, and only syntax looks like syntax.
    pub(super) fn is_unambiguous(&mut self) -> bool {
        if self.is_too_long {
            return false;
        }
        // The last block may extend beyond the end.
        if let Some(behind) = self.bytes.get_mut(self.end..self.end + BLOCK) {
            behind.fill(b'0');
        }
        let text = self.bytes.get(PREFIX_MAX..).unwrap_or_default();
        let (blocks, _) = text.as_chunks::<BLOCK>();
        let mut counts = [0_u8; BLOCK];
        // Without a branch for each byte, so that the compiler vectorizes the comparison.
        for block in blocks.iter().take((self.end - PREFIX_MAX).div_ceil(BLOCK)) {
            counts
                .iter_mut()
                .zip(block)
                .for_each(|(count, &byte)| *count += u8::from(!is_plain(byte)));
        }
        usize::from(counts.into_iter().map(u16::from).sum::<u16>()) == self.syntax
    }

    /// The whole key, with a head of this algorithm and window.
    pub(super) fn with_prefix(&mut self, algorithm: &str, window: u32) -> &[u8] {
        let mut start = PREFIX_MAX;
        let mut put = |byte| {
            start -= 1;
            if let Some(place) = self.bytes.get_mut(start) {
                *place = byte;
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
            if let Some(room) = self.bytes.get_mut(start..end) {
                room.copy_from_slice(before.as_bytes());
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

/// A value as text, or its digest if the text is longer than `max`.
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
