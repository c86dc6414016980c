//! Why a request for usage has no answer, as `application/problem+json` (RFC 9457).

use std::time::Duration;

use axum::{
    http::{
        HeaderValue, StatusCode,
        header::{ALLOW, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE},
    },
    response::{IntoResponse, Response},
};
use sluicegate_core::RequestError;
use thiserror::Error;

use super::query::InvalidQuery;

/// Why a request has no answer.
#[derive(Debug, Error)]
pub(super) enum UsageError {
    /// The query is invalid.
    #[error(transparent)]
    Query(#[from] InvalidQuery),
    /// The descriptors exceed a bound.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// Matching the descriptors searches too many bytes for patterns.
    #[error("the values are too long for the patterns of the rules; send fewer or shorter ones")]
    TooCostly,
    /// The request has a body.
    #[error("a request has no body")]
    Body,
    /// The caller has not sent a credential.
    #[error("a token is required: authorization: Bearer TOKEN")]
    NoCredential,
    /// The token is unknown.
    #[error("unknown token")]
    WrongToken,
    /// No tenant has a name of the client certificate.
    #[error("no tenant has a name of the client certificate")]
    NoTenant,
    /// The names in the client certificate are of several tenants, or of another tenant than the token.
    #[error("the token and the names of the client certificate belong to different tenants")]
    SeveralTenants,
    /// A descriptor has a key that only the credential may set.
    #[error("descriptor {number} has the key {key:?}, whose value follows from the credential")]
    TenantKey {
        /// Number of the descriptor, from 1.
        number: usize,
        /// The key.
        key: String,
    },
    /// There is no such page.
    #[error("only /usage is served here")]
    NotFound,
    /// The method is not GET.
    #[error("only GET is allowed")]
    Method,
    /// The tenant has asked too often.
    #[error("too many requests for usage")]
    TooOften {
        /// The time until the next request may be sent.
        retry_after: Duration,
    },
    /// The store did not answer.
    #[error("the store did not answer, so usage is unknown")]
    Unanswered,
    /// Too many requests are being matched.
    #[error("too many requests for usage are in progress")]
    Busy,
    /// The answer could not be made.
    #[error("internal error")]
    Internal,
}

impl UsageError {
    /// The HTTP status.
    pub(super) const fn status(&self) -> StatusCode {
        match self {
            Self::Query(_) | Self::Request(_) | Self::TooCostly | Self::Body => {
                StatusCode::BAD_REQUEST
            }
            Self::NoCredential | Self::WrongToken => StatusCode::UNAUTHORIZED,
            Self::NoTenant | Self::SeveralTenants | Self::TenantKey { .. } => StatusCode::FORBIDDEN,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::TooOften { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::Unanswered | Self::Busy => StatusCode::SERVICE_UNAVAILABLE,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

impl IntoResponse for UsageError {
    fn into_response(self) -> Response {
        let status = self.status();
        let body = serde_json::json!({
            "title": status.canonical_reason(),
            "status": status.as_u16(),
            "detail": self.to_string(),
        });
        let mut response = (status, format!("{body}\n")).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        match self {
            Self::NoCredential | Self::WrongToken => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            Self::Method => {
                headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            }
            Self::TooOften { retry_after } => {
                // Rounded up, so that a caller that waits this long is not too early.
                let seconds = retry_after.as_secs() + u64::from(retry_after.subsec_nanos() > 0);
                headers.insert(RETRY_AFTER, HeaderValue::from(seconds.max(1)));
            }
            _ => {}
        }
        response
    }
}
