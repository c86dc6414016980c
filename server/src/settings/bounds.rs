//! Bounds on what one request may take.

use std::num::NonZeroUsize;

use clap::Args;

/// Bounds on what one request may take.
#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Bounds")]
pub struct BoundSettings {
    /// The most bytes that the domain, keys and values of one request may have together. A request with more is denied
    /// (OVER_LIMIT). The default fits 65 copies of the largest header that Envoy takes by default.
    #[arg(
        long,
        env = "SLUICEGATE_REQUEST_MAX_BYTES",
        value_name = "BYTES",
        default_value = "4000000"
    )]
    pub request_max_bytes: NonZeroUsize,
}
