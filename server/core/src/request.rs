//! Rate limit requests, which borrow domain, keys and values from the received message.

use smallvec::SmallVec;
use thiserror::Error;

use crate::{Window, limit::Unit};

/// The most descriptors in one request.
pub const DESCRIPTORS_MAX: usize = 256;

/// The most entries in one descriptor.
pub const ENTRIES_MAX: usize = 64;

/// Reason why a request is not matched against the rules.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum RequestError {
    /// The request is invalid.
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
    /// The request exceeds a bound. End users can cause this with the values they send, so the request must be refused:
    /// Envoy lets a request pass on an error.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
}

/// Reason why a request is invalid. Only the configuration of the caller can cause it, not the values of end users.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum InvalidRequest {
    /// The domain is empty.
    #[error("domain must not be empty")]
    EmptyDomain,
    /// There are no descriptors.
    #[error("descriptors must not be empty")]
    NoDescriptors,
}

/// The bound that a request exceeds.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum TooLarge {
    /// The request has more than [`DESCRIPTORS_MAX`] descriptors.
    #[error("a request has more than {DESCRIPTORS_MAX} descriptors")]
    Descriptors,
    /// A descriptor has more than [`ENTRIES_MAX`] entries.
    #[error("a descriptor has more than {ENTRIES_MAX} entries")]
    Entries,
    /// Domain, keys and values have more bytes together than the caller of [`Request::new`] allows.
    #[error("the domain, keys and values of a request have too many bytes")]
    Bytes,
}

/// A rate limit request: a domain and descriptors.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The domain.
    pub(crate) domain: &'a str,
    /// The descriptors. Each is matched by itself, and the request is decided as a whole.
    pub(crate) descriptors: SmallVec<[Descriptor<'a>; 4]>,
}

impl<'a> Request<'a> {
    /// A request with a descriptor for each element of `messages`. Checks the number of descriptors, and with
    /// `entry_count` the number of entries of each, before it converts the messages with `to_descriptor`. Domain, keys
    /// and values may have `bytes_max` bytes together.
    ///
    /// # Errors
    /// The domain is empty, there are no descriptors, or a bound is exceeded.
    pub fn new<T>(
        domain: &'a str,
        messages: &'a [T],
        bytes_max: usize,
        entry_count: impl Fn(&T) -> usize,
        to_descriptor: impl Fn(&'a T) -> Descriptor<'a>,
    ) -> Result<Self, RequestError> {
        if domain.is_empty() {
            return Err(InvalidRequest::EmptyDomain.into());
        }
        match messages.len() {
            0 => return Err(InvalidRequest::NoDescriptors.into()),
            1..=DESCRIPTORS_MAX => {}
            _ => return Err(TooLarge::Descriptors.into()),
        }
        if messages.iter().any(|message| entry_count(message) > ENTRIES_MAX) {
            return Err(TooLarge::Entries.into());
        }
        let descriptors: SmallVec<[Descriptor<'a>; 4]> =
            messages.iter().map(to_descriptor).collect();
        let entries = descriptors.iter().flat_map(|descriptor| &descriptor.entries);
        let bytes = entries.fold(domain.len(), |sum, entry| {
            sum.saturating_add(entry.key.len()).saturating_add(entry.value.len())
        });
        if bytes > bytes_max {
            return Err(TooLarge::Bytes.into());
        }
        Ok(Self { domain, descriptors })
    }

    /// The domain.
    #[must_use]
    pub const fn domain(&self) -> &'a str {
        self.domain
    }

    /// The descriptors, in order.
    #[must_use]
    pub fn descriptors(&self) -> &[Descriptor<'a>] {
        &self.descriptors
    }
}

/// A descriptor: a list of entries to match against the rules, with its hits.
#[derive(Clone, Debug, Default)]
pub struct Descriptor<'a> {
    /// The entries, in the order of the levels of the tree of rules.
    pub entries: SmallVec<[Entry<'a>; 4]>,
    /// The hits to charge or refund.
    pub hits: Hits,
    /// A limit that replaces the limits of the matched rule.
    pub limit_override: Option<LimitOverride>,
}

/// An entry of a descriptor. Key and value may contain any bytes, because Envoy passes header values on unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The value. May be empty.
    pub value: &'a [u8],
}

/// The hits of a descriptor, to charge or to refund.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hits {
    /// Hits to charge. 0 is a peek: it charges nothing, and is allowed if one more hit would pass.
    Add(u64),
    /// Hits to refund. Never refused.
    Refund(u64),
}

impl Default for Hits {
    fn default() -> Self {
        Self::Add(1)
    }
}

/// An override: a limit that comes with a descriptor and replaces the rule's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitOverride {
    /// Hits per window.
    pub requests_per_unit: u32,
    /// Unit of the window; `None` if the message has none or an unknown one. Such an override is ignored.
    pub unit: Option<Unit>,
    /// Units per window; `None` means one.
    pub unit_multiplier: Option<u32>,
}

impl LimitOverride {
    /// The window; `None` if it is not valid. Such an override is ignored.
    #[must_use]
    pub fn window(&self) -> Option<Window> {
        Window::from_unit(self.unit?, self.unit_multiplier.unwrap_or(1)).ok()
    }
}
