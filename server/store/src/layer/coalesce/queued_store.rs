//! The interface that coalescing needs from a store with several servers.

use sluicegate_core::{Answers, Batch, CounterKey, Store, store::LateAnswersFuture};

/// A store that reports which checks can share a call.
pub trait QueuedStore: Store {
    /// The queue and slot of a counter at present.
    fn location(&self, key: &CounterKey) -> CounterLocation;

    /// As [`decide`](Store::decide), and also returns the answers that arrive after the deadline.
    fn settle(
        &self,
        batch: Batch,
        _on_redirection: OnRedirection,
    ) -> impl Future<Output = BatchAnswers> + Send {
        async move { BatchAnswers { answers: self.decide(batch).await, late: None } }
    }
}

/// What a store does when a server redirects a call to another server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnRedirection {
    /// Calls the other server.
    Follow,
    /// Answers [`StoreError::Moved`](sluicegate_core::StoreError::Moved), so that the rest of the batch does not wait
    /// for the other server.
    Report,
}

/// The answers to a batch at its deadline, and the late ones.
pub struct BatchAnswers {
    /// One for each check, in order.
    pub answers: Answers,
    /// The late answers to checks that are [`StoreError::OutcomeUnknown`](sluicegate_core::StoreError::OutcomeUnknown)
    /// in `answers`.
    pub late: Option<LateAnswersFuture>,
}

/// Queue and slot of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterLocation {
    /// Number of the queue. Checks of one queue can share a call.
    pub queue: usize,
    /// Slot. The checks of a group on one slot are settled atomically.
    pub slot: u16,
}
