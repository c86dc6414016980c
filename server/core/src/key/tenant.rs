//! Counters of one tenant in one domain, identified by their keys alone.

use super::{digest::Digest, escape::PART_MAX, parsed::ParsedKey, text::value_or_digest};

/// A tenant in a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantKeys {
    /// The tag that all its keys have, without braces.
    tag: Vec<u8>,
    /// The text after the tag: the domain, as in plain keys and as in keys that end in a digest.
    /// They differ only for long domains.
    domains: [Vec<u8>; 2],
}

impl TenantKeys {
    /// A tenant, by the value of its entry; `None` if it is empty, which is not a tenant.
    #[must_use]
    pub fn new(domain: &str, tenant: &[u8]) -> Option<Self> {
        if tenant.is_empty() {
            return None;
        }
        let domain = domain.as_bytes();
        let domains = [
            value_or_digest(domain, PART_MAX),
            value_or_digest(domain, PART_MAX - Digest::LENGTH - 1),
        ];
        Some(Self { tag: value_or_digest(tenant, PART_MAX), domains })
    }

    /// The hash tag, in its braces: printable ASCII.
    #[must_use]
    pub fn tag(&self) -> Vec<u8> {
        [b"{", self.tag.as_slice(), b"}"].concat()
    }

    /// Whether the counter with this key belongs to the tenant.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        let Some(reading) = ParsedKey::new(key) else { return false };
        reading.tag == self.tag
            && self.domains.iter().any(|domain| {
                reading
                    .rest
                    .and_then(|rest| rest.strip_prefix(domain.as_slice()))
                    .is_some_and(|entries| entries.starts_with(b":"))
            })
    }
}
