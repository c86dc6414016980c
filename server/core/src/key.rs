//! Names of counters: readable, collision-free, bounded.
//!
//! ```text
//! s1:fw:60:{acme}:public_api:tenant:user=bob      the chain of tenant acme
//! s1:fw:60:{public_api:ip=10.1.2.3}               a descriptor without a tenant
//! └┬┘└┬┘└┬┘└──┬─┘└────┬────┘└──┬──┘└──┬──┘
//!  │  │  │    │       │        │      an entry; one whose value is a shared pattern keeps its `*`
//!  │  │  │    │       │        the tenant's entry: its value is in the tag
//!  │  │  │    │       domain
//!  │  │  │    hash tag: what Redis Cluster places the key by
//!  │  │  window in seconds
//!  │  algorithm
//!  format version
//! ```
//!
//! A domain that names a `tenant` entry has the value of that entry as hash tag, so that all limits of
//! one tenant lie on one slot. Any other descriptor is tagged by its whole self and so spreads over the
//! slots. Bytes that would be ambiguous are written as `%` and two hex digits. A value of more than [`PART_MAX`]
//! bytes is replaced by `%#` and a BLAKE3 digest of its bytes, and so is a tag or a rest that would still be too long.
//! Before the digest of a rest stands the domain, so that every key of a tenant tells whose it is.

mod digest;
mod owner;
mod reading;

use std::{
    fmt,
    hash::{BuildHasher, Hash, Hasher},
    sync::LazyLock,
};

#[cfg(feature = "simulation")]
use foldhash::fast::FixedState as HashState;
#[cfg(not(feature = "simulation"))]
use foldhash::fast::RandomState as HashState;
use smallvec::SmallVec;

use crate::{Limit, request::Entry};

pub use digest::{Digest, Digests};
pub use owner::Owner;
pub use reading::{ReadEntry, Reading};

/// The longest tag, and the longest rest, written out before a digest takes its place.
pub const PART_MAX: usize = 256;

/// The longest counter key, in bytes.
pub const KEY_MAX: usize = 2 * PART_MAX + 32;

/// Room for what stands before the tag: format version, algorithm and window.
const HEAD_MAX: usize = 24;

/// Room for the longest identity, and for a block of bytes behind it.
const TEXT_MAX: usize = HEAD_MAX + 2 * PART_MAX + 2 * BLOCK;

/// Bytes looked at together.
const BLOCK: usize = 16;

/// The most bytes that are escaped in one step.
const PIECE: usize = 64;

/// Seeded at random, so that callers cannot choose values with equal hashes. In the simulation, the same in every run.
static HASHER: LazyLock<HashState> = LazyLock::new(HashState::default);

/// Name of a counter. It is hashed once, when it is made.
#[derive(Clone, Eq)]
pub struct CounterKey {
    text: SmallVec<[u8; 88]>,
    hash: u64,
}

impl CounterKey {
    fn new(text: &[u8]) -> Self {
        Self { text: SmallVec::from_slice(text), hash: Self::hash64_of(text) }
    }

    /// What [`hash64`](Self::hash64) says of the key with this text.
    #[must_use]
    pub fn hash64_of(text: &[u8]) -> u64 {
        let mut hasher = HASHER.build_hasher();
        hasher.write(text);
        hasher.finish()
    }

    /// The key with this text, if it is one.
    #[must_use]
    pub fn from_text(text: &[u8]) -> Option<Self> {
        Reading::new(text).map(|_| Self::new(text))
    }

    /// The key as text: printable ASCII.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.text
    }

    /// A hash of the text, the same as long as this process lives. All of its bits are of use.
    #[must_use]
    pub const fn hash64(&self) -> u64 {
        self.hash
    }
}

impl PartialEq for CounterKey {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash && self.text == other.text
    }
}

impl Hash for CounterKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl fmt::Debug for CounterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.text))
    }
}

/// The part of a counter's name that the limits of one descriptor have in common.
#[derive(Debug)]
pub struct Identity<'v> {
    text: Text,
    digests: Digests<'v>,
}

