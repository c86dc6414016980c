//! Settings from flags, environment variables and the file of `--config`.
//!
//! They are read once, at the start. What changes while the server runs are the contents of the files that they name
//! (limits, TLS, admin token, tenants, password of Redis) and the log level.

mod admin;
mod config_file;
mod connections;
mod explain;
mod grpc;
mod grpc_bounds;
mod limits;
mod log;
mod metrics;
mod nearest;
mod otlp;
mod parse;
mod request_bounds;
mod response;
mod store;
mod tls;
mod top;
mod usage;
mod variables;

use std::{num::NonZeroUsize, path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand};

pub use self::{
    admin::{AdminListen, AdminSettings},
    connections::ListenerConnectionSettings,
    explain::ExplainArguments,
    grpc::GrpcSettings,
    grpc_bounds::GrpcBoundSettings,
    limits::{DiffSettings, LimitsSettings, ValidateSettings},
    log::{LogFormat, LogSettings},
    metrics::MetricSettings,
    otlp::{OtlpEndpoint, OtlpEndpointError, OtlpSettings},
    parse::ParseError,
    request_bounds::RequestBoundSettings,
    response::{ResponseHeaders, ResponseSettings},
    store::{FailureSettings, RedisArguments, StoreChoice, StoreChoiceError, StoreSettings},
    tls::{AdminTlsSettings, GrpcTlsSettings, UsageTlsSettings},
    top::{CounterNameFormat, TopSettings},
    usage::UsageSettings,
};
pub(crate) use self::{
    metrics::SERIES_MAX, tls::TlsSettings, variables::warnings as variable_warnings,
};

/// The command line of `sluicegate`.
#[derive(Debug, Parser)]
#[command(version, about, max_term_width = 100, after_help = AFTER_HELP)]
pub struct Cli {
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

const AFTER_HELP: &str = "\
Try it:
  sluicegate serve --limits examples/limits
  sluicegate validate examples/limits";

/// The commands of `sluicegate`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve rate limit requests, over gRPC (Envoy's RateLimitService) and HTTP (/json).
    Serve(Box<ServeSettings>),
    /// Check limits files and print all mistakes, with file, line, path and fix.
    ///
    /// Exits with 0 if the files can be served, with 1 if not. Warnings are printed and do not change the exit code.
    /// With --explain, explains instead which limits a request matches.
    Validate(ValidateSettings),
    /// Compare limits files: print the rules that NEW adds, removes and changes, and the counters that restart from
    /// zero.
    ///
    /// Exits like diff(1): with 0 if both decide every request in the same way, with 1 if not, with 2 if either has
    /// mistakes. All mistakes are printed.
    Diff(DiffSettings),
    /// Print the JSON Schema of limits files, with which editors complete and check them.
    Schema,
}

/// Settings of `sluicegate serve`.
#[derive(Args, Clone, Debug)]
pub struct ServeSettings {
    /// YAML file with settings, by the names of the flags without dashes in front. Flags win over environment
    /// variables, variables over the file. Read at the start.
    #[arg(long, env = "SLUICEGATE_CONFIG", value_name = "FILE", help_heading = "Settings")]
    pub config: Option<PathBuf>,

    /// The limits files to enforce.
    #[command(flatten)]
    pub limits: LimitsSettings,

    /// Interval at which limits files, TLS files, the admin token and the tenants file are checked even if the system reports no change.
    ///
    /// Changes are normally detected at once. This is for file systems that do not report them.
    #[arg(long, env = "SLUICEGATE_POLL_INTERVAL", value_name = "DURATION", default_value = "10s")]
    #[arg(value_parser = humantime::parse_duration, help_heading = "Limits")]
    pub poll_interval: Duration,

    /// The store of the counters.
    #[command(flatten)]
    pub store: StoreSettings,

    /// Connections to Redis.
    #[command(flatten)]
    pub redis: RedisArguments,

    /// Behaviour when the store does not answer.
    #[command(flatten)]
    pub failure: FailureSettings,

    /// What responses contain beside the decision.
    #[command(flatten)]
    pub response: ResponseSettings,

    /// The gRPC listener.
    #[command(flatten)]
    pub grpc: GrpcSettings,

    /// Address of the HTTP listener: /json, /healthcheck, /livez, /metrics, /stats and /rlconfig. Port 0 selects a
    /// free one.
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

    /// The usage listener.
    #[command(flatten)]
    pub usage: UsageSettings,

    /// Bounds on the connections of the listeners.
    #[command(flatten)]
    pub connections: ListenerConnectionSettings,

    /// Maximum number of requests in flight. Further requests are refused (OVER_LIMIT) before matching.
    #[arg(
        long,
        env = "SLUICEGATE_MAX_IN_FLIGHT",
        value_name = "REQUESTS",
        default_value = "10000"
    )]
    #[arg(help_heading = "Bounds")]
    pub max_in_flight: NonZeroUsize,

    /// Bounds on one request.
    #[command(flatten)]
    pub request_bounds: RequestBoundSettings,

    /// Time to keep serving after SIGTERM while health reports NOT_SERVING, so that callers can switch to other
    /// replicas. Set it longer than two of their health checks, or their DNS refresh interval.
    #[arg(long, env = "SLUICEGATE_DRAIN_DELAY", value_name = "DURATION", default_value = "15s")]
    #[arg(value_parser = humantime::parse_duration, help_heading = "Shutdown")]
    pub drain_delay: Duration,

    /// Time for calls in progress to complete after --drain-delay. Then they are aborted.
    #[arg(long, env = "SLUICEGATE_DRAIN_TIMEOUT", value_name = "DURATION", default_value = "30s")]
    #[arg(value_parser = humantime::parse_duration, help_heading = "Shutdown")]
    pub drain_timeout: Duration,

    /// Metrics.
    #[command(flatten)]
    pub metrics: MetricSettings,

    /// The counters that `sluicectl top` lists.
    #[command(flatten)]
    pub top: TopSettings,

    /// Export to an OpenTelemetry collector.
    #[command(flatten)]
    pub otlp: OtlpSettings,

    /// The log and the decision log.
    #[command(flatten)]
    pub log: LogSettings,
}

fn positive_duration(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(Duration::ZERO) => Err("must be longer than 0".to_owned()),
        Ok(duration) => Ok(duration),
        Err(error) => Err(error.to_string()),
    }
}
