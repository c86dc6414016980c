//! The calls in progress of one connection.
//!
//! They run in the connection's own task, once all that has arrived is taken in, so that answers that are ready
//! together leave together. A task for each would cost more than a decision.

use std::{
    collections::VecDeque,
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

/// Calls that are gone on with in one turn. Then answers leave that are ready.
const TURN: usize = 64;

/// Calls in progress.
pub(super) struct Tasks {
    arrived: Arrived,
    /// Those that were taken out of `arrived` and are not started yet.
    starting: VecDeque<Task>,
    /// Those that wait for something.
    waiting: FuturesUnordered<Task>,
}

impl Tasks {
    pub(super) fn new(arrived: Arrived) -> Self {
        Self { arrived, starting: VecDeque::new(), waiting: FuturesUnordered::new() }
    }

    /// Whether there are none in progress.
    pub(super) fn are_none(&self) -> bool {
        self.starting.is_empty() && self.waiting.is_empty()
    }

    /// Whether some have arrived and are not started yet.
    pub(super) fn are_starting(&self) -> bool {
        !self.starting.is_empty()
    }

    /// Starts calls that have arrived. Returns whether there were any: then go on with all of them.
    pub(super) fn start(&mut self) -> bool {
        self.starting.extend(self.arrived.0.lock().drain(..));
        let any = !self.starting.is_empty();
        // Most need no waiting. Nobody is woken for the others, because they are asked again at once.
        let mut context = Context::from_waker(Waker::noop());
        let turn = self.starting.len().min(TURN);
        for mut task in self.starting.drain(..turn) {
            if task.as_mut().poll(&mut context).is_pending() {
                self.waiting.push(task);
            }
        }
        any
    }

    /// Goes on with calls that can. Returns whether there may be more of them.
    pub(super) fn advance(&mut self, context: &mut Context<'_>) -> bool {
        (0..TURN).all(|_| self.waiting.poll_next_unpin(context) == Poll::Ready(Some(())))
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        // Each call can start others, and so holds what it may lie in.
        let unstarted = std::mem::take(&mut *self.arrived.0.lock());
        drop(unstarted);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use super::*;

    fn tasks() -> (Arrived, Tasks) {
        let arrived = Arrived::default();
        (arrived.clone(), Tasks::new(arrived))
    }

    fn advance(tasks: &mut Tasks) -> bool {
        tasks.advance(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_call_that_panics_does_not_take_others_with_it() {
        let (arrived, mut tasks) = tasks();
        let done = Arc::new(AtomicUsize::new(0));
        let of_call = Arc::clone(&done);
        let mut polls = 0;
        arrived.execute(future::poll_fn(|_| -> Poll<()> { panic!("a call panics") }));
        arrived.execute(future::poll_fn(move |_| {
            polls += 1;
            if polls < 2 {
                return Poll::Pending;
            }
            of_call.fetch_add(1, Ordering::Relaxed);
            Poll::Ready(())
        }));
        assert!(tasks.start());
        advance(&mut tasks);
        assert_eq!(done.load(Ordering::Relaxed), 1);
        assert!(!tasks.start());
    }

    #[test]
    fn answers_leave_between_turns() {
        let (arrived, mut tasks) = tasks();
        let done = Arc::new(AtomicUsize::new(0));
        for _ in 0..=TURN {
            let done = Arc::clone(&done);
            arrived.execute(async move { _ = done.fetch_add(1, Ordering::Relaxed) });
        }
        assert!(tasks.start());
        assert_eq!(done.load(Ordering::Relaxed), TURN);
        assert!(tasks.start());
        assert_eq!(done.load(Ordering::Relaxed), TURN + 1);
        assert!(!tasks.start());
    }

    #[test]
    fn calls_that_were_not_started_end_with_their_connection() {
        let (arrived, tasks) = tasks();
        let held = Arc::new(());
        let of_call = (Arc::clone(&held), arrived.clone());
        arrived.execute(async move { drop(of_call) });
        drop(tasks);
        drop(arrived);
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
