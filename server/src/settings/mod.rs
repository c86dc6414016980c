//! What is set at start-up and takes a restart to change. Limits are not here: they are read from files
//! and reloaded while the server runs.

mod admin;
mod bounds;
mod connections;
mod explain;
mod grpc_bounds;
mod limits;
mod log;
mod metrics;
mod otlp;
mod ratio;
mod response;
mod top;

use std::{
    num::{NonZeroU32, NonZeroUsize},
    path::PathBuf,
    str::FromStr,
    time::Duration,
};

use clap::{Args, Parser, Subcommand, builder::BoolishValueParser};
use sluicegate_store::redis::{KeyPrefix, RedisUrl, UrlError};
use thiserror::Error;

pub use self::{
    admin::{AdminListen, AdminSettings},
    bounds::BoundSettings,
    connections::ConnectionSettings,
    explain::ExplainArguments,
    grpc_bounds::GrpcBoundSettings,
    limits::{DiffSettings, LimitsSettings, ValidateSettings},
    log::{LogFormat, LogSettings},
    metrics::MetricSettings,
    otlp::{OtlpEndpoint, OtlpEndpointError, OtlpSettings},
    ratio::{Ratio, RatioError},
    response::{ResponseHeaders, ResponseSettings},
    top::{TopLabels, TopSettings},
};
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
    /// exit code. With --explain, tells instead why a request would meet the limits that it would meet.
    Validate(ValidateSettings),
    /// Compare limits files: print which rules NEW adds, removes and changes, and where counters start anew.
    ///
    /// Exits like diff(1): with 0 if both decide alike, with 1 if not, with 2 if either cannot be served;
    /// then every mistake is printed.
    Diff(DiffSettings),
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

    /// How to connect to Redis.
    #[command(flatten)]
    pub redis: RedisArguments,

    /// What happens when the store does not answer.
    #[command(flatten)]
    pub failure: FailureSettings,

    /// What answers carry beside the decision.
    #[command(flatten)]
    pub response: ResponseSettings,

    /// The gRPC listener.
    #[command(flatten)]
    pub grpc: GrpcSettings,

    /// Address of the HTTP listener: /json, /healthcheck, /livez, /metrics, /stats and /rlconfig. Port 0 takes a free one.
    #[arg(
        long,
        env = "SLUICEGATE_HTTP_LISTEN",
        value_name = "ADDRESS",
        default_value = "127.0.0.1:8080"
    )]
    #[arg(help_heading = "HTTP")]
    pub http_listen: std::net::SocketAddr,

    /// The admin listener.
    #[command(flatten)]
    pub admin: AdminSettings,

    /// How many connections the listeners hold.
    #[command(flatten)]
    pub connections: ConnectionSettings,

    /// The most requests in progress at once. What is beyond is refused (OVER_LIMIT) without being looked at.
    #[arg(
        long,
        env = "SLUICEGATE_MAX_IN_FLIGHT",
        value_name = "REQUESTS",
        default_value = "10000"
    )]
    #[arg(help_heading = "Bounds")]
    pub max_in_flight: NonZeroUsize,

    /// What one request may take.
    #[command(flatten)]
    pub bounds: BoundSettings,

    /// How long to go on serving after SIGTERM while health says NOT_SERVING, so that callers can turn away:
    /// longer than two of their health checks, or their refresh of DNS.
    #[arg(long, env = "SLUICEGATE_DRAIN_DELAY", value_name = "DURATION", default_value = "15s")]
    #[arg(value_parser = humantime::parse_duration, help_heading = "Shutdown")]
    pub drain_delay: Duration,

    /// How long calls in progress may take to finish after that.
    #[arg(long, env = "SLUICEGATE_DRAIN_TIMEOUT", value_name = "DURATION", default_value = "30s")]
    #[arg(value_parser = humantime::parse_duration, help_heading = "Shutdown")]
    pub drain_timeout: Duration,

    /// What is counted.
    #[command(flatten)]
    pub metrics: MetricSettings,

    /// Who is being limited.
    #[command(flatten)]
    pub top: TopSettings,

    /// What is sent to an OpenTelemetry collector.
    #[command(flatten)]
    pub otlp: OtlpSettings,

    /// How the log is written.
    #[command(flatten)]
    pub log: LogSettings,
}

/// Where counters are kept.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Store")]
pub struct StoreSettings {
    /// Where counters are kept: memory, for a single replica, or Redis, for any number:
    /// redis://HOST:PORT/DATABASE, redis-cluster://HOST:PORT,HOST:PORT,
    /// redis-sentinel://HOST:PORT,HOST:PORT/NAME; with TLS rediss://, rediss-cluster://, rediss-sentinel://.
    /// USER:PASSWORD@ may stand before the first host; other users of the machine can see a command line.
    #[arg(long, env = "SLUICEGATE_STORE", value_name = "STORE", default_value = "memory")]
    #[arg(hide_env_values = true)]
    pub store: StoreChoice,

    /// What stands before every key, so that several installations can share one Redis.
    #[arg(long, env = "SLUICEGATE_KEY_PREFIX", value_name = "TEXT", default_value = "")]
    pub key_prefix: KeyPrefix,

    /// The most refusals that are remembered, to answer them again without asking Redis. 0: none.
    #[arg(
        long,
        env = "SLUICEGATE_DENY_CACHE_ENTRIES",
        value_name = "ENTRIES",
        default_value = "100000"
    )]
    pub deny_cache_entries: usize,

    /// The most counters held in memory: all of them, or with Redis those of the policy local. A request
    /// that needs one more goes by its rule's failure policy, where local denies; live counters are never dropped.
    #[arg(
        long,
        env = "SLUICEGATE_MEMORY_MAX_COUNTERS",
        value_name = "COUNTERS",
        default_value = "1000000"
    )]
    pub memory_max_counters: NonZeroUsize,
}

