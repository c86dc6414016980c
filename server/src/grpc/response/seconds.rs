//! Durations in whole seconds.

use std::time::Duration;

/// A duration in seconds, rounded up, so that a caller that waits this long is not too early.
pub(super) const fn rounded_up(duration: Duration) -> u64 {
    duration.as_secs().saturating_add((duration.subsec_nanos() > 0) as u64)
}
