//! How people type descriptors and read explanations.
//!
//! Here rather than in one of the programs, because both have to speak alike: `sluicectl` and `sluicegate`,
//! of which neither needs the other.

pub mod descriptor;
pub mod explanation;
mod printable;

use std::time::Duration;

pub use printable::{printable, printable_json, printable_lines};

/// A span from the wire; one that makes no sense is zero.
#[must_use]
pub fn from_wire(span: prost_types::Duration) -> Duration {
    span.try_into().unwrap_or_default()
}

/// The span in whole seconds. Rounded up: a caller that waits as long must not come too early.
#[must_use]
pub const fn seconds(span: Duration) -> u64 {
    span.as_secs().saturating_add(if span.subsec_nanos() > 0 { 1 } else { 0 })
}

/// The span for people, in whole seconds.
#[must_use]
pub fn format_span(span: Duration) -> String {
    humantime::format_duration(Duration::from_secs(seconds(span))).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_rounded_up() {
        assert_eq!(seconds(Duration::from_millis(41_001)), 42);
        assert_eq!(format_span(Duration::from_millis(41_001)), "42s");
        assert_eq!(format_span(Duration::from_secs(3_725)), "1h 2m 5s");
    }
}
