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
//! slots. Bytes that would be ambiguous are written as `%` and two hex digits; a tag or a rest that
//! would be too long is replaced by `%#` and a BLAKE3 digest. Before the digest of a rest stands the domain, so that
//! every key of a tenant tells whose it is.

mod owner;
mod reading;

use std::{
    fmt,
    hash::{BuildHasher, Hash, Hasher},
    sync::LazyLock,
};

use foldhash::fast::RandomState;
use smallvec::SmallVec;

use crate::{Limit, request::Entry};

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

/// Bytes of a digest; twice as many hex digits.
const DIGEST: usize = 16;

/// What a digest begins with. No value's text has it.
const DIGEST_MARK: &[u8] = b"%#";

/// Length of a digest as text.
const DIGEST_TEXT: usize = DIGEST_MARK.len() + 2 * DIGEST;

/// Seeded by chance, so that nobody can choose values whose hashes meet.
static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::default);

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
pub struct Identity(Text);

impl Identity {
    /// The identity of what a descriptor counts.
    ///
    /// `shared` holds, by position, the pattern that stands in for the value of an entry. A pattern has a
    /// `*`; that is what tells it from a value.
    #[must_use]
    pub fn new(
        domain: &str,
        tenant: Option<&[u8]>,
        entries: &[Entry<'_>],
        shared: &[Option<&[u8]>],
    ) -> Self {
        let mut identity = Self::empty();
        identity.set(domain, tenant, entries, shared);
        identity
    }

    /// One that is still to be [`set`](Self::set).
    pub(crate) const fn empty() -> Self {
        Self(Text::new())
    }

    /// Makes it the identity of something else, with the arguments of [`new`](Self::new).
    pub(crate) fn set(
        &mut self,
        domain: &str,
        tenant: Option<&[u8]>,
        entries: &[Entry<'_>],
        shared: &[Option<&[u8]>],
    ) {
        let tagged = tenant.and_then(|tenant| tenant_entry(tenant, entries, shared));
        let parts = Parts { domain, entries, shared, tagged };
        // Escaping is seldom needed, and found out at once for all that was written.
        self.0.clear(Escaping::None);
        parts.write(&mut self.0);
        if !self.0.is_right() {
            self.0.clear(Escaping::Done);
            parts.write(&mut self.0);
        }
    }

    /// The name of the counter that a limit keeps for this descriptor.
    #[must_use]
    pub fn counter(&mut self, limit: &Limit) -> CounterKey {
        CounterKey::new(self.0.headed(limit.algorithm().code(), limit.window().seconds()))
    }
}

/// The first entry of that key, unless its value is empty (an empty hash tag is none) or shared.
fn tenant_entry<'a>(
    tenant: &[u8],
    entries: &[Entry<'a>],
    shared: &[Option<&[u8]>],
) -> Option<(usize, &'a [u8])> {
    let position = entries.iter().position(|entry| entry.key == tenant)?;
    let value = entries.get(position)?.value;
    let is_shared = shared.get(position).is_some_and(Option::is_some);
    (!value.is_empty() && !is_shared).then_some((position, value))
}

/// What an identity is made of.
struct Parts<'a> {
    domain: &'a str,
    entries: &'a [Entry<'a>],
    shared: &'a [Option<&'a [u8]>],
    /// The entry whose value is the tag: position and value.
    tagged: Option<(usize, &'a [u8])>,
}

impl Parts<'_> {
    fn write(&self, text: &mut Text) {
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

/// What is replaced by a digest if it is too long.
trait Part {
    fn write(&self, sink: &mut impl Sink);

    /// What stands before the digest, be it as a digest of its own.
    fn before_digest(&self) -> Option<&[u8]> {
        None
    }
}

/// The value of a tenant.
struct Tag<'a>(&'a [u8]);

impl Part for Tag<'_> {
    fn write(&self, sink: &mut impl Sink) {
        sink.value(self.0);
    }
}

/// The rest: the domain and all entries.
impl Part for Parts<'_> {
    fn write(&self, sink: &mut impl Sink) {
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

    fn before_digest(&self) -> Option<&[u8]> {
        // The tag of a descriptor without a tenant is found by nothing but all of it.
        self.tagged.map(|_| self.domain.as_bytes())
    }
}

/// Appends a pattern, whose `*` no value's text has.
fn write_pattern(sink: &mut impl Sink, pattern: &[u8]) {
    for (position, between) in pattern.split(|&byte| byte == b'*').enumerate() {
        if position > 0 {
            sink.syntax(b'*');
        }
        sink.value(between);
    }
}

/// Where a part is written to.
trait Sink {
    /// Appends what has a meaning.
    fn syntax(&mut self, byte: u8);

    /// Appends what must not be taken for syntax.
    fn value(&mut self, bytes: &[u8]);
}

impl Sink for blake3::Hasher {
    fn syntax(&mut self, byte: u8) {
        self.update(&[byte]);
    }

    fn value(&mut self, bytes: &[u8]) {
        escape(bytes, |text| _ = self.update(text));
    }
}

/// What a text does about bytes that could be taken for syntax.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escaping {
    /// It takes them as they are, and can tell afterwards.
    None,
    /// It escapes them.
    Done,
}

/// An identity, with room for a head before it.
struct Text {
    bytes: [u8; TEXT_MAX],
    end: usize,
    escaping: Escaping,
    /// Bytes of syntax in it.
    syntax: usize,
    is_too_long: bool,
}

impl Sink for Text {
    fn syntax(&mut self, byte: u8) {
        self.syntax += 1;
        self.put(&[byte]);
    }

    fn value(&mut self, bytes: &[u8]) {
        match self.escaping {
            Escaping::None => self.put(bytes),
            // Too long, however much of it is escaped.
            Escaping::Done if bytes.len() > PART_MAX => self.end = TEXT_MAX,
            Escaping::Done => escape(bytes, |text| self.put(text)),
        }
    }
}

impl Text {
    const fn new() -> Self {
        let (bytes, escaping) = ([0; TEXT_MAX], Escaping::None);
        Self { bytes, end: HEAD_MAX, escaping, syntax: 0, is_too_long: false }
    }

    fn clear(&mut self, escaping: Escaping) {
        self.end = HEAD_MAX;
        self.escaping = escaping;
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

    /// Appends a part, or its digest if it is too long.
    fn part(&mut self, part: &impl Part) {
        let start = self.end;
        part.write(self);
        if self.end - start > PART_MAX {
            self.is_too_long = true;
            self.end = start;
            if self.escaping == Escaping::Done {
                self.digest(part);
            }
        }
    }

    #[cold]
    fn digest(&mut self, part: &impl Part) {
        if let Some(before) = part.before_digest() {
            self.put(&short(before, PART_MAX - DIGEST_TEXT - 1));
            self.put(b":");
        }
        let mut hasher = blake3::Hasher::new();
        part.write(&mut hasher);
        self.put(&digest_text(&hasher));
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

/// Hands the bytes on so that none of them can be taken for syntax: in pieces, because a digest of single
/// bytes is dear.
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

/// A digest as text.
fn digest_text(hasher: &blake3::Hasher) -> Vec<u8> {
    let digest = hasher.finalize();
    let digits = digest.as_bytes().iter().take(DIGEST);
    let digits = digits.flat_map(|byte| [hex(byte >> 4), hex(byte & 15)]);
    DIGEST_MARK.iter().copied().chain(digits).collect()
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
    let mut hasher = blake3::Hasher::new();
    hasher.value(value);
    digest_text(&hasher)
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
