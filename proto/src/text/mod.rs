//! Text for users: the syntax of descriptors, the rendering of explanations, and the escaping of control characters.
//!
//! `sluicectl` and `sluicegate` share this module, so that both have the same syntax and output.

pub mod descriptor;
pub mod explanation;
mod printable;

use std::time::Duration;

pub use printable::{printable, printable_json, printable_lines};

/// Converts a duration of a message; an invalid or negative one becomes zero.
#[must_use]
pub fn duration_from_proto(span: prost_types::Duration) -> Duration {
    span.try_into().unwrap_or_default()
}

/// A duration in whole seconds, rounded up, so that a caller that waits so long does not retry too early.
#[must_use]
pub const fn seconds(span: Duration) -> u64 {
    span.as_secs().saturating_add(if span.subsec_nanos() > 0 { 1 } else { 0 })
}

/// A duration as text such as `1h 2m 5s`, rounded up to whole seconds.
#[must_use]
pub fn format_span(span: Duration) -> String {
    humantime::format_duration(Duration::from_secs(seconds(span))).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_rounded_up_to_seconds() {
        assert_eq!(seconds(Duration::from_millis(41_001)), 42);
        assert_eq!(format_span(Duration::from_millis(41_001)), "42s");
        assert_eq!(format_span(Duration::from_secs(3_725)), "1h 2m 5s");
    }
}
