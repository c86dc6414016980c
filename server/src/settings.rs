//! What is set at start-up and takes a restart to change. Limits are not here: they are read from files
//! and reloaded while the server runs.

use std::{num::NonZeroUsize, path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};
use sluicegate_core::Counting;

use crate::listen::ListenAddress;

/// The command line of `sluicegate`.
#[derive(Debug, Parser)]
#[command(version, about, max_term_width = 100, after_help = AFTER_HELP)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const AFTER_HELP: &str = "\
Try it:
  sluicegate serve --limits examples/limits
  sluicegate validate examples/limits";

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Answer rate limit requests, over gRPC (Envoy's RateLimitService) and HTTP (/json).
    Serve(Box<ServeSettings>),
    /// Check limits files and print every mistake, with file, line, path and what to do.
    ///
    /// Exits with 0 if the files can be served, with 1 if not. Warnings are printed and do not change the
    /// exit code.
    Validate(ValidateSettings),
}

/// Settings of `sluicegate serve`.
#[derive(Args, Clone, Debug)]
pub struct ServeSettings {
    /// Which limits to enforce.
    #[command(flatten)]
    pub limits: LimitsSettings,

    /// How often to look at limits and TLS files even if nothing reports a change.
    ///
    /// Changes are normally noticed at once. This is for file systems that do not report them.
    #[arg(long, env = "SLUICEGATE_POLL_INTERVAL", value_name = "DURATION", default_value = "10s")]
    #[arg(value_parser = humantime::parse_duration, help_heading = "Limits")]
    pub poll_interval: Duration,

    /// Where counters are kept.
    #[command(flatten)]
    pub store: StoreSettings,

    /// The gRPC listener.
    #[command(flatten)]
    pub grpc: GrpcSettings,

    /// Address of the HTTP listener: /json, /healthcheck, /metrics and /rlconfig. Port 0 takes a free one.
    #[arg(
        long,
        env = "SLUICEGATE_HTTP_LISTEN",
        value_name = "ADDRESS",
        default_value = "127.0.0.1:8080"
    )]
    #[arg(help_heading = "HTTP")]
    pub http_listen: std::net::SocketAddr,

    /// The most requests in progress at once. What is beyond is refused (OVER_LIMIT) without being looked at.
    #[arg(
        long,
        env = "SLUICEGATE_MAX_IN_FLIGHT",
        value_name = "REQUESTS",
        default_value = "10000"
    )]
    #[arg(help_heading = "Bounds")]
    pub max_in_flight: NonZeroUsize,

    /// How long to go on serving after SIGTERM while health says NOT_SERVING, so that callers can turn away.
    #[arg(long, env = "SLUICEGATE_DRAIN_DELAY", value_name = "DURATION", default_value = "5s")]
    #[arg(value_parser = humantime::parse_duration, help_heading = "Shutdown")]
    pub drain_delay: Duration,

    /// How long calls in progress may take to finish after that.
    #[arg(long, env = "SLUICEGATE_DRAIN_TIMEOUT", value_name = "DURATION", default_value = "30s")]
    #[arg(value_parser = humantime::parse_duration, help_heading = "Shutdown")]
    pub drain_timeout: Duration,

    /// How the log is written.
    #[command(flatten)]
    pub log: LogSettings,
}

/// Which limits to enforce.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Limits")]
pub struct LimitsSettings {
    /// Limits files, or folders of them (every .yaml and .yml in it, but nothing hidden). Changes are
    /// taken up while the server runs; files with a mistake leave the old limits in force.
    #[arg(long, env = "SLUICEGATE_LIMITS", value_name = "PATH", required = true, num_args = 1..)]
    #[arg(value_delimiter = ',')]
    pub limits: Vec<PathBuf>,

    /// Who is charged, where neither rule nor domain says: see `counting` in the limits files.
    #[arg(
        long,
        env = "SLUICEGATE_DEFAULT_COUNTING",
        value_name = "COUNTING",
        default_value = "free"
    )]
    pub default_counting: CountingName,
}

/// Settings of `sluicegate validate`.
#[derive(Args, Clone, Debug)]
pub struct ValidateSettings {
    /// Limits files, or folders of them.
    #[arg(value_name = "PATH", required = true)]
    pub limits: Vec<PathBuf>,

    /// Who is charged, where neither rule nor domain says.
    #[arg(
        long,
        env = "SLUICEGATE_DEFAULT_COUNTING",
        value_name = "COUNTING",
        default_value = "free"
    )]
    pub default_counting: CountingName,
}

/// [`Counting`] on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CountingName {
    /// Refusals cost nothing.
    Free,
    /// Hits are charged in full even past the limit; refused if nothing was left before.
    Debit,
    /// As envoyproxy/ratelimit: refused hits are charged too.
    Upstream,
}

