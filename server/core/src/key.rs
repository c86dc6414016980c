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
//! would be too long is replaced by `%#` and a BLAKE3 digest.

use std::{
    fmt,
    hash::{BuildHasher, Hash, Hasher},
    sync::LazyLock,
};

use foldhash::fast::RandomState;
use smallvec::SmallVec;

use crate::{Limit, request::Entry};

/// The longest tag, and the longest rest, written out before a digest takes its place.
pub const PART_MAX: usize = 256;

/// The longest counter key, in bytes.
pub const KEY_MAX: usize = 2 * PART_MAX + 32;

/// Bytes of a digest; twice as many hex digits.
const DIGEST: usize = 16;

/// Seeded by chance, so that nobody can choose values whose hashes meet.
static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::default);

/// Name of a counter. It is hashed once, when it is made.
#[derive(Clone, Eq)]
pub struct CounterKey {
    text: SmallVec<[u8; 88]>,
    hash: u64,
}

impl CounterKey {
    fn new(text: SmallVec<[u8; 88]>) -> Self {
        let hash = Self::hash64_of(&text);
        Self { text, hash }
    }

    /// What [`hash64`](Self::hash64) says of the key with this text.
    #[must_use]
    pub fn hash64_of(text: &[u8]) -> u64 {
        HASHER.hash_one(text)
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
pub struct Identity(SmallVec<[u8; 88]>);

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
        let tagged = tenant.and_then(|tenant| tenant_entry(tenant, entries, shared));
        let mut rest = SmallVec::<[u8; 88]>::new();
        escape(&mut rest, domain.as_bytes());
        for (position, entry) in entries.iter().enumerate() {
            rest.push(b':');
            escape(&mut rest, entry.key);
            if tagged.is_some_and(|(tenant, _)| tenant == position) {
                continue;
            }
            rest.push(b'=');
            match shared.get(position).copied().flatten() {
                Some(pattern) => escape_pattern(&mut rest, pattern),
                None => escape(&mut rest, entry.value),
            }
        }
        shorten(&mut rest);
        let mut text = SmallVec::with_capacity(rest.len() + 2);
        text.push(b'{');
        if let Some((_, value)) = tagged {
            let mut tag = SmallVec::<[u8; 88]>::new();
            escape(&mut tag, value);
            shorten(&mut tag);
            text.extend_from_slice(&tag);
            text.extend_from_slice(b"}:");
            text.extend_from_slice(&rest);
        } else {
            text.extend_from_slice(&rest);
            text.push(b'}');
        }
        Self(text)
    }

    /// The name of the counter that a limit keeps for this descriptor.
    #[must_use]
    pub fn counter(&self, limit: &Limit) -> CounterKey {
        let mut key = SmallVec::with_capacity(self.0.len() + 24);
        key.extend_from_slice(b"s1:");
        key.extend_from_slice(limit.algorithm().code().as_bytes());
        key.push(b':');
        push_decimal(&mut key, limit.window().seconds());
        key.push(b':');
        key.extend_from_slice(&self.0);
        CounterKey::new(key)
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

/// Appends the bytes so that none of them can be taken for syntax.
fn escape(text: &mut SmallVec<[u8; 88]>, bytes: &[u8]) {
    append(text, bytes, |byte| byte != b'*' && is_plain(byte));
}

/// Appends a pattern: as other bytes, but `*` stays, which no value's text has.
fn escape_pattern(text: &mut SmallVec<[u8; 88]>, pattern: &[u8]) {
    append(text, pattern, is_plain);
}

const fn is_plain(byte: u8) -> bool {
    byte.is_ascii_graphic() && !matches!(byte, b'{' | b'}' | b':' | b'=' | b'%')
}

fn append(text: &mut SmallVec<[u8; 88]>, bytes: &[u8], plain: impl Fn(u8) -> bool) {
    if bytes.iter().all(|&byte| plain(byte)) {
        text.extend_from_slice(bytes);
        return;
    }
    for &byte in bytes {
        if plain(byte) {
            text.push(byte);
        } else {
            text.extend_from_slice(&[b'%', hex(byte >> 4), hex(byte & 15)]);
        }
    }
}

/// Puts a digest in the place of a text that is too long.
fn shorten(text: &mut SmallVec<[u8; 88]>) {
    if text.len() <= PART_MAX {
        return;
    }
    let digest = blake3::hash(text);
    text.clear();
    text.extend_from_slice(b"%#");
    text.extend(
        digest.as_bytes().iter().take(DIGEST).flat_map(|byte| [hex(byte >> 4), hex(byte & 15)]),
    );
}

const fn hex(nibble: u8) -> u8 {
    if nibble < 10 { b'0' + nibble } else { b'a' + nibble - 10 }
}

fn push_decimal(text: &mut SmallVec<[u8; 88]>, number: u32) {
    let mut digits = SmallVec::<[u8; 10]>::new();
    let mut rest = number;
    loop {
        digits.push(b'0' + (rest % 10) as u8);
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    text.extend(digits.into_iter().rev());
}
