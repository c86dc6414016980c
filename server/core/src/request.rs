//! What a caller asks, borrowed from the message it came in.

use smallvec::SmallVec;
use thiserror::Error;

use crate::{Window, limit::Unit};

/// The most descriptors in one request.
pub const DESCRIPTORS_MAX: usize = 256;

/// The most entries in one descriptor.
pub const ENTRIES_MAX: usize = 64;

/// Why a request cannot be decided.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum InvalidRequest {
    /// A request asks one set of rules, by name.
    #[error("domain must not be empty")]
    EmptyDomain,
    /// There is nothing to decide.
    #[error("descriptors must not be empty")]
    NoDescriptors,
    /// More than [`DESCRIPTORS_MAX`].
    #[error("{count} descriptors are more than the {DESCRIPTORS_MAX} that one request may have")]
    TooManyDescriptors {
        /// Descriptors in the request.
        count: usize,
    },
    /// More than [`ENTRIES_MAX`].
    #[error(
        "descriptors[{descriptor}]: {count} entries are more than the {ENTRIES_MAX} that one descriptor may have"
    )]
    TooManyEntries {
        /// Position of the descriptor.
        descriptor: usize,
        /// Entries in it.
        count: usize,
    },
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
    /// known to be within bounds.
    ///
    /// # Errors
    /// The request is empty or exceeds a bound.
    pub fn new<T>(
        domain: &'a str,
        parts: &'a [T],
        entries: impl Fn(&T) -> usize,
        describe: impl Fn(&'a T) -> Descriptor<'a>,
    ) -> Result<Self, InvalidRequest> {
        if domain.is_empty() {
            return Err(InvalidRequest::EmptyDomain);
        }
        match parts.len() {
            0 => return Err(InvalidRequest::NoDescriptors),
            1..=DESCRIPTORS_MAX => {}
            count => return Err(InvalidRequest::TooManyDescriptors { count }),
        }
        for (descriptor, count) in parts.iter().map(entries).enumerate() {
            if count > ENTRIES_MAX {
                return Err(InvalidRequest::TooManyEntries { descriptor, count });
            }
        }
        Ok(Self { domain, descriptors: parts.iter().map(describe).collect() })
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
