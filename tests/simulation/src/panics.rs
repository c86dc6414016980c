//! Panics of a run, those of its tasks included.

use std::{
    cell::RefCell,
    panic::{self, AssertUnwindSafe},
    sync::Once,
};

thread_local! {
    /// The panics of the run in this thread, if there is one.
    static PANICS: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Runs and returns what is made, unless that panics, and the panics of all tasks in this thread.
pub(crate) fn catch<T>(run: impl FnOnce() -> T) -> (Option<T>, Vec<String>) {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let others = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            let is_noted = PANICS.try_with(|panics| {
                let mut panics = panics.borrow_mut();
                panics.as_mut().map(|it| it.push(panic.to_string())).is_some()
            });
            if is_noted != Ok(true) {
                others(panic);
            }
        }));
    });
    PANICS.set(Some(Vec::new()));
    let made = panic::catch_unwind(AssertUnwindSafe(run));
    (made.ok(), PANICS.take().unwrap_or_default())
}
