//! A waker for a task that polls several futures repeatedly.
//!
//! During one poll of a connection, its calls and the HTTP/2 library wake each other. An ordinary waker would schedule
//! the task again, and wake another thread for it, although the same poll does that work next.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    task::{Wake, Waker},
};

use futures::task::AtomicWaker;

/// Records wake-ups during a poll of the task, and forwards those between polls.
#[derive(Debug, Default)]
pub(super) struct BatchingWaker {
    state: AtomicU8,
    task: AtomicWaker,
}

/// The task is not being polled.
const WAITING: u8 = 0;
/// The task is being polled.
const POLLED: u8 = 1;
/// The task is being polled, and was woken during this poll.
const AGAIN: u8 = 2;

impl BatchingWaker {
    /// The waker to poll with, always the same.
    pub(super) fn waker(self: &Arc<Self>) -> Waker {
        Waker::from(Arc::clone(self))
    }

    /// Notes that a poll of the task begins.
    pub(super) fn begin(&self, task: &Waker) {
        self.task.register(task);
        self.state.store(POLLED, Ordering::Release);
    }

    /// Notes that everything was polled. Returns whether the task may return pending. If not, everything must be polled
    /// again.
    pub(super) fn may_wait(&self) -> bool {
        let ended =
            self.state.compare_exchange(POLLED, WAITING, Ordering::AcqRel, Ordering::Acquire);
        if ended.is_err() {
            self.state.store(POLLED, Ordering::Release);
        }
        ended.is_ok()
    }
}

impl Wake for BatchingWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let polled =
            self.state.compare_exchange(POLLED, AGAIN, Ordering::AcqRel, Ordering::Acquire);
        if polled == Err(WAITING) {
            self.task.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_wake_up_during_a_poll_causes_another_pass() {
        let (task, batching) = (Arc::new(Count::default()), Arc::new(BatchingWaker::default()));
        let (outer, inner) = (Waker::from(Arc::clone(&task)), batching.waker());
        let wakes = || task.0.load(Ordering::Relaxed);
        batching.begin(&outer);
        inner.wake_by_ref();
        inner.wake_by_ref();
        assert!(!batching.may_wait(), "it was woken");
        assert!(batching.may_wait());
        assert_eq!(wakes(), 0);
        inner.wake_by_ref();
        assert_eq!(wakes(), 1, "between polls the task is woken");
        batching.begin(&outer);
        assert!(batching.may_wait());
    }
}
