//! A waker for a task that polls several things in turns.
//!
//! What a connection's calls and its HTTP/2 do in one poll wakes the others of the same task. Woken as usual, the task
//! would be queued again, and another thread be called to help, for what it looks at next anyway.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    task::{Wake, Waker},
};

use futures::task::AtomicWaker;

/// Remembers wake-ups while the task is polled, and hands on those between.
#[derive(Debug, Default)]
pub(super) struct Woken {
    state: AtomicU8,
    task: AtomicWaker,
}

/// The task waits.
const WAITING: u8 = 0;
/// It is polled.
const POLLED: u8 = 1;
/// It is polled, and something has called for another turn.
const AGAIN: u8 = 2;

impl Woken {
    /// A waker to poll with, for ever the same.
    pub(super) fn waker(self: &Arc<Self>) -> Waker {
        Waker::from(Arc::clone(self))
    }

    /// A poll of the task begins.
    pub(super) fn begin(&self, task: &Waker) {
        self.task.register(task);
        self.state.store(POLLED, Ordering::Release);
    }

    /// All had their turn. Returns whether the task may wait now; if not, all of them are to have another.
    pub(super) fn may_wait(&self) -> bool {
        let ended =
            self.state.compare_exchange(POLLED, WAITING, Ordering::AcqRel, Ordering::Acquire);
        if ended.is_err() {
            self.state.store(POLLED, Ordering::Release);
        }
        ended.is_ok()
    }
}

impl Wake for Woken {
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
    fn who_is_polled_is_not_woken_but_asked_again() {
        let (task, woken) = (Arc::new(Count::default()), Arc::new(Woken::default()));
        let (outer, inner) = (Waker::from(Arc::clone(&task)), woken.waker());
        let wakes = || task.0.load(Ordering::Relaxed);
        woken.begin(&outer);
        inner.wake_by_ref();
        inner.wake_by_ref();
        assert!(!woken.may_wait(), "somebody has called");
        assert!(woken.may_wait());
        assert_eq!(wakes(), 0);
        inner.wake_by_ref();
        assert_eq!(wakes(), 1, "between polls the task is woken");
        woken.begin(&outer);
        assert!(woken.may_wait());
    }
}
