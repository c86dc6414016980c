//! The one place where an error becomes a gRPC code.
//!
//! Envoy lets a request through when it gets an error, so an error is a way around the limit: only what
//! the caller's configuration can cause, never what an end user can send, may end here.

use sluicegate_core::InvalidRequest;
use tonic::Status;

/// The status of a request that cannot be decided.
pub(super) fn invalid(error: InvalidRequest) -> Status {
    Status::invalid_argument(error.to_string())
}
