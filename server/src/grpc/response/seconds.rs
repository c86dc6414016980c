//! Durations in whole seconds and milliseconds, rounded up, so that a caller that waits this long is not too early.

use std::time::Duration;

/// A duration in seconds, rounded up.
pub(super) const fn rounded_up(duration: Duration) -> u64 {
    duration.as_secs().saturating_add((duration.subsec_nanos() > 0) as u64)
}

/// A duration in milliseconds, rounded up.
pub(super) fn milliseconds_rounded_up(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
