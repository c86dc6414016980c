//! Values that somebody may want to hear of, one by one.

use std::{fmt, sync::OnceLock};

/// Hands each value to whoever listens.
pub(crate) struct Observed<T>(OnceLock<Box<dyn Fn(T) + Send + Sync>>);

impl<T> Observed<T> {
    /// Has each value told, from now on. Only the first who asks is told.
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
