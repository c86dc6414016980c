//! Atomic counters that the metrics read.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A count that only grows.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Successes and failures of repeated attempts, such as loads of files.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    pub(crate) success: Count,
    pub(crate) failure: Count,
    /// Whether the last attempt failed.
    last_failed: AtomicBool,
}

impl Attempts {
    /// Counts a success.
    pub(crate) fn succeeded(&self) {
        self.success.add(1);
        self.restored();
    }

    /// Counts a failure.
    pub(crate) fn failed(&self) {
        self.failure.add(1);
        self.last_failed.store(true, Ordering::Relaxed);
    }

    /// Notes, without counting an attempt, that the files equal those of the last success again.
    pub(crate) fn restored(&self) {
        self.last_failed.store(false, Ordering::Relaxed);
    }

    /// Whether the last attempt failed.
    pub(super) fn has_last_failed(&self) -> bool {
        self.last_failed.load(Ordering::Relaxed)
    }
}
