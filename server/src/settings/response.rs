//! Settings of responses: what they contain beside the decision.

use clap::{ArgAction, Args, ValueEnum};
use http::HeaderName;
use sluicegate_limits::arguments::configure_on_off_flag;

/// Settings of responses: what they contain beside the decision.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Answers", mut_args(configure_on_off_flag))]
pub struct ResponseSettings {
    /// Rate limit headers in responses to clients.
    #[arg(long, env = "SLUICEGATE_RESPONSE_HEADERS", value_name = "FORMAT", default_value = "off")]
    pub response_headers: ResponseHeaders,

    /// Name of the header with the limit, for x-ratelimit-draft-03 and x-ratelimit-unix. Default: x-ratelimit-limit.
    #[arg(long, env = "SLUICEGATE_LIMIT_HEADER", value_name = "NAME")]
    pub limit_header: Option<HeaderName>,

    /// Name of the header with the remaining hits, for x-ratelimit-draft-03 and x-ratelimit-unix. Default: x-ratelimit-remaining.
    #[arg(long, env = "SLUICEGATE_REMAINING_HEADER", value_name = "NAME")]
    pub remaining_header: Option<HeaderName>,

    /// Name of the header with the reset, for x-ratelimit-draft-03 and x-ratelimit-unix. Default: x-ratelimit-reset.
    #[arg(long, env = "SLUICEGATE_RESET_HEADER", value_name = "NAME")]
    pub reset_header: Option<HeaderName>,

    /// Send the request's descriptors and decisions to Envoy as dynamic metadata, for its logs and filters.
    #[arg(long, env = "SLUICEGATE_DYNAMIC_METADATA", value_name = "BOOL", action = ArgAction::Set)]
    pub dynamic_metadata: bool,
}

/// Formats of the rate limit headers for clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ResponseHeaders {
    /// None.
    Off,
    /// The limit closest to refusing: x-ratelimit-limit, -remaining and -reset; on a refusal also retry-after.
    #[value(name = "x-ratelimit-draft-03")]
    XRatelimitDraft03,
    /// The limit that refuses, or the one closest to it, as plain numbers: x-ratelimit-limit, -remaining, and -reset as
    /// Unix time; on a refusal also retry-after and retry-after-ms.
    #[value(name = "x-ratelimit-unix")]
    XRatelimitUnix,
    /// The limits, at most 32: `RateLimit-Policy` and `RateLimit`, as in draft-ietf-httpapi-ratelimit-headers-11; on a
    /// refusal also retry-after and retry-after-ms.
    #[value(name = "ratelimit-draft-11")]
    RatelimitDraft11,
}
