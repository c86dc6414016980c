//! Bounds on one request.

use std::num::NonZeroUsize;

use clap::Args;

/// Bounds on one request.
#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Bounds")]
pub struct RequestBoundSettings {
    /// Maximum bytes of the domain, keys and values of one request together. A larger request is refused
    /// (OVER_LIMIT). The default allows 65 copies of the largest header that Envoy accepts by default.
    #[arg(
        long,
        env = "SLUICEGATE_REQUEST_MAX_BYTES",
        value_name = "BYTES",
        default_value = "4000000"
    )]
    pub request_max_bytes: NonZeroUsize,
}
