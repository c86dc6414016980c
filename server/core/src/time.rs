//! Points in time, as the clocks of stores measure them.

use std::time::Duration;

/// The longest time span in an answer, in microseconds (about 285 years): the largest integer up to which a double
/// holds every integer exactly.
pub(crate) const SPAN_MAX: u64 = (1 << 53) - 1;

/// The latest time that a clock reads, in microseconds since the Unix epoch (in the year 2112): half of what a double
/// holds exactly, so that a span can be added to it.
const TIME_MAX: u64 = (1 << 52) - 1;

/// A point in time: microseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The time `micros` microseconds after the Unix epoch, at most the year 2112.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(if micros < TIME_MAX { micros } else { TIME_MAX })
    }

    /// Microseconds since the Unix epoch.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// The time `span` later. May be beyond the year 2112.
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        self.after_micros(micros(span))
    }

    /// The time `micros` microseconds later. May be beyond the year 2112.
    #[must_use]
    pub const fn after_micros(self, micros: u64) -> Self {
        Self(self.0.saturating_add(micros))
    }
}

/// Whole microseconds of a span, at most [`SPAN_MAX`].
fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).map_or(SPAN_MAX, |micros| micros.min(SPAN_MAX))
}
