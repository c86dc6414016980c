//! Names of the `x-ratelimit-…` headers, which flags can change.

use http::HeaderName;

/// Names of the three headers.
#[derive(Clone, Debug)]
pub(crate) struct HeaderNames {
    pub(super) limit: Box<str>,
    pub(super) remaining: Box<str>,
    pub(super) reset: Box<str>,
}

impl HeaderNames {
    pub(super) fn new(
        limit: Option<&HeaderName>,
        remaining: Option<&HeaderName>,
        reset: Option<&HeaderName>,
    ) -> Self {
        let name = |configured: Option<&HeaderName>, default: &'static str| {
            configured.map_or(default, HeaderName::as_str).into()
        };
        Self {
            limit: name(limit, "x-ratelimit-limit"),
            remaining: name(remaining, "x-ratelimit-remaining"),
            reset: name(reset, "x-ratelimit-reset"),
        }
    }
}
