//! The extent of a measurement.

use std::time::Duration;

/// The extent of a measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    /// Every n-th load is measured.
    pub(crate) step: usize,
    /// Duration of a load.
    pub(crate) span: Duration,
    /// Default number of rounds for the loads of the targets. Odd.
    pub(crate) rounds: usize,
    /// Number of tenants in loads with many.
    pub(crate) tenants: usize,
    /// Number of requests over which allocations are counted.
    pub(crate) counted_requests: usize,
    /// Number of round trips of a script that are measured.
    pub(crate) round_trips: usize,
    /// Counters in a store whose memory is measured.
    pub(crate) counters: usize,
    /// Rules of a large limits file.
    pub(crate) rules: usize,
}

impl Scale {
    /// The extent of a full, a quick or a smoke run.
    pub(crate) const fn new(quick: bool, smoke: bool) -> Self {
        let full = Self {
            step: 1,
            span: Duration::from_secs(2),
            rounds: 5,
            tenants: 10_000,
            counted_requests: 10_000,
            round_trips: 20_000,
            counters: 200_000,
            rules: 100_000,
        };
        if quick {
            Self { span: Duration::from_secs(1), rounds: 3, ..full }
        } else if smoke {
            Self {
                // A prime number, so that the measured loads differ in every parameter.
                step: 7,
                span: Duration::from_millis(50),
                rounds: 1,
                tenants: 20,
                counted_requests: 50,
                round_trips: 100,
                counters: 1_000,
                rules: 100,
            }
        } else {
            full
        }
    }
}
