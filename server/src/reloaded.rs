//! Values made from files that change while the server runs: TLS files, the admin token, limits.
//!
//! Changed files replace the value. Files with a mistake do not: the value from before stays in force, and the mistake is
//! reported once.

use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;

/// A value `T` made from a source `S`: the content of files, or why they cannot be read.
#[derive(Debug)]
pub(crate) struct Reloaded<S, T> {
    value: Arc<ArcSwap<T>>,
    sources: Mutex<Sources<S>>,
}

/// What was read.
#[derive(Debug)]
struct Sources<S> {
    /// The source of the value in force.
    in_force: S,
    /// The source that was read last, if it was rejected.
    rejected: Option<S>,
}

/// What a reload without an error did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reload {
    /// The source is the one that was read last.
    Unchanged,
    /// The source is again the one in force, after another one was rejected.
    Restored,
    /// A new value is in force.
    Replaced,
}

impl<S: PartialEq, T> Reloaded<S, T> {
    /// The first value.
    pub(crate) fn new(source: S, value: T) -> Self {
        let sources = Mutex::new(Sources { in_force: source, rejected: None });
        Self { value: Arc::new(ArcSwap::from_pointee(value)), sources }
    }

    /// Puts in force what `build` makes of the source and of the value before. A rejected source is built again only if
    /// `repeat` is set.
    ///
    /// # Errors
    /// Those of `build`. The value in force stays.
    pub(crate) fn reload<E>(
        &self,
        source: S,
        repeat: bool,
        build: impl FnOnce(&S, &T) -> Result<T, E>,
    ) -> Result<Reload, E> {
        let mut sources = self.sources.lock();
        if source == sources.in_force {
            let was_rejected = sources.rejected.take().is_some();
            return Ok(if was_rejected { Reload::Restored } else { Reload::Unchanged });
        }
        if sources.rejected.as_ref() == Some(&source) && !repeat {
            return Ok(Reload::Unchanged);
        }
        match build(&source, &self.value.load()) {
            Ok(value) => {
                self.value.store(Arc::new(value));
                *sources = Sources { in_force: source, rejected: None };
                Ok(Reload::Replaced)
            }
            Err(error) => {
                sources.rejected = Some(source);
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

    /// The value in force, for as long as the process runs.
    pub(crate) fn current(&self) -> Arc<ArcSwap<T>> {
        Arc::clone(&self.value)
    }

    /// Whether the source that was read last was rejected.
    pub(crate) fn is_rejected(&self) -> bool {
        self.sources.lock().rejected.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &&str, _before: &u32) -> Result<u32, ()> {
        text.parse().map_err(|_| ())
    }

    #[test]
    fn rejected_sources_leave_the_value_and_fail_once() {
        let number = Reloaded::new("1", 1);
        assert_eq!(number.reload("1", false, parse), Ok(Reload::Unchanged));
        assert_eq!(number.reload("2", false, parse), Ok(Reload::Replaced));
        assert_eq!((**number.load(), number.is_rejected()), (2, false));
        assert_eq!(number.reload("x", false, parse), Err(()));
        assert_eq!((**number.load(), number.is_rejected()), (2, true));
        assert_eq!(number.reload("x", false, parse), Ok(Reload::Unchanged));
        assert_eq!(number.reload("x", true, parse), Err(()));
        assert_eq!(number.reload("y", false, parse), Err(()));
        assert_eq!(number.reload("2", false, parse), Ok(Reload::Restored));
        assert_eq!((**number.load(), number.is_rejected()), (2, false));
        assert_eq!(number.reload("2", false, parse), Ok(Reload::Unchanged));
        assert_eq!(number.reload("y", false, parse), Err(()));
        assert_eq!(number.reload("3", false, parse), Ok(Reload::Replaced));
        assert_eq!((**number.load(), number.is_rejected()), (3, false));
    }
}
