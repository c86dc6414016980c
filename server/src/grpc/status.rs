//! The gRPC codes of requests that are not decided. Bounds on calls have theirs where they apply.
//!
//! Envoy lets a request through when it gets an error, so an error is a way around the limit: only what
//! the caller's configuration asks for, or can cause, never what an end user can send, may end here.

use tonic::Status;

use super::AnswerError;

/// The status of a request without an answer.
pub(crate) fn of(error: &AnswerError) -> Status {
    match error {
        // As tonic does.
        AnswerError::Undecodable(error) => Status::internal(error),
        AnswerError::Invalid(error) => Status::invalid_argument(error.to_string()),
        AnswerError::Deferred(error) => Status::unavailable(error.to_string()),
    }
}
