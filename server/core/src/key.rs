//! Keys of counters: readable text, unambiguous and of bounded length.
//!
//! ```text
//! s1:fw:60:{acme}:public_api:tenant:user=bob      a descriptor of the tenant acme
//! s1:fw:60:{public_api:ip=10.1.2.3}               a descriptor without a tenant
//! └┬┘└┬┘└┬┘└──┬─┘└────┬────┘└──┬──┘└──┬──┘
//!  │  │  │    │       │        │      an entry; a shared pattern replaces its value and keeps its `*`
//!  │  │  │    │       │        the tenant's entry: its value is the hash tag
//!  │  │  │    │       domain
//!  │  │  │    hash tag: selects the slot in a Redis Cluster
//!  │  │  window in seconds
//!  │  algorithm
//!  format version
//! ```
//!
//! In a domain with `tenant`, the value of the tenant's entry is the hash tag, so that all counters of one tenant are
//! on one slot. For any other descriptor the hash tag is the whole descriptor with its domain, which spreads the
//! counters over the slots.
//!
//! Bytes that could be taken for syntax are written as `%` and two hex digits. A value of more than
//! [`KEY_PART_BYTES_MAX`] bytes is replaced by `%#` and a BLAKE3 digest. If the hash tag or the text after it is still
//! longer than [`KEY_PART_BYTES_MAX`], a digest replaces it, too. The domain is written before the digest of the text
//! after the tag, so that every key of a tenant shows tenant and domain.

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
pub use escape::{KEY_BYTES_MAX, KEY_PART_BYTES_MAX};
pub use parsed::{ParsedEntry, ParsedKey};
pub use tenant::TenantKeys;

use text::{DigestInput, EscapedText, KeyPart, KeyText, PartSink, Sink, value_or_digest};

/// Hashes keys with a random seed, so that callers cannot precompute values with equal hashes. The hash is not
/// cryptographic: equality of keys compares the text too. In the simulation the seed is the same in every run.
static HASHER: LazyLock<HashState> = LazyLock::new(HashState::default);

/// Key of a counter: printable text of at most [`KEY_BYTES_MAX`] bytes, and its hash, computed once.
#[derive(Clone, Eq)]
pub struct CounterKey {
    text: SmallVec<[u8; 88]>,
    hash: u64,
}

impl CounterKey {
    fn new(text: &[u8]) -> Self {
        Self { text: SmallVec::from_slice(text), hash: Self::hash64_of(text) }
    }

    /// The hash that [`hash64`](Self::hash64) returns for the key with this text.
    #[must_use]
    pub fn hash64_of(text: &[u8]) -> u64 {
        let mut hasher = HASHER.build_hasher();
        hasher.write(text);
        hasher.finish()
    }

    /// The key with this text; `None` if it is not a valid key.
    #[must_use]
    pub fn from_text(text: &[u8]) -> Option<Self> {
        ParsedKey::new(text).map(|_| Self::new(text))
    }

    /// The text of the key: printable ASCII.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.text
    }

    /// A hash of the text, the same as long as the process runs. All of its bits are well distributed.
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

/// Builds the counter keys of the limits of one descriptor, which differ only in algorithm and window.
#[derive(Debug)]
pub struct KeyBuilder<'v> {
    text: KeyText,
    digests: DigestCache<'v>,
}

