//! The interface with which the admin API lists and resets counters in a store, without the layers.

use sluicegate_core::{CounterKey, key::TenantKeys};
use thiserror::Error;

/// The most keys of Redis, or buckets of a shard, that one step of a scan examines.
pub const SCAN_STEP_MAX: usize = 1000;

/// Maximum number of keys of one tenant that a reset deletes atomically.
pub const RESET_MAX: usize = 100;

/// A store whose counters can be listed and reset.
pub trait Inspect: Send + Sync + 'static {
    /// Where a scan continues.
    type Cursor: Clone + Send + Sync + 'static;

    /// Resets counters, so that they are unused. Returns the number of counters that were in use.
    ///
    /// # Errors
    /// Some counters are unavailable; the error shows whether any may be reset.
    fn reset(
        &self,
        keys: &[CounterKey],
        mode: ResetMode,
    ) -> impl Future<Output = Result<u64, InspectError>> + Send;

    /// One step of a scan for the counters of a tenant, from the beginning or from the end of the last step. A counter
    /// that exists during the whole scan is found at least once.
    ///
    /// # Errors
    /// The counters are unavailable.
    fn scan(
        &self,
        tenant: &TenantKeys,
        from: Option<Self::Cursor>,
    ) -> impl Future<Output = Result<ScanStep<Self::Cursor>, InspectError>> + Send;
}

/// Whether a reset deletes counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetMode {
    /// Deletes them.
    Delete,
    /// Only counts those in use.
    DryRun,
}

/// The result of one step of a scan.
#[derive(Clone, Debug)]
pub struct ScanStep<C> {
    /// Counters of the tenant.
    pub found: Vec<CounterKey>,
    /// Where the next step begins; `None` at the end of the scan.
    pub next: Option<C>,
}

/// Why counters could not be listed or reset.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum InspectError {
    /// The store is unavailable. No counter was reset.
    #[error("the store is not available: {0}")]
    NotRun(String),
    /// The ACL user of Redis may not run the command. No counter was reset.
    #[error("the user of Redis may not run {command}: {why}")]
    NotAllowed {
        /// The command.
        command: &'static str,
        /// The error of Redis.
        why: String,
    },
    /// The outcome is unknown: some counters may be reset, or may be reset later.
    #[error("the store has not answered: {0}")]
    Unknown(String),
}
