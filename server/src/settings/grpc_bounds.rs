//! Bounds on the connections and calls of the gRPC listener.

use std::{num::NonZeroUsize, time::Duration};

use clap::{Args, builder::RangedI64ValueParser};

use super::positive_duration;
use crate::values::Ratio;

/// The smallest header list bound: HTTP/2 libraries send up to this size before they know the bound.
const HEADER_LIST_BYTES_MIN: i64 = 16_384;

/// The largest header list bound. Each stream of each connection may use that much memory.
const HEADER_LIST_BYTES_MAX: i64 = 16_777_216;

/// Bounds on the connections and calls of the gRPC listener.
#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "gRPC")]
pub struct GrpcBoundSettings {
    /// Maximum number of concurrent calls on one connection (HTTP/2 concurrent streams). Envoy opens another
    /// connection for more.
    #[arg(
        long,
        env = "SLUICEGATE_GRPC_MAX_CONCURRENT_STREAMS",
        value_name = "STREAMS",
        default_value = "1024"
    )]
    #[arg(value_parser = RangedI64ValueParser::<u32>::new().range(1..=1_000_000))]
    pub grpc_max_concurrent_streams: u32,

    /// Maximum size of the header list of a call, in bytes. A larger one is an error, and Envoy lets the request
    /// pass: keep this above the headers that Envoy accepts from clients, because it forwards trace headers.
    #[arg(
        long,
        env = "SLUICEGATE_GRPC_MAX_HEADER_LIST_BYTES",
        value_name = "BYTES",
        default_value = "131072"
    )]
    #[arg(value_parser = RangedI64ValueParser::<u32>::new().range(HEADER_LIST_BYTES_MIN..=HEADER_LIST_BYTES_MAX))]
    pub grpc_max_header_list_bytes: u32,

    /// Maximum share of --max-in-flight for one connection. Further calls on it are refused (OVER_LIMIT) before
    /// matching.
    #[arg(
        long,
        env = "SLUICEGATE_GRPC_MAX_IN_FLIGHT_SHARE",
        value_name = "RATIO",
        default_value = "0.5"
    )]
    pub grpc_max_in_flight_share: Ratio,

    /// Time for the message of a call to arrive completely, and for an HTTP/2 frame. Then the call gets an error, or
    /// the connection is closed. For rate limit requests the caller's deadline (grpc-timeout) applies if it is earlier.
    #[arg(
        long,
        env = "SLUICEGATE_GRPC_MESSAGE_TIMEOUT",
        value_name = "DURATION",
        default_value = "5s"
    )]
    #[arg(value_parser = positive_duration)]
    pub grpc_message_timeout: Duration,

    /// Maximum bytes held on all connections for messages that have not fully arrived, and as many for responses that
    /// callers do not read, without the first 128 KiB of each connection. Beyond it a rate limit request is refused
    /// (OVER_LIMIT) before matching; other calls, and calls with such a response, get RESOURCE_EXHAUSTED.
    #[arg(
        long,
        env = "SLUICEGATE_GRPC_MAX_WAITING_BYTES",
        value_name = "BYTES",
        default_value = "268435456"
    )]
    pub grpc_max_waiting_bytes: NonZeroUsize,

    /// Maximum bytes held on one connection for messages that have not fully arrived, and as many for responses that
    /// its caller does not read. Beyond it the effect is that of --grpc-max-waiting-bytes.
    #[arg(
        long,
        env = "SLUICEGATE_GRPC_MAX_WAITING_BYTES_PER_CONNECTION",
        value_name = "BYTES",
        default_value = "16777216"
    )]
    pub grpc_max_waiting_bytes_per_connection: NonZeroUsize,

    /// Maximum number of concurrent Health Watch and reflection calls on all connections. Further ones get
    /// RESOURCE_EXHAUSTED.
    #[arg(
        long,
        env = "SLUICEGATE_GRPC_MAX_STREAMING_CALLS",
        value_name = "CALLS",
        default_value = "1024"
    )]
    pub grpc_max_streaming_calls: NonZeroUsize,

    /// Maximum number of concurrent Health Watch and reflection calls on one connection. Further ones get
    /// RESOURCE_EXHAUSTED.
    #[arg(
        long,
        env = "SLUICEGATE_GRPC_MAX_STREAMING_CALLS_PER_CONNECTION",
        value_name = "CALLS",
        default_value = "16"
    )]
    pub grpc_max_streaming_calls_per_connection: NonZeroUsize,

    /// Time without a call before a connection gets GOAWAY and is closed. 0s: unlimited.
    #[arg(
        long,
        env = "SLUICEGATE_GRPC_MAX_CONNECTION_IDLE",
        value_name = "DURATION",
        default_value = "10m"
    )]
    #[arg(value_parser = humantime::parse_duration)]
    pub grpc_max_connection_idle: Duration,
}