impl From<CountingName> for Counting {
    fn from(name: CountingName) -> Self {
        match name {
            CountingName::Free => Self::Free,
            CountingName::Debit => Self::Debit,
            CountingName::Upstream => Self::Upstream,
        }
    }
}

/// Where counters are kept.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Store")]
pub struct StoreSettings {
    /// Where counters are kept: memory, for a single replica.
    #[arg(long, env = "SLUICEGATE_STORE", default_value = "memory")]
    pub store: StoreKind,

    /// The most counters held in memory. A request that needs one more is refused; live counters are
    /// never dropped.
    #[arg(
        long,
        env = "SLUICEGATE_MEMORY_MAX_COUNTERS",
        value_name = "COUNTERS",
        default_value = "1000000"
    )]
    pub memory_max_counters: NonZeroUsize,
}

/// Kinds of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StoreKind {
    /// In this process. Gone when it stops, and not shared with other replicas.
    Memory,
}

/// The gRPC listener.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "gRPC")]
pub struct GrpcSettings {
    /// Address of the gRPC listener: HOST:PORT, or unix:PATH for a socket. Port 0 takes a free one.
    #[arg(
        long,
        env = "SLUICEGATE_GRPC_LISTEN",
        value_name = "ADDRESS",
        default_value = "127.0.0.1:8081"
    )]
    pub grpc_listen: ListenAddress,

    /// Certificate chain of the server (PEM). Turns on TLS; replaced files are taken up without a restart.
    #[arg(long, env = "SLUICEGATE_GRPC_TLS_CERT", value_name = "FILE", requires = "grpc_tls_key")]
    pub grpc_tls_cert: Option<PathBuf>,

    /// Private key of the server's certificate (PEM).
    #[arg(long, env = "SLUICEGATE_GRPC_TLS_KEY", value_name = "FILE", requires = "grpc_tls_cert")]
    pub grpc_tls_key: Option<PathBuf>,

    /// Certificates of the authorities that callers must be certified by (PEM). Turns on mTLS.
    #[arg(
        long,
        env = "SLUICEGATE_GRPC_TLS_CLIENT_CA",
        value_name = "FILE",
        requires = "grpc_tls_cert"
    )]
    pub grpc_tls_client_ca: Option<PathBuf>,

    /// Names of which a caller's certificate must carry one (DNS or URI subject alternative name).
    #[arg(
        long,
        env = "SLUICEGATE_GRPC_TLS_CLIENT_NAMES",
        value_name = "NAME",
        requires = "grpc_tls_client_ca"
    )]
    #[arg(value_delimiter = ',')]
    pub grpc_tls_client_names: Vec<String>,

    /// The largest request message. A larger one is answered OUT_OF_RANGE.
    #[arg(
        long,
        env = "SLUICEGATE_GRPC_MAX_MESSAGE_BYTES",
        value_name = "BYTES",
        default_value = "4194304"
    )]
    pub grpc_max_message_bytes: NonZeroUsize,

    /// How long a connection that carries nothing waits before it is pinged. 0s: never.
    #[arg(
        long,
        env = "SLUICEGATE_GRPC_KEEPALIVE_INTERVAL",
        value_name = "DURATION",
        default_value = "60s"
    )]
    #[arg(value_parser = humantime::parse_duration)]
    pub grpc_keepalive_interval: Duration,

    /// How long the answer to a ping may take before the connection is closed.
    #[arg(
        long,
        env = "SLUICEGATE_GRPC_KEEPALIVE_TIMEOUT",
        value_name = "DURATION",
        default_value = "20s"
    )]
    #[arg(value_parser = humantime::parse_duration)]
    pub grpc_keepalive_timeout: Duration,

    /// How old a connection may get before the caller is asked to open another, so that callers spread
    /// over new replicas. 0s: any age.
    #[arg(
        long,
        env = "SLUICEGATE_GRPC_MAX_CONNECTION_AGE",
        value_name = "DURATION",
        default_value = "30m"
    )]
    #[arg(value_parser = humantime::parse_duration)]
    pub grpc_max_connection_age: Duration,

    /// How long calls in progress may take to finish on a connection that is too old.
    #[arg(
        long,
        env = "SLUICEGATE_GRPC_MAX_CONNECTION_AGE_GRACE",
        value_name = "DURATION",
        default_value = "30s"
    )]
    #[arg(value_parser = humantime::parse_duration)]
    pub grpc_max_connection_age_grace: Duration,
}

/// How the log is written. It goes to the standard error stream.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Log")]
pub struct LogSettings {
    /// What is logged: error, warn, info, debug or trace, also by module (info,h2=debug).
    #[arg(long, env = "SLUICEGATE_LOG_LEVEL", value_name = "LEVEL", default_value = "info")]
    pub log_level: String,

    /// How it is written.
    #[arg(long, env = "SLUICEGATE_LOG_FORMAT", value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,
}

/// Formats of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// A line for people.
    Text,
    /// A JSON object a line.
    Json,
}
