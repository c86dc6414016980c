//! Waits between tries.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};

/// Waits without end: doubled each time, up to the longest, and spread by chance.
pub(crate) fn waits(shortest: Duration, longest: Duration) -> impl Iterator<Item = Duration> {
    let builder = ExponentialBuilder::default().with_jitter();
    builder.with_min_delay(shortest).with_max_delay(longest).without_max_times().build()
}
