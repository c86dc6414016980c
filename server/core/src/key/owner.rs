//! Whose counters: those of one tenant in one domain, told by their keys alone.

use super::{Digest, PART_MAX, Reading, short};

/// A tenant in a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The tag that all its keys have, without braces.
    tag: Vec<u8>,
    /// What stands behind the tag: the domain, as in keys that are written out and as in those that end in a digest.
    /// They are the same unless the domain is long.
    domains: [Vec<u8>; 2],
}

impl Owner {
    /// A tenant, by the value of its entry; `None` if it is empty, because that is no tenant.
    #[must_use]
    pub fn new(domain: &str, tenant: &[u8]) -> Option<Self> {
        if tenant.is_empty() {
            return None;
        }
        let domain = domain.as_bytes();
        let domains = [short(domain, PART_MAX), short(domain, PART_MAX - Digest::LENGTH - 1)];
        Some(Self { tag: short(tenant, PART_MAX), domains })
    }

    /// The hash tag, in its braces: printable ASCII.
    #[must_use]
    pub fn tag(&self) -> Vec<u8> {
        [b"{", self.tag.as_slice(), b"}"].concat()
    }

    /// Whether it is the owner of the counter with this key.
    #[must_use]
    pub fn owns(&self, key: &[u8]) -> bool {
        let Some(reading) = Reading::new(key) else { return false };
        reading.tag == self.tag
            && self.domains.iter().any(|domain| {
                reading
                    .rest
                    .and_then(|rest| rest.strip_prefix(domain.as_slice()))
                    .is_some_and(|entries| entries.starts_with(b":"))
            })
    }
}
