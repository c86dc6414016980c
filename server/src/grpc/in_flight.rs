//! Bounds the requests in progress.
//!
//! A request counts from its headers to its answer. Beyond the bound it is marked, and answered
//! OVER_LIMIT without being matched: an error would let it through, and make a flood a way around
//! every limit.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// Requests in progress, and the most there may be. Clones count together.
#[derive(Clone, Debug)]
pub(crate) struct InFlight {
    current: Arc<AtomicUsize>,
    max: usize,
}

/// Marks a request that came when there were too many.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shed;

/// One request in progress, until it is dropped.
#[derive(Debug)]
pub(crate) struct Entered {
    current: Arc<AtomicUsize>,
    /// Whether there were too many.
    pub(crate) shed: bool,
}

impl InFlight {
    pub(crate) fn new(max: usize) -> Self {
        Self { current: Arc::default(), max }
    }

    pub(crate) fn current(&self) -> usize {
        self.current.load(Ordering::Relaxed)
    }

    pub(crate) const fn max(&self) -> usize {
        self.max
    }

    pub(crate) fn enter(&self) -> Entered {
        let before = self.current.fetch_add(1, Ordering::Relaxed);
        Entered { current: Arc::clone(&self.current), shed: before >= self.max }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.current.fetch_sub(1, Ordering::Relaxed);
    }
}
