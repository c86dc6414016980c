//! Records panics of a run, also those of its tasks.

use std::{
    cell::RefCell,
    panic::{self, AssertUnwindSafe},
    sync::Once,
};

thread_local! {
    /// The panics of the run in this thread; `None` outside of a run.
    static PANICS: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Calls `run`. Returns its result, or `None` if it panics, and the panics of all tasks in this thread.
pub(crate) fn catch<T>(run: impl FnOnce() -> T) -> (Option<T>, Vec<String>) {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous_hook = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            let is_recorded = PANICS.try_with(|panics| {
                let mut panics = panics.borrow_mut();
                panics.as_mut().map(|it| it.push(panic.to_string())).is_some()
            });
            if is_recorded != Ok(true) {
                previous_hook(panic);
            }
        }));
    });
    PANICS.set(Some(Vec::new()));
    let result = panic::catch_unwind(AssertUnwindSafe(run));
    (result.ok(), PANICS.take().unwrap_or_default())
}
