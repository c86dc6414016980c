//! The calls in progress of one connection.
//!
//! They run in the connection's own task, once all that has arrived is taken in, so that answers that are ready
//! together leave together. A task for each would cost more than a decision.

use std::{
    panic::AssertUnwindSafe,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use hyper::rt::Executor;
use parking_lot::Mutex;

type Task = BoxFuture<'static, ()>;

/// Where HTTP/2 leaves calls that have come.
#[derive(Clone, Default)]
pub(super) struct Arrived(Arc<Mutex<Vec<Task>>>);

impl<F> Executor<F> for Arrived
where
    F: Future + Send + 'static,
{
    fn execute(&self, call: F) {
        // A call that panics must not take the others down. Its stream is reset when it is dropped.
        let call = AssertUnwindSafe(call).catch_unwind().map(|_outcome| ());
        self.0.lock().push(Box::pin(call));
    }
}

/// Calls in progress.
pub(super) struct Tasks {
    arrived: Arrived,
    /// Those that were taken out of `arrived` last, kept for its memory.
    starting: Vec<Task>,
    /// Those that wait for something.
    waiting: FuturesUnordered<Task>,
}

impl Tasks {
    pub(super) fn new(arrived: Arrived) -> Self {
        Self { arrived, starting: Vec::new(), waiting: FuturesUnordered::new() }
    }

    /// Starts the calls that have arrived. Returns whether there were any: then go on with all of them.
    pub(super) fn start(&mut self) -> bool {
        std::mem::swap(&mut *self.arrived.0.lock(), &mut self.starting);
        let any = !self.starting.is_empty();
        // Most need no waiting. Nobody is woken for the others, because they are asked again at once.
        let mut context = Context::from_waker(Waker::noop());
        for mut task in self.starting.drain(..) {
            if task.as_mut().poll(&mut context).is_pending() {
                self.waiting.push(task);
            }
        }
        any
    }

    /// Goes on with every call that can.
    pub(super) fn advance(&mut self, context: &mut Context<'_>) {
        while let Poll::Ready(Some(())) = self.waiting.poll_next_unpin(context) {}
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        // Each call can start others, and so holds what it may lie in.
        let unstarted = std::mem::take(&mut *self.arrived.0.lock());
        drop(unstarted);
    }
}
