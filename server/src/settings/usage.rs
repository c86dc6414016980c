//! Settings of the usage listener.

use std::{num::NonZeroU32, path::PathBuf};

use clap::Args;

use super::UsageTlsSettings;
use crate::values::ListenAddress;

/// Settings of the usage listener, which shows tenants how much of their limits is left.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Usage")]
pub struct UsageSettings {
    /// Address of the usage listener (HTTP): HOST:PORT, or unix:PATH for a socket. Serves GET /usage, which shows a
    /// tenant how much of its limits is left. Port 0 selects a free one. Default: off.
    #[arg(long, env = "SLUICEGATE_USAGE_LISTEN", value_name = "ADDRESS")]
    #[arg(requires = "usage_tenants_file")]
    pub usage_listen: Option<ListenAddress>,

    /// JSON file of the tenants that may ask, with the SHA-256 digests of their tokens or the names in their client
    /// certificates. A replaced file is reloaded without a restart; one with a mistake changes nothing.
    #[arg(long, env = "SLUICEGATE_USAGE_TENANTS_FILE", value_name = "FILE")]
    #[arg(requires = "usage_listen")]
    pub usage_tenants_file: Option<PathBuf>,

    /// Maximum number of requests for usage of one tenant in a second, in each replica. Further ones get 429.
    #[arg(
        long,
        env = "SLUICEGATE_USAGE_MAX_REQUESTS_PER_SECOND",
        value_name = "REQUESTS",
        default_value = "10"
    )]
    pub usage_max_requests_per_second: NonZeroU32,

    /// TLS of the usage listener.
    #[command(flatten)]
    pub tls: UsageTlsSettings,
}
