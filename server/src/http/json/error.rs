//! Errors of the JSON mapping.

use sluicegate_core::TooLarge;
use thiserror::Error;

/// Why a body is not a request.
#[derive(Debug, Error)]
pub(crate) enum JsonError {
    /// It exceeds a bound.
    #[error(transparent)]
    TooLarge(TooLarge),
    /// Not JSON, or not of the message's shape.
    #[error("not a RateLimitRequest: {0}")]
    Json(#[from] serde_json::Error),
    /// Cannot happen while both sets of descriptors have one wire.
    #[error("not a RateLimitRequest: {0}")]
    Wire(#[from] prost::DecodeError),
    /// The message is not described.
    #[error("no description of {0}")]
    Undescribed(&'static str),
}
