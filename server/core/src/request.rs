//! A rate limit request, borrowed from the message that carries it.

use smallvec::SmallVec;
use thiserror::Error;

use crate::{Window, limit::Unit};

/// The most descriptors in one request.
pub const DESCRIPTORS_MAX: usize = 256;

/// The most entries in one descriptor.
pub const ENTRIES_MAX: usize = 64;

/// Why a request is not decided.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum RequestError {
    /// The request is invalid.
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
    /// The request is too large. Values of end users can cause this, so it must be refused: an error would let it pass.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
}

/// Why a request is invalid. Only the caller's configuration can cause this.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum InvalidRequest {
    /// The domain is empty.
    #[error("domain must not be empty")]
    EmptyDomain,
    /// There are no descriptors.
    #[error("descriptors must not be empty")]
    NoDescriptors,
}

/// Which bound a request exceeds.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum TooLarge {
    /// The request has more than [`DESCRIPTORS_MAX`] descriptors.
    #[error("a request has more than {DESCRIPTORS_MAX} descriptors")]
    Descriptors,
    /// A descriptor has more than [`ENTRIES_MAX`] entries.
    #[error("a descriptor has more than {ENTRIES_MAX} entries")]
    Entries,
    /// Keys and values have more bytes than the caller of [`Request::new`] allows.
    #[error("the keys and values of a request have too many bytes")]
    Bytes,
}

/// One `ShouldRateLimit` request.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The domain.
    pub(crate) domain: &'a str,
    /// The descriptors. Each is matched by itself; the request is decided as a whole.
    pub(crate) descriptors: SmallVec<[Descriptor<'a>; 4]>,
}

impl<'a> Request<'a> {
    /// A request of `parts`. Checks the numbers of parts and entries first, then `describe` converts each part to a
    /// descriptor. Domain, keys and values may have `bytes_max` bytes together.
    ///
    /// # Errors
    /// The request is empty or exceeds a bound.
    pub fn new<T>(
        domain: &'a str,
        parts: &'a [T],
        bytes_max: usize,
        entries: impl Fn(&T) -> usize,
        describe: impl Fn(&'a T) -> Descriptor<'a>,
    ) -> Result<Self, RequestError> {
        if domain.is_empty() {
            return Err(InvalidRequest::EmptyDomain.into());
        }
        match parts.len() {
            0 => return Err(InvalidRequest::NoDescriptors.into()),
            1..=DESCRIPTORS_MAX => {}
            _ => return Err(TooLarge::Descriptors.into()),
        }
        if parts.iter().any(|part| entries(part) > ENTRIES_MAX) {
            return Err(TooLarge::Entries.into());
        }
        let descriptors: SmallVec<[Descriptor<'a>; 4]> = parts.iter().map(describe).collect();
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

/// One list of entries to match against the rules.
#[derive(Clone, Debug, Default)]
pub struct Descriptor<'a> {
    /// The entries, from the outermost level of the rules inwards.
    pub entries: SmallVec<[Entry<'a>; 4]>,
    /// The hits to charge or refund.
    pub hits: Hits,
    /// A limit in the request that replaces the configured one.
    pub limit_override: Option<LimitOverride>,
}

/// An entry of a descriptor. Both parts may contain any bytes: Envoy passes header values on unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The value. May be empty.
    pub value: &'a [u8],
}

/// Hits of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hits {
    /// Hits to charge; 0 is a peek, which reports whether one more hit would pass and charges nothing.
    Add(u64),
    /// Hits to refund. Never refused.
    Refund(u64),
}

impl Default for Hits {
    fn default() -> Self {
        Self::Add(1)
    }
}

/// A limit in the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitOverride {
    /// Hits per window.
    pub requests_per_unit: u32,
    /// Unit of the window; `None` if the number on the wire is no unit: such an override is ignored.
    pub unit: Option<Unit>,
    /// Units per window, if not one.
    pub unit_multiplier: Option<u32>,
}

impl LimitOverride {
    /// The window; `None` if it is not valid, and the override is ignored.
    #[must_use]
    pub fn window(&self) -> Option<Window> {
        Window::from_unit(self.unit?, self.unit_multiplier.unwrap_or(1)).ok()
    }
}
