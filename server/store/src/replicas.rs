//! The number of replicas that share the counters.

use std::{
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

/// The last known number of live replicas. Clones share the number.
#[derive(Clone, Debug)]
pub struct LiveReplicas(Arc<AtomicU32>);

impl LiveReplicas {
    /// Starts with this number.
    #[must_use]
    pub fn new(number: NonZeroU32) -> Self {
        Self(Arc::new(AtomicU32::new(number.get())))
    }

    /// The last known number.
    #[must_use]
    pub fn get(&self) -> NonZeroU32 {
        NonZeroU32::new(self.0.load(Ordering::Relaxed)).unwrap_or(NonZeroU32::MIN)
    }

    /// Changes the number.
    pub fn set(&self, number: NonZeroU32) {
        self.0.store(number.get(), Ordering::Relaxed);
    }
}

impl Default for LiveReplicas {
    fn default() -> Self {
        Self::new(NonZeroU32::MIN)
    }
}
