//! Turns what a store could not answer into a decision.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use sluicegate_core::{Batch, Decision, Store, StoreError, store::Source};
use smallvec::SmallVec;

/// A decision for each check of a batch, in order.
pub type Decisions = SmallVec<[Decision; 4]>;

/// The outermost layer. It is no [`Store`], because it has no errors to hand on: whoever asks it gets
/// decisions.
#[derive(Debug)]
pub struct FailurePolicy<S> {
    inner: S,
    answered: AtomicU64,
}

impl<S: Store> FailurePolicy<S> {
    /// Answers for `inner` where it cannot.
    pub const fn new(inner: S) -> Self {
        Self { inner, answered: AtomicU64::new(0) }
    }

    /// The store inside.
    pub const fn inner(&self) -> &S {
        &self.inner
    }

    /// Checks that the policy has answered so far.
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Decides every check of the batch.
    pub async fn decide(&self, batch: Batch) -> Decisions {
        if batch.is_empty() {
            return Decisions::new();
        }
        let answers = self.inner.decide(batch).await;
        answers
            .into_iter()
            .map(|answer| answer.unwrap_or_else(|error| self.answer(error)))
            .collect()
    }

    fn answer(&self, error: StoreError) -> Decision {
        self.answered.fetch_add(1, Ordering::Relaxed);
        match error {
            // Letting unknown counters pass would make an attacker's flood of new keys a way around
            // every limit.
            StoreError::Full => Decision {
                allowed: false,
                granted: 0,
                remaining: 0,
                reset_after: Duration::ZERO,
                retry_after: None,
                receipt: None,
                source: Source::Policy,
            },
        }
    }
}