impl<'v> Identity<'v> {
    /// The identity of what a descriptor counts.
    ///
    /// `shared` holds, by position, the pattern that stands in for the value of an entry. A pattern has a
    /// `*`; that is what tells it from a value.
    #[must_use]
    pub fn new(
        domain: &'v str,
        tenant: Option<&[u8]>,
        entries: &[Entry<'v>],
        shared: &[Option<&'v [u8]>],
    ) -> Self {
        let mut identity = Self::empty();
        identity.set(domain, tenant, entries, shared);
        identity
    }

    /// One that is still to be [`set`](Self::set).
    pub(crate) const fn empty() -> Self {
        Self { text: Text::new(), digests: Digests::new() }
    }

    /// Makes it the identity of something else, with the arguments of [`new`](Self::new).
    pub(crate) fn set(
        &mut self,
        domain: &'v str,
        tenant: Option<&[u8]>,
        entries: &[Entry<'v>],
        shared: &[Option<&'v [u8]>],
    ) {
        let tagged = tenant.and_then(|tenant| tenant_entry(tenant, entries, shared));
        let parts = Parts { domain, entries, shared, tagged };
        // Escaping is seldom needed, and found out at once for all that was written.
        self.text.clear();
        parts.write(&mut self.text);
        if !self.text.is_right() {
            self.text.clear();
            parts.write(&mut Escaped { text: &mut self.text, digests: &mut self.digests });
        }
    }

    /// The name of the counter that a limit keeps for this descriptor.
    #[must_use]
    pub fn counter(&mut self, limit: &Limit) -> CounterKey {
        CounterKey::new(self.text.headed(limit.algorithm().code(), limit.window().seconds()))
    }
}

/// The first entry of that key, unless its value is empty (an empty hash tag is none) or shared.
fn tenant_entry<'v>(
    tenant: &[u8],
    entries: &[Entry<'v>],
    shared: &[Option<&[u8]>],
) -> Option<(usize, &'v [u8])> {
    let position = entries.iter().position(|entry| entry.key == tenant)?;
    let value = entries.get(position)?.value;
    let is_shared = shared.get(position).is_some_and(Option::is_some);
    (!value.is_empty() && !is_shared).then_some((position, value))
}

/// What an identity is made of.
struct Parts<'a, 'v> {
    domain: &'v str,
    entries: &'a [Entry<'v>],
    shared: &'a [Option<&'v [u8]>],
    /// The entry whose value is the tag: position and value.
    tagged: Option<(usize, &'v [u8])>,
}

impl<'v> Parts<'_, 'v> {
    fn write(&self, text: &mut impl PartSink<'v>) {
        text.syntax(b'{');
        if let Some((_, value)) = self.tagged {
            text.part(&Tag(value));
            text.syntax(b'}');
            text.syntax(b':');
            text.part(self);
        } else {
            text.part(self);
            text.syntax(b'}');
        }
    }
}

/// A part of an identity that is replaced by a digest if its text is too long.
trait Part<'v> {
    fn write(&self, sink: &mut impl Sink<'v>);

    /// Writes the digest.
    fn write_digest(&self, text: &mut Text, digests: &mut Digests<'v>);
}

/// The value of a tenant.
struct Tag<'v>(&'v [u8]);

impl<'v> Part<'v> for Tag<'v> {
    fn write(&self, sink: &mut impl Sink<'v>) {
        sink.value(self.0);
    }

    fn write_digest(&self, text: &mut Text, digests: &mut Digests<'v>) {
        text.put(digests.of(self.0).as_bytes());
    }
}

/// The rest: the domain and all entries.
impl<'v> Part<'v> for Parts<'_, 'v> {
    fn write(&self, sink: &mut impl Sink<'v>) {
        let tagged = self.tagged.map(|(position, _)| position);
        sink.value(self.domain.as_bytes());
        for (position, entry) in self.entries.iter().enumerate() {
            sink.syntax(b':');
            sink.value(entry.key);
            if tagged == Some(position) {
                continue;
            }
            sink.syntax(b'=');
            match self.shared.get(position).copied().flatten() {
                Some(pattern) => write_pattern(sink, pattern),
                None => sink.value(entry.value),
            }
        }
    }

    fn write_digest(&self, text: &mut Text, digests: &mut Digests<'v>) {
        // The tag of a descriptor without a tenant is found by nothing but all of it.
        if self.tagged.is_some() {
            text.put(&short(self.domain.as_bytes(), PART_MAX - Digest::LENGTH - 1));
            text.put(b":");
        }
        let mut framed = Framed { bytes: Vec::new(), digests };
        Part::write(self, &mut framed);
        text.put(Digest::of_parts(&framed.bytes).as_bytes());
    }
}

/// Appends a pattern, whose `*` no value's text has.
fn write_pattern<'v>(sink: &mut impl Sink<'v>, pattern: &'v [u8]) {
    for (position, between) in pattern.split(|&byte| byte == b'*').enumerate() {
        if position > 0 {
            sink.syntax(b'*');
        }
        sink.value(between);
    }
}

/// Where a part is written to.
trait Sink<'v> {
    /// Appends what has a meaning.
    fn syntax(&mut self, byte: u8);

    /// Appends what must not be taken for syntax.
    fn value(&mut self, bytes: &'v [u8]);
}

/// Where an identity is written to.
trait PartSink<'v>: Sink<'v> {
    /// Appends a part, if it is not too long.
    fn part(&mut self, part: &impl Part<'v>);
}

/// The bytes that the digest of a part is made of: each value with its length before it, and a long one as its
/// digest. So it takes as long as the short values, however long the others are.
struct Framed<'a, 'v> {
    bytes: Vec<u8>,
    digests: &'a mut Digests<'v>,
}

/// What a frame holds.
mod frame {
    pub(super) const SYNTAX: u8 = 0;
    pub(super) const VALUE: u8 = 1;
    pub(super) const DIGEST: u8 = 2;
}

impl<'v> Sink<'v> for Framed<'_, 'v> {
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

/// An identity as it is written without escaping, with room for a head before it. It knows afterwards whether it had
/// to be escaped.
struct Text {
    bytes: [u8; TEXT_MAX],
    end: usize,
    /// Bytes of syntax in it.
    syntax: usize,
    is_too_long: bool,
}

impl<'v> Sink<'v> for Text {
    fn syntax(&mut self, byte: u8) {
        self.syntax += 1;
        self.put(&[byte]);
    }

