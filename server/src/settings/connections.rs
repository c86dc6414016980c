//! How many connections the listeners hold, and how long a new one may take.

use std::{num::NonZeroUsize, time::Duration};

use clap::Args;

use super::positive_duration;

/// Bounds of connections.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Connections")]
pub struct ConnectionSettings {
    /// The most gRPC connections. Beyond it a new one takes the place of the oldest without a complete request, or of the
    /// longest idle one. Default: 16384, or what the limit of open files leaves.
    #[arg(long, env = "SLUICEGATE_GRPC_MAX_CONNECTIONS", value_name = "CONNECTIONS")]
    pub grpc_max_connections: Option<NonZeroUsize>,

    /// The most HTTP connections, in the same way. Default: 1024, or what the limit of open files leaves.
    #[arg(long, env = "SLUICEGATE_HTTP_MAX_CONNECTIONS", value_name = "CONNECTIONS")]
    pub http_max_connections: Option<NonZeroUsize>,

    /// The most connections without a complete request from one address (IPv6: /64), for each listener. Beyond it the oldest
    /// of them is closed. A balancer or a gateway is one address: at least 64.
    #[arg(
        long,
        env = "SLUICEGATE_MAX_PENDING_CONNECTIONS_PER_ADDRESS",
        value_name = "CONNECTIONS",
        default_value = "256"
    )]
    #[arg(value_parser = pending_per_address)]
    pub max_pending_connections_per_address: usize,

    /// How long a new connection may take for TLS and the HTTP/2 preface, and on the HTTP and admin listeners for its first
    /// request. At most 1s while half of the places for new connections are taken.
    #[arg(
        long,
        env = "SLUICEGATE_HANDSHAKE_TIMEOUT",
        value_name = "DURATION",
        default_value = "10s"
    )]
    #[arg(value_parser = positive_duration)]
    pub handshake_timeout: Duration,

    /// How long an HTTP connection may be idle between two requests: longer than the keep-alive of a balancer before it.
    #[arg(
        long,
        env = "SLUICEGATE_HTTP_IDLE_TIMEOUT",
        value_name = "DURATION",
        default_value = "75s"
    )]
    #[arg(value_parser = positive_duration)]
    pub http_idle_timeout: Duration,
}

/// The least share of an address: Envoy opens a connection for each of its workers.
const PENDING_PER_ADDRESS_MIN: usize = 64;

fn pending_per_address(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if number >= PENDING_PER_ADDRESS_MIN => Ok(number),
        Ok(_) => Err(format!("must be at least {PENDING_PER_ADDRESS_MIN}")),
        Err(error) => Err(format!("{error}")),
    }
}
