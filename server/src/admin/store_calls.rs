//! Timeouts and status codes of admin calls that use the store.

use std::time::Duration;

use sluicegate_store::InspectError;
use tonic::Code;

/// The time for the store to report the state of counters. Longer than in decisions, because an operator waits, not
/// Envoy.
pub(super) const PEEK_TIMEOUT: Duration = Duration::from_secs(1);

/// The interval at which a long call reports its progress.
pub(super) const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// The status code of a call for which counters are unavailable: `UNAVAILABLE` if a retry may succeed,
/// `FAILED_PRECONDITION` if something must be corrected first.
pub(super) const fn status_code(error: &InspectError) -> Code {
    match error {
        InspectError::NotAllowed { .. } => Code::FailedPrecondition,
        InspectError::NotRun(_) | InspectError::Unknown(_) => Code::Unavailable,
    }
}