    fn value(&mut self, bytes: &'v [u8]) {
        self.put(bytes);
    }
}

impl<'v> PartSink<'v> for Text {
    fn part(&mut self, part: &impl Part<'v>) {
        let start = self.end;
        part.write(self);
        if self.end - start > PART_MAX {
            self.is_too_long = true;
            self.end = start;
        }
    }
}

/// A text that is escaped, with digests in the place of long values.
struct Escaped<'a, 'v> {
    text: &'a mut Text,
    digests: &'a mut Digests<'v>,
}

impl<'v> Sink<'v> for Escaped<'_, 'v> {
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

impl<'v> PartSink<'v> for Escaped<'_, 'v> {
    fn part(&mut self, part: &impl Part<'v>) {
        let start = self.text.end;
        part.write(self);
        if self.text.end - start > PART_MAX {
            self.text.end = start;
            part.write_digest(self.text, self.digests);
        }
    }
}

impl Text {
    const fn new() -> Self {
        Self { bytes: [0; TEXT_MAX], end: HEAD_MAX, syntax: 0, is_too_long: false }
    }

    fn clear(&mut self) {
        self.end = HEAD_MAX;
        self.syntax = 0;
        self.is_too_long = false;
    }

    /// Appends as it is; if there is no room, the whole room counts as taken.
    fn put(&mut self, text: &[u8]) {
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

    /// Whether it is as it must be without escaping: short, and nothing but syntax looks like syntax.
    fn is_right(&mut self) -> bool {
        if self.is_too_long {
            return false;
        }
        // The last block may reach behind the end.
        if let Some(behind) = self.bytes.get_mut(self.end..self.end + BLOCK) {
            behind.fill(b'0');
        }
        let text = self.bytes.get(HEAD_MAX..).unwrap_or_default();
        let (blocks, _) = text.as_chunks::<BLOCK>();
        let mut counts = [0_u8; BLOCK];
        // Without a branch for each byte, so that the compiler compares the bytes of a block at once.
        for block in blocks.iter().take((self.end - HEAD_MAX).div_ceil(BLOCK)) {
            counts
                .iter_mut()
                .zip(block)
                .for_each(|(count, &byte)| *count += u8::from(!is_plain(byte)));
        }
        usize::from(counts.into_iter().map(u16::from).sum::<u16>()) == self.syntax
    }

    /// The whole name, with a head of this algorithm and window.
    fn headed(&mut self, algorithm: &str, window: u32) -> &[u8] {
        let mut start = HEAD_MAX;
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

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.bytes.get(HEAD_MAX..self.end).unwrap_or_default();
        f.write_str(&String::from_utf8_lossy(text))
    }
}

/// Hands the bytes on so that none of them can be taken for syntax, in pieces.
#[cold]
fn escape(bytes: &[u8], mut put: impl FnMut(&[u8])) {
    let plain = |byte: &u8| PLAIN.get(usize::from(*byte)) == Some(&true);
    for piece in bytes.chunks(PIECE) {
        if piece.iter().all(plain) {
            put(piece);
            continue;
        }
        let mut text = SmallVec::<[u8; 3 * PIECE]>::new();
        for &byte in piece {
            if plain(&byte) {
                text.push(byte);
            } else {
                text.extend([b'%', hex(byte >> 4), hex(byte & 15)]);
            }
        }
        put(&text);
    }
}

/// A value as text, or its digest if that is longer than `max`.
fn short(value: &[u8], max: usize) -> Vec<u8> {
    let mut text = Vec::new();
    if value.len() <= max {
        escape(value, |piece| text.extend_from_slice(piece));
        if text.len() <= max {
            return text;
        }
    }
    Digest::of_value(value).as_bytes().to_vec()
}

/// Whether a byte stands for itself.
const fn is_plain(byte: u8) -> bool {
    // `&` and `|` rather than `&&` and `||`, so that nothing branches.
    let is_syntax = (byte == b'{')
        | (byte == b'}')
        | (byte == b':')
        | (byte == b'=')
        | (byte == b'%')
        | (byte == b'*');
    (byte > b' ') & (byte <= b'~') & !is_syntax
}

/// [`is_plain`] of every byte: for one alone, looking it up is quicker than working it out.
#[expect(clippy::indexing_slicing, reason = "worked out by the compiler, and a byte is below 256")]
static PLAIN: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = u8::MAX;
    while byte > 0 {
        plain[byte as usize] = is_plain(byte);
        byte -= 1;
    }
    plain
};

const fn hex(nibble: u8) -> u8 {
    if nibble < 10 { b'0' + nibble } else { b'a' + nibble - 10 }
}
