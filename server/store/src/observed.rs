//! A listener for a stream of values.

use std::{fmt, sync::OnceLock};

/// Passes each value to the listener, if there is one.
pub(crate) struct Observed<T>(OnceLock<Box<dyn Fn(T) + Send + Sync>>);

impl<T> Observed<T> {
    /// Sets the listener. Only the first one is used.
    pub(crate) fn tell(&self, listener: impl Fn(T) + Send + Sync + 'static) {
        let _told_already = self.0.set(Box::new(listener));
    }

    pub(crate) fn note(&self, value: T) {
        if let Some(listener) = self.0.get() {
            listener(value);
        }
    }
}

impl<T> Default for Observed<T> {
    fn default() -> Self {
        Self(OnceLock::new())
    }
}

impl<T> fmt::Debug for Observed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Observed").field(&self.0.get().is_some()).finish()
    }
}
