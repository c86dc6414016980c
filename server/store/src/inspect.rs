//! The port through which operators look at counters and reset them, past whatever decides.

use sluicegate_core::{CounterKey, key::TenantKeys};
use thiserror::Error;

/// The most places, or keys, that one step looks at.
pub const STEP_MAX: usize = 1000;

/// The most keys that are reset together, if they are of one owner: all of them or none.
pub const RESET_MAX: usize = 100;

/// Looks at counters by name.
pub trait Inspect: Send + Sync + 'static {
    /// Where a search continues.
    type Cursor: Clone + Send + Sync + 'static;

    /// Resets counters, so that they are unused. Returns the number of those that were in use.
    ///
    /// # Errors
    /// Some counters cannot be reached; the error shows whether any may be reset.
    fn reset(
        &self,
        keys: &[CounterKey],
        reset: Reset,
    ) -> impl Future<Output = Result<u64, Unavailable>> + Send;

    /// Finds counters of an owner, from the beginning or from where the last step ended. A counter that exists from the
    /// first step to the last is found, maybe more than once.
    ///
    /// # Errors
    /// They cannot be reached.
    fn step(
        &self,
        owner: &TenantKeys,
        from: Option<Self::Cursor>,
    ) -> impl Future<Output = Result<Step<Self::Cursor>, Unavailable>> + Send;
}

/// What to do about counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    /// Delete them.
    Now,
    /// Only count them.
    DryRun,
}

/// What one step has found.
#[derive(Clone, Debug)]
pub struct Step<C> {
    /// Counters of the owner.
    pub found: Vec<CounterKey>,
    /// Where the next step begins; `None` at the end.
    pub next: Option<C>,
}

/// Counters cannot be reached, and why not.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Unavailable {
    /// Nothing was done.
    #[error("the store is not available: {0}")]
    NotRun(String),
    /// Nothing was done, because the user of Redis may not run this command.
    #[error("the user of Redis may not run {command}: {why}")]
    NotAllowed {
        /// The command.
        command: &'static str,
        /// What Redis says.
        why: String,
    },
    /// Some of it may have been done, or may be done still.
    #[error("the store has not answered: {0}")]
    Unknown(String),
}
