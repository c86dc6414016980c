//! What a caller asks, borrowed from the message it came in.

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
    /// It makes no sense.
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
    /// It is too large. Values of end users can make it so, so it must be denied: an error would let it pass.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
}

/// A request that makes no sense. Only its caller's configuration can make it so.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum InvalidRequest {
    /// A request asks one set of rules, by name.
    #[error("domain must not be empty")]
    EmptyDomain,
    /// There is nothing to decide.
    #[error("descriptors must not be empty")]
    NoDescriptors,
}

/// A request that exceeds a bound.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum TooLarge {
    /// It has more than [`DESCRIPTORS_MAX`] descriptors.
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
    /// Name of the set of rules to ask.
    pub(crate) domain: &'a str,
    /// What to decide about, each on its own against the rules, all of them together as one request.
    pub(crate) descriptors: SmallVec<[Descriptor<'a>; 4]>,
}

impl<'a> Request<'a> {
    /// A request about `parts`, each of which `describe` makes a descriptor of, once their numbers are
    /// known to be within bounds. Its domain, keys and values may have `bytes_max` bytes together.
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

    /// Name of the set of rules that is asked.
    #[must_use]
    pub const fn domain(&self) -> &'a str {
        self.domain
    }

    /// What is to be decided, in order.
    #[must_use]
    pub fn descriptors(&self) -> &[Descriptor<'a>] {
        &self.descriptors
    }
}

/// One list of entries to match against the rules.
#[derive(Clone, Debug, Default)]
pub struct Descriptor<'a> {
    /// From the outermost level of the rules inwards.
    pub entries: SmallVec<[Entry<'a>; 4]>,
    /// How many hits the request counts for.
    pub hits: Hits,
    /// A limit that the caller brings along, in place of the configured one.
    pub limit_override: Option<LimitOverride>,
}

/// One step of a descriptor. Both parts may hold any bytes: Envoy passes header values on as they came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// What the value means.
    pub key: &'a [u8],
    /// May be empty.
    pub value: &'a [u8],
}

/// How many hits a descriptor adds, or gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hits {
    /// Adds hits; 0 is a peek, which asks whether one more would pass and adds nothing.
    Add(u64),
    /// Gives hits back. Never refused.
    GiveBack(u64),
}

impl Default for Hits {
    fn default() -> Self {
        Self::Add(1)
    }
}

/// A limit that comes with the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitOverride {
    /// Hits per window.
    pub requests_per_unit: u32,
    /// `None` where the number on the wire names no unit: such an override is ignored.
    pub unit: Option<Unit>,
    /// Units per window, where it is not one.
    pub unit_multiplier: Option<u32>,
}

impl LimitOverride {
    /// The window that it names; `None` if it names none that can be, and is ignored.
    #[must_use]
    pub fn window(&self) -> Option<Window> {
        Window::from_unit(self.unit?, self.unit_multiplier.unwrap_or(1)).ok()
    }
}
