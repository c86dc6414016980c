//! Spans of time in whole seconds.

use std::time::Duration;

/// The span in seconds, rounded up: a caller that waits that long does not return too early.
pub(super) const fn rounded_up(span: Duration) -> u64 {
    span.as_secs().saturating_add((span.subsec_nanos() > 0) as u64)
}
