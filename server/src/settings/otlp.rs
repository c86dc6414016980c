//! Settings of the export to an OpenTelemetry collector.

use std::{path::PathBuf, str::FromStr, time::Duration};

use clap::Args;
use http::Uri;
use thiserror::Error;

use crate::values::Ratio;

/// Settings of the export to an OpenTelemetry collector.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "OpenTelemetry")]
pub struct OtlpSettings {
    /// Collector for traces and metrics, by OTLP over gRPC: http://HOST:PORT or https://HOST:PORT. Without it nothing
    /// is exported, and no request is traced.
    #[arg(long, env = "SLUICEGATE_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<OtlpEndpoint>,

    /// CA certificates for the collector (PEM), in place of the system's. Read at the start.
    #[arg(long, env = "SLUICEGATE_OTLP_TLS_CA", value_name = "FILE", requires = "otlp_endpoint")]
    pub otlp_tls_ca: Option<PathBuf>,

    /// Interval of metrics exports to the collector, at least 1s. 0s: never; /metrics is always available.
    #[arg(
        long,
        env = "SLUICEGATE_OTLP_METRICS_INTERVAL",
        value_name = "DURATION",
        default_value = "60s",
        requires = "otlp_endpoint"
    )]
    #[arg(value_parser = metrics_interval)]
    pub otlp_metrics_interval: Duration,

    /// Share of the requests without a trace that start one, 0 to 1. A request with a trace is traced if its caller
    /// samples it.
    #[arg(
        long,
        env = "SLUICEGATE_TRACE_RATIO",
        value_name = "RATIO",
        default_value = "0",
        requires = "otlp_endpoint"
    )]
    pub trace_ratio: Ratio,
}

fn metrics_interval(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(interval) if interval.is_zero() || interval >= Duration::from_secs(1) => Ok(interval),
        Ok(_) => Err("must be 1s or longer, or 0s for never".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// The address of a collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpEndpoint(Uri);

impl OtlpEndpoint {
    /// The address, with the scheme `http` or `https`.
    #[must_use]
    pub const fn uri(&self) -> &Uri {
        &self.0
    }

    /// Whether connections to the collector use TLS.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.0.scheme_str() == Some("https")
    }
}

impl FromStr for OtlpEndpoint {
    type Err = OtlpEndpointError;

    fn from_str(text: &str) -> Result<Self, OtlpEndpointError> {
        let uri: Uri = text.parse().map_err(|_| OtlpEndpointError)?;
        let fits = matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some();
        if fits { Ok(Self(uri)) } else { Err(OtlpEndpointError) }
    }
}

/// A text is not the address of a collector.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("use http://HOST:PORT or https://HOST:PORT")]
pub struct OtlpEndpointError;
