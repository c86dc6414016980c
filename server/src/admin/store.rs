//! How calls of the admin service use the store.

use std::time::Duration;

use sluicegate_store::Unavailable;
use tonic::Code;

/// How long the store may take to report the state of counters. An operator waits, not Envoy.
pub(super) const PEEK_TIMEOUT: Duration = Duration::from_secs(1);

/// How often a long call reports its progress.
pub(super) const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// The status of a call for which counters cannot be reached: whether to try again or to correct something first.
pub(super) const fn code(error: &Unavailable) -> Code {
    match error {
        Unavailable::NotAllowed { .. } => Code::FailedPrecondition,
        Unavailable::NotRun(_) | Unavailable::Unknown(_) => Code::Unavailable,
    }
}
