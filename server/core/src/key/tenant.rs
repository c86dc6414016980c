//! Recognizes the counters of one tenant in one domain by their keys.

use super::{digest::Digest, escape::KEY_PART_BYTES_MAX, parsed::ParsedKey, text::value_or_digest};

/// Matches the keys of all counters of one tenant in one domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantKeys {
    /// The hash tag of the keys, without braces.
    tag: Vec<u8>,
    /// The domain, with which the text after the hash tag begins: as it is written before entries, and as it is written
    /// before a digest of them. The two differ only for long domains.
    domains: [Vec<u8>; 2],
}

impl TenantKeys {
    /// Matches the keys of the tenant with this value of the tenant's entry; `None` if the value is empty, because such
    /// a descriptor has no tenant.
    #[must_use]
    pub fn new(domain: &str, tenant: &[u8]) -> Option<Self> {
        if tenant.is_empty() {
            return None;
        }
        let domain = domain.as_bytes();
        let domains = [
            value_or_digest(domain, KEY_PART_BYTES_MAX),
            value_or_digest(domain, KEY_PART_BYTES_MAX - Digest::LENGTH - 1),
        ];
        Some(Self { tag: value_or_digest(tenant, KEY_PART_BYTES_MAX), domains })
    }

    /// The hash tag in braces: printable ASCII.
    #[must_use]
    pub fn tag(&self) -> Vec<u8> {
        [b"{", self.tag.as_slice(), b"}"].concat()
    }

    /// Whether the counter with this key belongs to the tenant.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        let Some(parsed) = ParsedKey::new(key) else { return false };
        parsed.tag == self.tag
            && self.domains.iter().any(|domain| {
                parsed
                    .rest
                    .and_then(|rest| rest.strip_prefix(domain.as_slice()))
                    .is_some_and(|entries| entries.starts_with(b":"))
            })
    }
}
