//! The total time for which some counters were unavailable.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::clock;

/// Sums up the time for which the store is degraded.
#[derive(Debug)]
pub(super) struct DegradedTimer(Mutex<Times>);

#[derive(Debug)]
struct Times {
    /// Since when the store is degraded; `None` if it is not.
    since: Option<Instant>,
    /// Total of earlier times.
    before: Duration,
}

impl DegradedTimer {
    /// A timer of a store that is degraded from now on.
    pub(super) fn started() -> Self {
        Self(Mutex::new(Times { since: Some(clock::now()), before: Duration::ZERO }))
    }

    /// Updates the timer after the state may have changed. Reads the state under the lock, so that the last of
    /// concurrent updates reads the latest state.
    pub(super) fn update(&self, is_degraded: impl FnOnce() -> bool) {
        let mut times = self.0.lock();
        match (times.since, is_degraded()) {
            (None, true) => times.since = Some(clock::now()),
            (Some(since), false) => {
                times.since = None;
                times.before += clock::now() - since;
            }
            (None, false) | (Some(_), true) => {}
        }
    }

    /// The total degraded time, including the current period.
    pub(super) fn total(&self) -> Duration {
        let times = self.0.lock();
        times.before + times.since.map_or(Duration::ZERO, |since| clock::now() - since)
    }
}
