//! A value that tasks wait for.

use parking_lot::Mutex;
use tokio::sync::Notify;

/// A value, and those who wait until it is another one. They are woken in the order in which they came: tokio's `watch`
/// would wake them by chance, and no run of the simulation would be as the one before.
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

    /// Sets the value. Returns the one before.
    pub(super) fn set(&self, value: T) -> T {
        let before = std::mem::replace(&mut *self.value.lock(), value);
        if before != value {
            self.changed.notify_waiters();
        }
        before
    }

    /// Waits until the value is a wanted one.
    pub(super) async fn wait_for(&self, is_wanted: impl Fn(T) -> bool) {
        loop {
            // From here on it hears of changes.
            let changed = self.changed.notified();
            if is_wanted(self.get()) {
                return;
            }
            changed.await;
        }
    }
}
