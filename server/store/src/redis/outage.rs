//! For how long some counters could not be asked.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::clock;

/// Adds up the times for which something is the case.
#[derive(Debug)]
pub(super) struct Outage(Mutex<Times>);

#[derive(Debug)]
struct Times {
    since: Option<Instant>,
    before: Duration,
}

impl Outage {
    /// It is the case from now on.
    pub(super) fn begun() -> Self {
        Self(Mutex::new(Times { since: Some(clock::now()), before: Duration::ZERO }))
    }

    /// Checks the state again, under a lock, so that the last check is right.
    pub(super) fn look(&self, is_so: impl FnOnce() -> bool) {
        let mut times = self.0.lock();
        match (times.since, is_so()) {
            (None, true) => times.since = Some(clock::now()),
            (Some(since), false) => {
                times.since = None;
                times.before += clock::now() - since;
            }
            (None, false) | (Some(_), true) => {}
        }
    }

    /// All times together, this one included.
    pub(super) fn total(&self) -> Duration {
        let times = self.0.lock();
        times.before + times.since.map_or(Duration::ZERO, |since| clock::now() - since)
    }
}
