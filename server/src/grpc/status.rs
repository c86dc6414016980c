//! The gRPC status of a request that gets no `RateLimitResponse`. Bounds on calls, framing errors, incomplete messages
//! and the caller's deadline have their own codes, where they apply.
//!
//! Envoy lets a request pass on an error, so an error bypasses the limit. Only a caller and its configuration may be
//! able to cause these errors, never the content of an end user's request.

use tonic::Status;

use super::AnswerError;

/// The status of a request without a `RateLimitResponse`.
pub(crate) fn status(error: &AnswerError) -> Status {
    match error {
        // The code that tonic uses.
        AnswerError::Undecodable(error) | AnswerError::Panicked(error) => Status::internal(error),
        AnswerError::Invalid(error) => Status::invalid_argument(error.to_string()),
        AnswerError::Deferred(error) => Status::unavailable(error.to_string()),
    }
}
