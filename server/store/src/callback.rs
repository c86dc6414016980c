//! A callback that can be set once.

use std::{fmt, sync::OnceLock};

/// A callback that can be set once, and gets each value from then on.
pub(crate) struct Callback<T>(OnceLock<Box<dyn Fn(T) + Send + Sync>>);

impl<T> Callback<T> {
    /// Sets the callback. Only the first one is used.
    pub(crate) fn set(&self, callback: impl Fn(T) + Send + Sync + 'static) {
        let _already_set = self.0.set(Box::new(callback));
    }

    /// Passes a value to the callback, if there is one.
    pub(crate) fn call(&self, value: T) {
        if let Some(callback) = self.0.get() {
            callback(value);
        }
    }
}

impl<T> Default for Callback<T> {
    fn default() -> Self {
        Self(OnceLock::new())
    }
}

impl<T> fmt::Debug for Callback<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Callback").field(&self.0.get().is_some()).finish()
    }
}
