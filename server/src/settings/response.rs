//! What answers carry beside the decision.

use clap::{Args, ValueEnum, builder::BoolishValueParser};
use http::HeaderName;

/// What answers carry beside the decision.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Answers")]
pub struct ResponseSettings {
    /// What clients are told about their limits, in headers of the response.
    #[arg(long, env = "SLUICEGATE_RESPONSE_HEADERS", value_name = "FORMAT", default_value = "off")]
    pub response_headers: ResponseHeaders,

    /// Name of the header that tells the limit, with x-ratelimit-draft-03. Default: x-ratelimit-limit.
    #[arg(long, env = "SLUICEGATE_LIMIT_HEADER", value_name = "NAME")]
    pub limit_header: Option<HeaderName>,

    /// Name of the header that tells what is left, with x-ratelimit-draft-03. Default: x-ratelimit-remaining.
    #[arg(long, env = "SLUICEGATE_REMAINING_HEADER", value_name = "NAME")]
    pub remaining_header: Option<HeaderName>,

    /// Name of the header that tells the seconds until the reset, with x-ratelimit-draft-03. Default:
    /// x-ratelimit-reset.
    #[arg(long, env = "SLUICEGATE_RESET_HEADER", value_name = "NAME")]
    pub reset_header: Option<HeaderName>,

    /// Tell Envoy what was asked and decided, as dynamic metadata for its logs and filters.
    #[arg(
        long,
        env = "SLUICEGATE_DYNAMIC_METADATA",
        value_name = "BOOL",
        default_value = "false",
        default_missing_value = "true",
        num_args = 0..=1,
        require_equals = true,
        value_parser = BoolishValueParser::new()
    )]
    pub dynamic_metadata: bool,
}

/// What clients are told about their limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ResponseHeaders {
    /// Nothing.
    Off,
    /// The limit closest to refusing: x-ratelimit-limit, -remaining and -reset; on a refusal also retry-after.
    #[value(name = "x-ratelimit-draft-03")]
    XRatelimitDraft03,
    /// Every limit: `RateLimit-Policy` and `RateLimit`, as draft-ietf-httpapi-ratelimit-headers-11 has them; on a
    /// refusal also retry-after.
    #[value(name = "ratelimit-draft-11")]
    RatelimitDraft11,
}
