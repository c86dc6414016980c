//! Bounds on the connections of the listeners.

use std::{num::NonZeroUsize, time::Duration};

use clap::Args;

use super::positive_duration;

/// Bounds on the connections of the listeners.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Connections")]
pub struct ListenerConnectionSettings {
    /// Maximum number of gRPC connections. At the maximum, a new one replaces one without a complete request, of the
    /// address that has the most of these; or the one idle longest; or one of the address with the most connections.
    /// Default: 16384, or what the limit of open files allows.
    #[arg(long, env = "SLUICEGATE_GRPC_MAX_CONNECTIONS", value_name = "CONNECTIONS")]
    pub grpc_max_connections: Option<NonZeroUsize>,

    /// Maximum number of HTTP connections. At the maximum, a new one replaces another, as with --grpc-max-connections.
    /// Default: 1024, or what the limit of open files allows.
    #[arg(long, env = "SLUICEGATE_HTTP_MAX_CONNECTIONS", value_name = "CONNECTIONS")]
    pub http_max_connections: Option<NonZeroUsize>,

    /// Maximum number of connections without a complete request from one address (IPv6: /64), for each listener; at
    /// least 64. At the maximum, a new one replaces the oldest of them that has sent nothing, or else the oldest. A
    /// load balancer or gateway counts as one address.
    #[arg(
        long,
        env = "SLUICEGATE_MAX_PENDING_CONNECTIONS_PER_ADDRESS",
        value_name = "CONNECTIONS",
        default_value = "256"
    )]
    #[arg(value_parser = pending_per_address)]
    pub max_pending_connections_per_address: usize,

    /// Time for TLS and the HTTP/2 preface of a new connection, and on the HTTP, admin and usage listeners for its
    /// first request. At most 1s while half of the allowed pending connections are open, in total or from the same address.
    #[arg(
        long,
        env = "SLUICEGATE_HANDSHAKE_TIMEOUT",
        value_name = "DURATION",
        default_value = "10s"
    )]
    #[arg(value_parser = positive_duration)]
    pub handshake_timeout: Duration,

    /// Time without a byte in either direction after which an HTTP or usage connection is closed, once it has sent a
    /// complete request. Set it longer than the keep-alive of a load balancer in front.
    #[arg(
        long,
        env = "SLUICEGATE_HTTP_IDLE_TIMEOUT",
        value_name = "DURATION",
        default_value = "75s"
    )]
    #[arg(value_parser = positive_duration)]
    pub http_idle_timeout: Duration,
}

/// The smallest bound per address: Envoy opens a connection for each of its workers.
const PENDING_PER_ADDRESS_MIN: usize = 64;

fn pending_per_address(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if number >= PENDING_PER_ADDRESS_MIN => Ok(number),
        Ok(_) => Err(format!("must be at least {PENDING_PER_ADDRESS_MIN}")),
        Err(error) => Err(format!("{error}")),
    }
}
