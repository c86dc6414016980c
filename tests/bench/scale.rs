//! How much is measured.

use std::time::Duration;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    /// Of all loads every how many-th is measured.
    pub(crate) step: usize,
    /// How long a load lasts.
    pub(crate) span: Duration,
    /// Default number of rounds for the loads of the targets. Odd.
    pub(crate) rounds: usize,
    /// How many tenants there are where there are many.
    pub(crate) tenants: usize,
    /// Over how many requests allocations are counted.
    pub(crate) counted_requests: usize,
    /// How many round trips of a script are measured.
    pub(crate) round_trips: usize,
    /// Counters in a store whose memory is measured.
    pub(crate) counters: usize,
    /// Rules of a large limits file.
    pub(crate) rules: usize,
}

impl Scale {
    /// Quick, or even too little to mean anything.
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
                // Prime, so that everything in which loads differ comes up.
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
