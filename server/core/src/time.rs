//! Points in time, as the stores measure them.

use std::time::Duration;

/// The longest duration in an answer, in microseconds (about 285 years): the largest
/// integer that a double holds exactly together with all smaller ones.
pub(crate) const SPAN_MAX: u64 = (1 << 53) - 1;

/// The last microsecond (in the year 2112) that can be represented: half of what a double holds exactly, so
/// that a span may be added to it.
const TIME_MAX: u64 = (1 << 52) - 1;

/// Microseconds since the Unix epoch, up to the year 2112.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The time `micros` microseconds after the Unix epoch, or the last one that can be represented.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(if micros < TIME_MAX { micros } else { TIME_MAX })
    }

    /// Microseconds since the Unix epoch.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// The time `span` later.
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        self.after_micros(micros(span))
    }

    /// The time `micros` microseconds later.
    #[must_use]
    pub const fn after_micros(self, micros: u64) -> Self {
        Self(self.0.saturating_add(micros))
    }
}

/// Whole microseconds of a span, at most [`SPAN_MAX`].
fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).map_or(SPAN_MAX, |micros| micros.min(SPAN_MAX))
}
