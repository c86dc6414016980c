//! The calls in progress of one connection.
//!
//! They run in the connection's task, after everything that has arrived is read, so that responses that are ready
//! together are written together. A task for each call would cost more than a decision.

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

/// The executor to which the HTTP/2 library passes new calls. They wait here for [`CallsInProgress::start_new`].
#[derive(Clone, Default)]
pub(super) struct CallExecutor(Arc<Mutex<Vec<Task>>>);

impl<F> Executor<F> for CallExecutor
where
    F: Future + Send + 'static,
{
    fn execute(&self, call: F) {
        // The panic of a call must not end other calls. Its stream is reset when it is dropped.
        let call = AssertUnwindSafe(call).catch_unwind().map(|_outcome| ());
        self.0.lock().push(Box::pin(call));
    }
}

/// The most woken calls that are polled in one pass, and the most new ones that are started in it. The responses that
/// are ready are written once in each pass.
const CALLS_PER_PASS: usize = 64;

/// Calls in progress.
pub(super) struct CallsInProgress {
    executor: CallExecutor,
    /// Calls that are not started yet.
    starting: VecDeque<Task>,
    /// Calls that were started and are pending.
    waiting: FuturesUnordered<Task>,
}

impl CallsInProgress {
    pub(super) fn new(executor: CallExecutor) -> Self {
        Self { executor, starting: VecDeque::new(), waiting: FuturesUnordered::new() }
    }

    /// Whether no call is in progress.
    pub(super) fn is_empty(&self) -> bool {
        self.starting.is_empty() && self.waiting.is_empty()
    }

    /// Whether calls have arrived that are not started yet.
    pub(super) fn has_unstarted(&self) -> bool {
        !self.starting.is_empty()
    }

    /// Starts calls that have arrived. Returns whether there were any. Then all calls must be polled again.
    pub(super) fn start_new(&mut self) -> bool {
        self.starting.extend(self.executor.0.lock().drain(..));
        let any = !self.starting.is_empty();
        // Most calls complete here. The others need no waker, because they are polled again at once.
        let mut context = Context::from_waker(Waker::noop());
        let started = self.starting.len().min(CALLS_PER_PASS);
        for mut task in self.starting.drain(..started) {
            if task.as_mut().poll(&mut context).is_pending() {
                self.waiting.push(task);
            }
        }
        any
    }

    /// Polls calls that were woken. Returns whether there may be more woken calls.
    pub(super) fn poll_woken(&mut self, context: &mut Context<'_>) -> bool {
        (0..CALLS_PER_PASS).all(|_| self.waiting.poll_next_unpin(context) == Poll::Ready(Some(())))
    }
}

impl Drop for CallsInProgress {
    fn drop(&mut self) {
        // The executor holds unstarted calls, and each call holds the executor. This breaks the cycle.
        let unstarted = std::mem::take(&mut *self.executor.0.lock());
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

    fn calls() -> (CallExecutor, CallsInProgress) {
        let new = CallExecutor::default();
        (new.clone(), CallsInProgress::new(new))
    }

    fn poll_woken(calls: &mut CallsInProgress) -> bool {
        calls.poll_woken(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn the_panic_of_a_call_does_not_end_other_calls() {
        let (new, mut calls) = calls();
        let done = Arc::new(AtomicUsize::new(0));
        let of_call = Arc::clone(&done);
        let mut polls = 0;
        new.execute(future::poll_fn(|_| -> Poll<()> { panic!("a call panics") }));
        new.execute(future::poll_fn(move |_| {
            polls += 1;
            if polls < 2 {
                return Poll::Pending;
            }
            of_call.fetch_add(1, Ordering::Relaxed);
            Poll::Ready(())
        }));
        assert!(calls.start_new());
        poll_woken(&mut calls);
        assert_eq!(done.load(Ordering::Relaxed), 1);
        assert!(!calls.start_new());
    }

    #[test]
    fn a_pass_polls_a_bounded_number_of_calls() {
        let (new, mut calls) = calls();
        let done = Arc::new(AtomicUsize::new(0));
        for _ in 0..=CALLS_PER_PASS {
            let done = Arc::clone(&done);
            new.execute(async move { _ = done.fetch_add(1, Ordering::Relaxed) });
        }
        assert!(calls.start_new());
        assert_eq!(done.load(Ordering::Relaxed), CALLS_PER_PASS);
        assert!(calls.start_new());
        assert_eq!(done.load(Ordering::Relaxed), CALLS_PER_PASS + 1);
        assert!(!calls.start_new());
    }

    #[test]
    fn unstarted_calls_are_dropped_with_their_connection() {
        let (new, calls) = calls();
        let held = Arc::new(());
        let of_call = (Arc::clone(&held), new.clone());
        new.execute(async move { drop(of_call) });
        drop(calls);
        drop(new);
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
