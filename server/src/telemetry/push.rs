//! The export of metrics to an OpenTelemetry collector.
//!
//! The SDK's exporter sends all metrics in one message, and collectors accept 4 MiB, so with many series they would
//! reject all metrics. This exporter uses the SDK's transformation, and splits its result into smaller messages.

mod messages;

use std::{
    env,
    sync::Arc,
    time::{Duration, Instant},
};

use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, metrics_service_client::MetricsServiceClient,
};
use opentelemetry_sdk::{
    error::{OTelSdkError, OTelSdkResult},
    metrics::{PeriodicReader, Temporality, data::ResourceMetrics, exporter::PushMetricExporter},
};
use percent_encoding::percent_decode_str;
use prost::Message as _;
use thiserror::Error;
use tonic::{
    Code, Request,
    metadata::{AsciiMetadataKey, MetadataMap},
    transport::{Channel, Endpoint},
};

use super::{
    count::Attempts,
    otlp::{self, OtlpError},
};
use crate::settings::OtlpSettings;

/// The largest message, in bytes. Collectors accept 4 MiB by default.
const MESSAGE_BYTES_MAX: usize = 3 << 20;

/// The timeout of an export, unless the environment sets another one.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The reader that exports metrics at intervals; `None` without a collector or an interval. Requires a runtime.
pub(super) fn reader(
    settings: &OtlpSettings,
    pushes: &Arc<Attempts>,
) -> Result<Option<PeriodicReader<OtlpMetricExporter>>, OtlpError> {
    // First, because mistakes in the settings are errors even if nothing is exported.
    let tls = otlp::tls(settings)?;
    let interval = settings.otlp_metrics_interval;
    let Some(endpoint) = &settings.otlp_endpoint else { return Ok(None) };
    if interval.is_zero() {
        return Ok(None);
    }
    let timeout = variable("TIMEOUT").and_then(|text| text.parse().ok());
    let timeout = timeout.map_or(TIMEOUT, Duration::from_millis);
    let mut endpoint = Endpoint::from(endpoint.uri().clone())
        .user_agent(concat!("sluicegate/", env!("CARGO_PKG_VERSION")))?
        .connect_timeout(timeout);
    if let Some(tls) = tls {
        endpoint = endpoint.tls_config(tls)?;
    }
    let exporter = OtlpMetricExporter {
        client: MetricsServiceClient::new(endpoint.connect_lazy()),
        headers: variable("HEADERS").map_or_else(MetadataMap::new, |text| headers(&text)),
        timeout,
        pushes: Arc::clone(pushes),
    };
    Ok(Some(PeriodicReader::builder(exporter).with_interval(interval).build()))
}

/// OpenTelemetry's variable for metrics, or else the one for all signals.
fn variable(name: &str) -> Option<String> {
    let metrics = env::var(format!("OTEL_EXPORTER_OTLP_METRICS_{name}"));
    metrics.or_else(|_| env::var(format!("OTEL_EXPORTER_OTLP_{name}"))).ok()
}

/// Parses headers in the format of OpenTelemetry's variables: `NAME=VALUE,NAME=VALUE`, percent-encoded. Skips invalid
/// ones.
fn headers(text: &str) -> MetadataMap {
    let mut headers = MetadataMap::new();
    for (name, value) in text.split(',').filter_map(|header| header.split_once('=')) {
        let value = percent_decode_str(value.trim()).decode_utf8_lossy();
        let header = (name.trim().parse::<AsciiMetadataKey>(), value.parse());
        if let (Ok(name), Ok(value)) = header {
            headers.insert(name, value);
        }
    }
    headers
}

/// Sends metrics to the collector. Logs when an export fails after a success, and when it succeeds after a failure.
#[derive(Debug)]
pub(super) struct OtlpMetricExporter {
    client: MetricsServiceClient<Channel>,
    headers: MetadataMap,
    /// The timeout of an export, for all its messages together.
    timeout: Duration,
    pushes: Arc<Attempts>,
}

/// Why the collector has not accepted all metrics.
#[derive(Debug, Error)]
enum PushError {
    #[error("{code:?}: {message} (a message of {bytes} bytes)")]
    Rejected { code: Code, message: String, bytes: usize },
    #[error("the collector dropped {points} data points: {message}")]
    Dropped { points: i64, message: String },
}

impl OtlpMetricExporter {
    async fn send(&self, metrics: &ResourceMetrics) -> Result<(), PushError> {
        let began = Instant::now();
        for message in messages::from_metrics(metrics, MESSAGE_BYTES_MAX) {
            self.send_message(message, self.timeout.saturating_sub(began.elapsed())).await?;
        }
        Ok(())
    }

    async fn send_message(
        &self,
        message: ExportMetricsServiceRequest,
        timeout: Duration,
    ) -> Result<(), PushError> {
        let bytes = message.encoded_len();
        let mut request = Request::new(message);
        *request.metadata_mut() = self.headers.clone();
        request.set_timeout(timeout);
        let rejected = |status: tonic::Status| PushError::Rejected {
            code: status.code(),
            message: status.message().to_owned(),
            bytes,
        };
        let response = self.client.clone().export(request).await.map_err(rejected)?.into_inner();
        match response.partial_success {
            Some(partial) if partial.rejected_data_points > 0 => Err(PushError::Dropped {
                points: partial.rejected_data_points,
                message: partial.error_message,
            }),
            Some(_) | None => Ok(()),
        }
    }
}

impl PushMetricExporter for OtlpMetricExporter {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        let sent = self.send(metrics).await;
        let failed = self.pushes.has_last_failed();
        match &sent {
            Ok(()) => self.pushes.succeeded(),
            Err(_) => self.pushes.failed(),
        }
        match (&sent, failed) {
            (Err(error), false) => {
                tracing::warn!(%error, "metrics cannot be sent to the collector");
            }
            (Ok(()), true) => tracing::info!("metrics are sent to the collector again"),
            (Err(_), true) | (Ok(()), false) => {}
        }
        sent.map_err(|error| OTelSdkError::InternalFailure(error.to_string()))
    }

    /// Nothing is buffered.
    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
        Ok(())
    }

    fn temporality(&self) -> Temporality {
        Temporality::Cumulative
    }
}

#[cfg(test)]
mod tests {
    use super::headers;

    #[test]
    fn headers_are_parsed_in_opentelemetrys_format() {
        let read = headers("authorization=Basic%20YTpi, x-tenant = a=b ,nonsense,na me=x,=y,");
        assert_eq!(read.len(), 2, "{read:?}");
        assert_eq!(read.get("authorization").unwrap(), "Basic YTpi");
        assert_eq!(read.get("x-tenant").unwrap(), "a=b");
    }
}
