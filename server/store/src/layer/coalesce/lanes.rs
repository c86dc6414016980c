//! The port to a store whose servers are asked apart from each other.

use sluicegate_core::{Answers, Batch, CounterKey, Store, store::PendingAnswers};

/// A store that knows which checks can go out in one call.
pub trait Lanes: Store {
    /// The present server and slot of a counter.
    fn place(&self, key: &CounterKey) -> Place;

    /// As [`decide`](Store::decide), and hands on the answers that come after the deadline.
    fn settle(
        &self,
        batch: Batch,
        _redirected: Redirected,
    ) -> impl Future<Output = Settled> + Send {
        async move { Settled { answers: self.decide(batch).await, late: None } }
    }
}

/// What to do about counters that turn out to be on another server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redirected {
    /// Ask that server.
    Follow,
    /// Answer [`StoreError::Moved`](sluicegate_core::StoreError::Moved), so that the rest of the batch does not wait for them.
    Report,
}

/// The answers to a batch at its deadline, and those that may come later.
pub struct Settled {
    /// One for each check, in order.
    pub answers: Answers,
    /// The answers that did not come in time: [`StoreError::Unknown`](sluicegate_core::StoreError::Unknown) in `answers`.
    pub late: Option<PendingAnswers>,
}

/// Server and slot of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The queue: checks of one queue go out in one call.
    pub lane: usize,
    /// What a group has on one slot is settled all or nothing.
    pub slot: u16,
}
