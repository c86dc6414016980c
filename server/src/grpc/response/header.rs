//! Headers of responses.

use sluicegate_proto::envoy::config::core::v3::HeaderValue;

/// A header.
pub(super) fn header(name: impl Into<String>, value: String) -> HeaderValue {
    HeaderValue { key: name.into(), value, ..HeaderValue::default() }
}
