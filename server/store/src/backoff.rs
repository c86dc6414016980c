//! Delays between retries.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};

/// Endless delays with exponential backoff up to a maximum, and jitter.
pub(crate) fn waits(shortest: Duration, longest: Duration) -> impl Iterator<Item = Duration> {
    let builder = ExponentialBuilder::default().with_jitter();
    builder.with_min_delay(shortest).with_max_delay(longest).without_max_times().build()
}
