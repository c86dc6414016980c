//! A value that tasks can wait for.

use parking_lot::Mutex;
use tokio::sync::Notify;

/// A value that tasks can wait for. Waiting tasks are woken in the order in which they began to wait: tokio's `watch`
/// wakes them in random order, and the simulation could not repeat a run.
#[derive(Debug)]
pub(super) struct Watched<T> {
    value: Mutex<T>,
    changed: Notify,
}

impl<T: Copy + PartialEq> Watched<T> {
    pub(super) fn new(value: T) -> Self {
        Self { value: Mutex::new(value), changed: Notify::new() }
    }

    /// The value.
    pub(super) fn get(&self) -> T {
        *self.value.lock()
    }

    /// Sets the value. Returns the previous one.
    pub(super) fn set(&self, value: T) -> T {
        let before = std::mem::replace(&mut *self.value.lock(), value);
        if before != value {
            self.changed.notify_waiters();
        }
        before
    }

    /// Waits until `is_wanted` is true for the value.
    pub(super) async fn wait_for(&self, is_wanted: impl Fn(T) -> bool) {
        loop {
            // Before the value is read, so that no change is missed.
            let changed = self.changed.notified();
            if is_wanted(self.get()) {
                return;
            }
            changed.await;
        }
    }
}
