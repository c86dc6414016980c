//! Errors of the JSON mapping.

use sluicegate_core::TooLarge;
use thiserror::Error;

/// Why JSON cannot be decoded or encoded.
#[derive(Debug, Error)]
pub(crate) enum JsonError {
    /// The request exceeds a bound.
    #[error(transparent)]
    TooLarge(TooLarge),
    /// The body is not JSON, or does not have the fields of the message.
    #[error("not a RateLimitRequest: {0}")]
    Json(#[from] serde_json::Error),
    /// Does not happen, because both file descriptors have the same wire format.
    #[error("not a RateLimitRequest: {0}")]
    Wire(#[from] prost::DecodeError),
    /// The file descriptors do not contain the message.
    #[error("no description of {0}")]
    Undescribed(&'static str),
}
