//! Values that are built from files and rebuilt when the files change: limits, TLS, the admin token, the tenants
//! of the usage listener.
//!
//! If the changed files have a mistake, the previous value stays in force, and the mistake is reported once.

use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;

/// A value `T` that is built from a source `S`: the contents of files, or the errors of reading them.
#[derive(Debug)]
pub(crate) struct Reloaded<S, T> {
    value: Arc<ArcSwap<T>>,
    state: Mutex<SourceState<S>>,
}

/// The source of the value in force, and the one that was rejected since, if there is one.
#[derive(Debug)]
struct SourceState<S> {
    /// The source of the value in force.
    in_force: S,
    /// The source that was read last, if it was rejected.
    rejected: Option<S>,
}

/// The result of a reload without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReloadOutcome {
    /// The source has not changed since it was read last.
    Unchanged,
    /// The source equals the one in force again, after another one was rejected.
    Restored,
    /// A new value is in force.
    Replaced,
}

impl<S: PartialEq, T> Reloaded<S, T> {
    /// Puts the first value in force.
    pub(crate) fn new(source: S, value: T) -> Self {
        let state = Mutex::new(SourceState { in_force: source, rejected: None });
        Self { value: Arc::new(ArcSwap::from_pointee(value)), state }
    }

    /// If the source has changed, puts the value in force that `build` returns for it and the previous value. With
    /// `repeat`, a source that was rejected before is built again.
    ///
    /// # Errors
    /// Those of `build`. The previous value stays in force.
    pub(crate) fn reload<E>(
        &self,
        source: S,
        repeat: bool,
        build: impl FnOnce(&S, &T) -> Result<T, E>,
    ) -> Result<ReloadOutcome, E> {
        let mut state = self.state.lock();
        if source == state.in_force {
            let was_rejected = state.rejected.take().is_some();
            return Ok(if was_rejected {
                ReloadOutcome::Restored
            } else {
                ReloadOutcome::Unchanged
            });
        }
        if state.rejected.as_ref() == Some(&source) && !repeat {
            return Ok(ReloadOutcome::Unchanged);
        }
        match build(&source, &self.value.load()) {
            Ok(value) => {
                self.value.store(Arc::new(value));
                *state = SourceState { in_force: source, rejected: None };
                Ok(ReloadOutcome::Replaced)
            }
            Err(error) => {
                state.rejected = Some(source);
                Err(error)
            }
        }
    }
}

impl<S, T> Reloaded<S, T> {
    /// The value in force.
    pub(crate) fn load(&self) -> Guard<Arc<T>> {
        self.value.load()
    }

    /// The value in force. It stays up to date while the process runs.
    pub(crate) fn current(&self) -> Arc<ArcSwap<T>> {
        Arc::clone(&self.value)
    }

    /// Whether the source that was read last was rejected.
    pub(crate) fn is_rejected(&self) -> bool {
        self.state.lock().rejected.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &&str, _before: &u32) -> Result<u32, ()> {
        text.parse().map_err(|_| ())
    }

    #[test]
    fn a_rejected_source_keeps_the_value_and_fails_once() {
        let number = Reloaded::new("1", 1);
        assert_eq!(number.reload("1", false, parse), Ok(ReloadOutcome::Unchanged));
        assert_eq!(number.reload("2", false, parse), Ok(ReloadOutcome::Replaced));
        assert_eq!((**number.load(), number.is_rejected()), (2, false));
        assert_eq!(number.reload("x", false, parse), Err(()));
        assert_eq!((**number.load(), number.is_rejected()), (2, true));
        assert_eq!(number.reload("x", false, parse), Ok(ReloadOutcome::Unchanged));
        assert_eq!(number.reload("x", true, parse), Err(()));
        assert_eq!(number.reload("y", false, parse), Err(()));
        assert_eq!(number.reload("2", false, parse), Ok(ReloadOutcome::Restored));
        assert_eq!((**number.load(), number.is_rejected()), (2, false));
        assert_eq!(number.reload("2", false, parse), Ok(ReloadOutcome::Unchanged));
        assert_eq!(number.reload("y", false, parse), Err(()));
        assert_eq!(number.reload("3", false, parse), Ok(ReloadOutcome::Replaced));
        assert_eq!((**number.load(), number.is_rejected()), (3, false));
    }
}
