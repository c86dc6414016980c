//! The port through which operators look at counters and reset them, past whatever decides.

use sluicegate_core::{CounterKey, key::Owner};
use thiserror::Error;

use crate::redis;

/// The most places, or keys, that one step looks at.
pub const STEP_MAX: usize = 1000;

/// The most keys that are reset together, if they are of one owner: all of them or none.
pub const RESET_MAX: usize = 100;

/// Looks at counters by name.
pub trait Inspect: Send + Sync + 'static {
    /// Resets counters, each of which is then as if never used. Returns how many were in use.
    ///
    /// # Errors
    /// Some of them cannot be reached; the error tells whether any may be reset.
    fn reset(
        &self,
        keys: &[CounterKey],
        reset: Reset,
    ) -> impl Future<Output = Result<u64, Unavailable>> + Send;

    /// Finds counters of an owner, from where the last step ended. A counter that is there from the first step to the
    /// last is found, maybe more than once.
    ///
    /// # Errors
    /// They cannot be reached.
    fn step(
        &self,
        owner: &Owner,
        cursor: Cursor,
    ) -> impl Future<Output = Result<Step, Unavailable>> + Send;
}

/// What to do about counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    /// Delete them.
    Now,
    /// Only tell how many there are.
    DryRun,
}

/// Where to go on looking.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Cursor {
    /// At the beginning.
    #[default]
    Start,
    /// In a shard of memory.
    Memory(MemoryCursor),
    /// At a Redis server.
    Redis(redis::Cursor),
}

/// Where to go on looking in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryCursor {
    pub(crate) shard: usize,
    pub(crate) place: crate::memory::Place,
}

/// What one step has found.
#[derive(Clone, Debug)]
pub struct Step {
    /// Counters of the owner.
    pub found: Vec<CounterKey>,
    /// Where to go on; `None` at the end.
    pub next: Option<Cursor>,
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
