//! Keys of counters: readable, unambiguous, bounded.
//!
//! ```text
//! s1:fw:60:{acme}:public_api:tenant:user=bob      the chain of tenant acme
//! s1:fw:60:{public_api:ip=10.1.2.3}               a descriptor without a tenant
//! └┬┘└┬┘└┬┘└──┬─┘└────┬────┘└──┬──┘└──┬──┘
//!  │  │  │    │       │        │      an entry; one whose value is a shared pattern keeps its `*`
//!  │  │  │    │       │        the tenant's entry: its value is in the tag
//!  │  │  │    │       domain
//!  │  │  │    hash tag: selects the slot in a Redis Cluster
//!  │  │  window in seconds
//!  │  algorithm
//!  format version
//! ```
//!
//! In a domain with `tenant`, the value of that entry is the hash tag, so that all limits of
//! one tenant are on one slot. For any other descriptor the tag is the whole descriptor, which spreads them over the
//! slots. Bytes that would be ambiguous are written as `%` and two hex digits. A value of more than [`PART_MAX`]
//! bytes is replaced by `%#` and a BLAKE3 digest of its bytes, and so is a tag or a rest that would still be too long.
//! The domain precedes the digest of a rest, so that every key shows its tenant and domain.

mod digest;
mod escape;
mod parsed;
mod tenant;
mod text;

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

pub use digest::{Digest, DigestCache};
pub use escape::{KEY_MAX, PART_MAX};
pub use parsed::{ParsedEntry, ParsedKey};
pub use tenant::TenantKeys;

use text::{DigestInput, EscapedText, KeyPart, KeyText, PartSink, Sink, value_or_digest};

/// Seeded at random, so that callers cannot precompute values with equal hashes. Not a cryptographic hash: equality
/// compares the text too. In the simulation, the same in every run.
static HASHER: LazyLock<HashState> = LazyLock::new(HashState::default);

/// Key of a counter. It is hashed once, when it is built.
#[derive(Clone, Eq)]
pub struct CounterKey {
    text: SmallVec<[u8; 88]>,
    hash: u64,
}

impl CounterKey {
    fn new(text: &[u8]) -> Self {
        Self { text: SmallVec::from_slice(text), hash: Self::hash64_of(text) }
    }

    /// The [`hash64`](Self::hash64) of the key with this text.
    #[must_use]
    pub fn hash64_of(text: &[u8]) -> u64 {
        let mut hasher = HASHER.build_hasher();
        hasher.write(text);
        hasher.finish()
    }

    /// The key with this text, if it is valid.
    #[must_use]
    pub fn from_text(text: &[u8]) -> Option<Self> {
        ParsedKey::new(text).map(|_| Self::new(text))
    }

    /// The key as text: printable ASCII.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.text
    }

    /// A hash of the text, constant in this process. All bits are well distributed.
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

/// The part of a counter key that the limits of one descriptor share.
#[derive(Debug)]
pub struct KeyBuilder<'v> {
    text: KeyText,
    digests: DigestCache<'v>,
}

impl<'v> KeyBuilder<'v> {
    /// The identity of a descriptor.
    ///
    /// `shared` has, by position, the pattern that replaces the value of an entry. A pattern has a
    /// `*`, which distinguishes it from a value.
    #[must_use]
    pub fn new(
        domain: &'v str,
        tenant: Option<&[u8]>,
        entries: &[Entry<'v>],
        shared: &[Option<&'v [u8]>],
    ) -> Self {
        let mut builder = Self::empty();
        builder.set(domain, tenant, entries, shared);
        builder
    }

    /// An empty identity, for [`set`](Self::set).
    pub(crate) const fn empty() -> Self {
        Self { text: KeyText::new(), digests: DigestCache::new() }
    }

    /// Replaces it by another identity, with the arguments of [`new`](Self::new).
    pub(crate) fn set(
        &mut self,
        domain: &'v str,
        tenant: Option<&[u8]>,
        entries: &[Entry<'v>],
        shared: &[Option<&'v [u8]>],
    ) {
        let tagged = tenant.and_then(|tenant| tenant_entry(tenant, entries, shared));
        let parts = DescriptorParts { domain, entries, shared, tagged };
        // Escaping is rarely needed, and one pass over the text detects it.
        self.text.clear();
        parts.write(&mut self.text);
        if !self.text.is_unambiguous() {
            self.text.clear();
            parts.write(&mut EscapedText { text: &mut self.text, digests: &mut self.digests });
        }
    }

    /// The key of a limit's counter for this descriptor.
    #[must_use]
    pub fn key_for(&mut self, limit: &Limit) -> CounterKey {
        CounterKey::new(self.text.with_prefix(limit.algorithm().code(), limit.window().seconds()))
    }
}

/// The first entry with this key, unless its value is empty (Redis ignores an empty hash tag) or shared.
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

/// The parts of an identity.
struct DescriptorParts<'a, 'v> {
    domain: &'v str,
    entries: &'a [Entry<'v>],
    shared: &'a [Option<&'v [u8]>],
    /// The entry whose value is the tag: position and value.
    tagged: Option<(usize, &'v [u8])>,
}

impl<'v> DescriptorParts<'_, 'v> {
    fn write(&self, text: &mut impl PartSink<'v>) {
        text.syntax(b'{');
        if let Some((_, value)) = self.tagged {
            text.part(&TenantTag(value));
            text.syntax(b'}');
            text.syntax(b':');
            text.part(self);
        } else {
            text.part(self);
            text.syntax(b'}');
        }
    }
}

/// The value of a tenant.
struct TenantTag<'v>(&'v [u8]);

impl<'v> KeyPart<'v> for TenantTag<'v> {
    fn write(&self, sink: &mut impl Sink<'v>) {
        sink.value(self.0);
    }

    fn write_digest(&self, text: &mut KeyText, digests: &mut DigestCache<'v>) {
        text.put(digests.of(self.0).as_bytes());
    }
}

/// The rest: the domain and all entries.
impl<'v> KeyPart<'v> for DescriptorParts<'_, 'v> {
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

    fn write_digest(&self, text: &mut KeyText, digests: &mut DigestCache<'v>) {
        // Without a tenant, the whole is the tag.
        if self.tagged.is_some() {
            text.put(&value_or_digest(self.domain.as_bytes(), PART_MAX - Digest::LENGTH - 1));
            text.put(b":");
        }
        let mut framed = DigestInput { bytes: Vec::new(), digests };
        KeyPart::write(self, &mut framed);
        text.put(Digest::of_parts(&framed.bytes).as_bytes());
    }
}

/// Appends a pattern with its `*`, which the text of a value never has.
fn write_pattern<'v>(sink: &mut impl Sink<'v>, pattern: &'v [u8]) {
    for (position, between) in pattern.split(|&byte| byte == b'*').enumerate() {
        if position > 0 {
            sink.syntax(b'*');
        }
        sink.value(between);
    }
}
