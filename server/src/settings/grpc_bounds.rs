//! Bounds of the gRPC listener's connections and calls.

use std::{num::NonZeroUsize, time::Duration};

use clap::{Args, builder::RangedI64ValueParser};

use super::{Ratio, positive_duration};

/// The smallest header list bound: HTTP/2 libraries send up to this size without asking.
const HEADER_LIST_BYTES_MIN: i64 = 16_384;

/// The largest header list bound. Each stream of each connection may take so much.
const HEADER_LIST_BYTES_MAX: i64 = 16_777_216;

/// Bounds of the gRPC listener's connections and calls.
#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "gRPC")]
pub struct GrpcBoundSettings {
    /// The most calls at once on one connection: HTTP/2's bound of concurrent streams. Envoy opens another
    /// connection for more.
    #[arg(
        long,
        env = "SLUICEGATE_GRPC_MAX_CONCURRENT_STREAMS",
        value_name = "STREAMS",
        default_value = "1024"
    )]
    #[arg(value_parser = RangedI64ValueParser::<u32>::new().range(1..=1_000_000))]
    pub grpc_max_concurrent_streams: u32,

    /// The largest header list of a call, in bytes. A larger one is an error, and Envoy lets the request pass: keep
    /// this above the headers that Envoy takes from clients, because those with a trace are passed on.
    #[arg(
        long,
        env = "SLUICEGATE_GRPC_MAX_HEADER_LIST_BYTES",
        value_name = "BYTES",
        default_value = "131072"
    )]
    #[arg(value_parser = RangedI64ValueParser::<u32>::new().range(HEADER_LIST_BYTES_MIN..=HEADER_LIST_BYTES_MAX))]
    pub grpc_max_header_list_bytes: u32,

    /// The share of --max-in-flight that one connection can take. Its calls beyond are refused (OVER_LIMIT) without
    /// being looked at.
    #[arg(
        long,
        env = "SLUICEGATE_GRPC_MAX_IN_FLIGHT_SHARE",
        value_name = "RATIO",
        default_value = "0.5"
    )]
    pub grpc_max_in_flight_share: Ratio,

    /// How long a call's message may take to arrive, if the caller does not give up before (grpc-timeout), and how long
    /// an HTTP/2 frame may.
    #[arg(
        long,
        env = "SLUICEGATE_GRPC_MESSAGE_TIMEOUT",
        value_name = "DURATION",
        default_value = "5s"
    )]
    #[arg(value_parser = positive_duration)]
    pub grpc_message_timeout: Duration,

    /// The most bytes that calls hold while their messages arrive, on all connections, and as many for answers that their
    /// callers do not take. A call that needs more is refused (OVER_LIMIT) without being looked at; in place of an answer
    /// that does, an error is sent.
    #[arg(
        long,
        env = "SLUICEGATE_GRPC_MAX_WAITING_BYTES",
        value_name = "BYTES",
        default_value = "268435456"
    )]
    pub grpc_max_waiting_bytes: NonZeroUsize,

    /// The same for one connection.
    #[arg(
        long,
        env = "SLUICEGATE_GRPC_MAX_WAITING_BYTES_PER_CONNECTION",
        value_name = "BYTES",
        default_value = "16777216"
    )]
    pub grpc_max_waiting_bytes_per_connection: NonZeroUsize,

    /// The most calls of health's Watch and of reflection at once, on all connections. More are refused.
    #[arg(
        long,
        env = "SLUICEGATE_GRPC_MAX_STREAMING_CALLS",
        value_name = "CALLS",
        default_value = "1024"
    )]
    pub grpc_max_streaming_calls: NonZeroUsize,

    /// The same for one connection.
    #[arg(
        long,
        env = "SLUICEGATE_GRPC_MAX_STREAMING_CALLS_PER_CONNECTION",
        value_name = "CALLS",
        default_value = "16"
    )]
    pub grpc_max_streaming_calls_per_connection: NonZeroUsize,

    /// How long a connection may be without a call, before it is asked to end and closed. 0s: any time.
    #[arg(
        long,
        env = "SLUICEGATE_GRPC_MAX_CONNECTION_IDLE",
        value_name = "DURATION",
        default_value = "10m"
    )]
    #[arg(value_parser = humantime::parse_duration)]
    pub grpc_max_connection_idle: Duration,
}