impl<'v> KeyBuilder<'v> {
    /// A builder for a descriptor with these entries in a domain. `tenant` is the key of the domain's tenant entry.
    ///
    /// `shared_patterns` has, by position of the entry, the pattern that replaces its value. It may be shorter than
    /// `entries`. A pattern has a `*`, which distinguishes it from a value.
    #[must_use]
    pub fn new(
        domain: &'v str,
        tenant: Option<&[u8]>,
        entries: &[Entry<'v>],
        shared_patterns: &[Option<&'v [u8]>],
    ) -> Self {
        let mut builder = Self::empty();
        builder.set(domain, tenant, entries, shared_patterns);
        builder
    }

    /// A builder without a descriptor, which must be [`set`](Self::set) before use.
    pub(crate) const fn empty() -> Self {
        Self { text: KeyText::new(), digests: DigestCache::new() }
    }

    /// Replaces the descriptor. The arguments are those of [`new`](Self::new).
    pub(crate) fn set(
        &mut self,
        domain: &'v str,
        tenant: Option<&[u8]>,
        entries: &[Entry<'v>],
        shared_patterns: &[Option<&'v [u8]>],
    ) {
        let tenant_entry = tenant.and_then(|tenant| tenant_entry(tenant, entries, shared_patterns));
        let parts = DescriptorParts { domain, entries, shared_patterns, tenant_entry };
        // Escaping is rarely needed. Writing without it first, and checking the text in one pass, is faster.
        self.text.clear();
        parts.write(&mut self.text);
        if !self.text.is_unambiguous() {
            self.text.clear();
            parts.write(&mut EscapedText { text: &mut self.text, digests: &mut self.digests });
        }
    }

    /// The key of the counter that a limit has for the descriptor.
    #[must_use]
    pub fn key_for(&mut self, limit: &Limit) -> CounterKey {
        CounterKey::new(self.text.with_prefix(limit.algorithm().code(), limit.window().seconds()))
    }
}

/// The tenant's entry: position and value of the first entry with the key `tenant`. `None` if its value is empty,
/// because Redis ignores an empty hash tag, or if a shared pattern replaces it.
fn tenant_entry<'v>(
    tenant: &[u8],
    entries: &[Entry<'v>],
    shared_patterns: &[Option<&[u8]>],
) -> Option<(usize, &'v [u8])> {
    let position = entries.iter().position(|entry| entry.key == tenant)?;
    let value = entries.get(position)?.value;
    let is_shared = shared_patterns.get(position).is_some_and(Option::is_some);
    (!value.is_empty() && !is_shared).then_some((position, value))
}

/// The descriptor of a key: domain and entries, and which entry is the tenant's.
struct DescriptorParts<'a, 'v> {
    domain: &'v str,
    entries: &'a [Entry<'v>],
    shared_patterns: &'a [Option<&'v [u8]>],
    /// Position and value of the tenant's entry, whose value is the hash tag.
    tenant_entry: Option<(usize, &'v [u8])>,
}

impl<'v> DescriptorParts<'_, 'v> {
    /// Writes the hash tag and the text after it.
    fn write(&self, text: &mut impl PartSink<'v>) {
        text.syntax(b'{');
        if let Some((_, value)) = self.tenant_entry {
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

/// The hash tag of a tenant: the value of the tenant's entry.
struct TenantTag<'v>(&'v [u8]);

impl<'v> KeyPart<'v> for TenantTag<'v> {
    fn write(&self, sink: &mut impl Sink<'v>) {
        sink.value(self.0);
    }

    fn write_digest(&self, text: &mut KeyText, digests: &mut DigestCache<'v>) {
        text.put(digests.of(self.0).as_bytes());
    }
}

/// Domain and entries: the hash tag of a descriptor without a tenant, or the text after the hash tag of a tenant.
impl<'v> KeyPart<'v> for DescriptorParts<'_, 'v> {
    fn write(&self, sink: &mut impl Sink<'v>) {
        let tenant_position = self.tenant_entry.map(|(position, _)| position);
        sink.value(self.domain.as_bytes());
        for (position, entry) in self.entries.iter().enumerate() {
            sink.syntax(b':');
            sink.value(entry.key);
            if tenant_position == Some(position) {
                continue;
            }
            sink.syntax(b'=');
            match self.shared_patterns.get(position).copied().flatten() {
                Some(pattern) => write_pattern(sink, pattern),
                None => sink.value(entry.value),
            }
        }
    }

    fn write_digest(&self, text: &mut KeyText, digests: &mut DigestCache<'v>) {
        // Without a tenant the digest is the hash tag, and the domain is part of its input only.
        if self.tenant_entry.is_some() {
            text.put(&value_or_digest(
                self.domain.as_bytes(),
                KEY_PART_BYTES_MAX - Digest::LENGTH - 1,
            ));
            text.put(b":");
        }
        let mut input = DigestInput { bytes: Vec::new(), digests };
        KeyPart::write(self, &mut input);
        text.put(Digest::of_parts(&input.bytes).as_bytes());
    }
}

/// Appends a pattern. Its `*` are syntax, because a value is written without any.
fn write_pattern<'v>(sink: &mut impl Sink<'v>, pattern: &'v [u8]) {
    for (position, between) in pattern.split(|&byte| byte == b'*').enumerate() {
        if position > 0 {
            sink.syntax(b'*');
        }
        sink.value(between);
    }
}
