//! Settings of the gRPC listener.

use std::{num::NonZeroUsize, time::Duration};

use clap::Args;

use super::{GrpcBoundSettings, GrpcTlsSettings};
use crate::values::ListenAddress;

/// Settings of the gRPC listener.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "gRPC")]
pub struct GrpcSettings {
    /// Address of the gRPC listener: HOST:PORT, or unix:PATH for a socket. Port 0 selects a free one.
    #[arg(
        long,
        env = "SLUICEGATE_GRPC_LISTEN",
        value_name = "ADDRESS",
        default_value = "127.0.0.1:8081"
    )]
    pub grpc_listen: ListenAddress,

    /// TLS of the gRPC listener.
    #[command(flatten)]
    pub tls: GrpcTlsSettings,

    /// Maximum size of a request message. A larger one is refused (OVER_LIMIT) before matching.
    #[arg(
        long,
        env = "SLUICEGATE_GRPC_MAX_MESSAGE_BYTES",
        value_name = "BYTES",
        default_value = "4194304"
    )]
    pub grpc_max_message_bytes: NonZeroUsize,

    /// Time without traffic on a connection before a ping. 0s: never.
    #[arg(
        long,
        env = "SLUICEGATE_GRPC_KEEPALIVE_INTERVAL",
        value_name = "DURATION",
        default_value = "60s"
    )]
    #[arg(value_parser = humantime::parse_duration)]
    pub grpc_keepalive_interval: Duration,

    /// Time for the acknowledgement of a ping before the connection is closed.
    #[arg(
        long,
        env = "SLUICEGATE_GRPC_KEEPALIVE_TIMEOUT",
        value_name = "DURATION",
        default_value = "20s"
    )]
    #[arg(value_parser = humantime::parse_duration)]
    pub grpc_keepalive_timeout: Duration,

    /// Age of a connection at which the caller is asked to open another one (GOAWAY), so that callers spread over new
    /// replicas. 0s: unlimited.
    #[arg(
        long,
        env = "SLUICEGATE_GRPC_MAX_CONNECTION_AGE",
        value_name = "DURATION",
        default_value = "30m"
    )]
    #[arg(value_parser = humantime::parse_duration)]
    pub grpc_max_connection_age: Duration,

    /// Time for the calls in progress on a connection to complete after --grpc-max-connection-age. Then it is closed.
    #[arg(
        long,
        env = "SLUICEGATE_GRPC_MAX_CONNECTION_AGE_GRACE",
        value_name = "DURATION",
        default_value = "30s"
    )]
    #[arg(value_parser = humantime::parse_duration)]
    pub grpc_max_connection_age_grace: Duration,

    /// Bounds on connections and calls.
    #[command(flatten)]
    pub bounds: GrpcBoundSettings,
}
