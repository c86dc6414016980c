//! Counters of the process: atomics that OpenTelemetry and Prometheus read.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Counts that can only grow.
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

/// Successes and failures of something that is done again and again.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    pub(crate) success: Count,
    pub(crate) failure: Count,
    /// Whether the last one failed.
    bad: AtomicBool,
}

impl Attempts {
    /// One has succeeded: files were loaded.
    pub(crate) fn succeeded(&self) {
        self.success.add(1);
        self.restored();
    }

    /// One has failed: files have mistakes.
    pub(crate) fn failed(&self) {
        self.failure.add(1);
        self.bad.store(true, Ordering::Relaxed);
    }

    /// The files are again as they were when they were loaded last.
    pub(crate) fn restored(&self) {
        self.bad.store(false, Ordering::Relaxed);
    }

    /// Whether the last one failed.
    pub(super) fn is_bad(&self) -> bool {
        self.bad.load(Ordering::Relaxed)
    }
}