/// Where counters are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreChoice {
    /// In this process. Gone when it stops, and not shared with other replicas.
    Memory,
    /// In Redis.
    Redis(RedisUrl),
}

impl FromStr for StoreChoice {
    type Err = StoreChoiceError;

    fn from_str(text: &str) -> Result<Self, StoreChoiceError> {
        match text {
            "memory" => Ok(Self::Memory),
            text if text.contains("://") => Ok(Self::Redis(text.parse()?)),
            _ => Err(StoreChoiceError::Unknown),
        }
    }
}

/// What was given for `--store` names none.
#[derive(Debug, Error)]
pub enum StoreChoiceError {
    /// Neither memory nor an address.
    #[error(
        "use memory, or an address that begins with redis://, redis-cluster:// or redis-sentinel://"
    )]
    Unknown,
    /// An address with a mistake.
    #[error(transparent)]
    Url(#[from] UrlError),
}

/// How to connect to Redis.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Redis")]
pub struct RedisArguments {
    /// ACL user, where the address has none.
    #[arg(long, env = "SLUICEGATE_REDIS_USERNAME", value_name = "USER")]
    pub redis_username: Option<String>,

    /// Password, where the address has none. Prefer the environment variable or a file: other users of the
    /// machine can see a command line.
    #[arg(long, env = "SLUICEGATE_REDIS_PASSWORD", value_name = "PASSWORD")]
    #[arg(hide_env_values = true, conflicts_with = "redis_password_file")]
    pub redis_password: Option<String>,

    /// File whose first line is the password. Read at every connection, so that a new one is taken up.
    #[arg(long, env = "SLUICEGATE_REDIS_PASSWORD_FILE", value_name = "FILE")]
    pub redis_password_file: Option<PathBuf>,

    /// Certificates of the authorities that certify the servers (PEM), in place of the system's. Read at
    /// every connection, as are the other TLS files.
    #[arg(long, env = "SLUICEGATE_REDIS_TLS_CA", value_name = "FILE")]
    pub redis_tls_ca: Option<PathBuf>,

    /// Certificate chain to show to the servers (PEM), for mTLS.
    #[arg(long, env = "SLUICEGATE_REDIS_TLS_CERT", value_name = "FILE")]
    #[arg(requires = "redis_tls_key")]
    pub redis_tls_cert: Option<PathBuf>,

    /// Private key of that certificate (PEM).
    #[arg(long, env = "SLUICEGATE_REDIS_TLS_KEY", value_name = "FILE")]
    #[arg(requires = "redis_tls_cert")]
    pub redis_tls_key: Option<PathBuf>,

    /// Connections to each server. As many calls may be on their way to it at once; what arrives meanwhile
    /// goes out together as the next.
    #[arg(
        long,
        env = "SLUICEGATE_REDIS_CONNECTIONS",
        value_name = "CONNECTIONS",
        default_value = "2"
    )]
    pub redis_connections: NonZeroUsize,

    /// How long connecting may take, and how long start-up waits for it, at most 2s. No request waits for it: without a
    /// connection the failure policies answer.
    #[arg(
        long,
        env = "SLUICEGATE_REDIS_CONNECT_TIMEOUT",
        value_name = "DURATION",
        default_value = "1s"
    )]
    #[arg(value_parser = positive_duration)]
    pub redis_connect_timeout: Duration,
}

/// What happens when the store does not answer.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Failure")]
pub struct FailureSettings {
    /// How long the store may take to decide, before the failure policies do. A caller that says how long
    /// it waits (grpc-timeout) is answered before that, too: a quarter of it, or 2 ms, is kept for the way.
    #[arg(
        long,
        env = "SLUICEGATE_DECISION_TIMEOUT",
        value_name = "DURATION",
        default_value = "10ms"
    )]
    #[arg(value_parser = positive_duration)]
    pub decision_timeout: Duration,

    /// Among how many replicas the policy local divides a limit. Without it, as many as were last seen alive.
    #[arg(long, env = "SLUICEGATE_REPLICAS", value_name = "REPLICAS")]
    pub replicas: Option<NonZeroU32>,

    /// The most recently asked counters of which a replica remembers what is left, so that the policy local starts from
    /// there, and the most that it debits once Redis answers again. 0: local counters start unused, and are not debited.
    #[arg(
        long,
        env = "SLUICEGATE_FALLBACK_COUNTERS",
        value_name = "COUNTERS",
        default_value = "100000"
    )]
    pub fallback_counters: usize,

    /// Turn health to NOT_SERVING while the store does not answer. By default it stays SERVING, because
    /// otherwise no replica is left to apply the policies.
    #[arg(
        long,
        env = "SLUICEGATE_HEALTH_REQUIRES_STORE",
        value_name = "BOOL",
        default_value = "false",
        default_missing_value = "true",
        num_args = 0..=1,
        require_equals = true,
        value_parser = BoolishValueParser::new()
    )]
    pub health_requires_store: bool,
}

fn positive_duration(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(Duration::ZERO) => Err("must be longer than 0".to_owned()),
        Ok(duration) => Ok(duration),
        Err(error) => Err(error.to_string()),
    }
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

    /// The largest request message. A larger one is refused (OVER_LIMIT) without being looked at.
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

    /// What bounds connections and calls.
    #[command(flatten)]
    pub bounds: GrpcBoundSettings,
}
