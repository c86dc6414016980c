//! An optional listener for values.

use std::{fmt, sync::OnceLock};

/// A listener that can be set once, and gets each value from then on.
pub(crate) struct Listener<T>(OnceLock<Box<dyn Fn(T) + Send + Sync>>);

impl<T> Listener<T> {
    /// Sets the listener. Only the first one is used.
    pub(crate) fn set(&self, listener: impl Fn(T) + Send + Sync + 'static) {
        let _already_set = self.0.set(Box::new(listener));
    }

    /// Passes a value to the listener, if there is one.
    pub(crate) fn notify(&self, value: T) {
        if let Some(listener) = self.0.get() {
            listener(value);
        }
    }
}

impl<T> Default for Listener<T> {
    fn default() -> Self {
        Self(OnceLock::new())
    }
}

impl<T> fmt::Debug for Listener<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Listener").field(&self.0.get().is_some()).finish()
    }
}
