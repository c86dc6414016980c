//! How an OpenTelemetry collector is reached, what it is told of this process, and metrics on their way to it.

use std::{
    fs, io,
    path::PathBuf,
    sync::{
        LazyLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use opentelemetry::KeyValue;
use opentelemetry_otlp::{
    ExporterBuildError, MetricExporter, WithExportConfig as _, WithTonicConfig as _,
    tonic_types::transport::{Certificate, ClientTlsConfig},
};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    metrics::{PeriodicReader, Temporality, data::ResourceMetrics, exporter::PushMetricExporter},
    trace::{IdGenerator as _, RandomIdGenerator},
};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use thiserror::Error;

use crate::settings::{OtlpEndpoint, OtlpSettings};

/// Why nothing can be sent to a collector.
#[derive(Debug, Error)]
pub enum OtlpError {
    /// The file of authorities cannot be read.
    #[error("--otlp-tls-ca: cannot read {}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// There is no certificate in it.
    #[error("--otlp-tls-ca: no certificate can be read from {}", .0.display())]
    NoCertificate(PathBuf),
    /// Authorities are of no use without TLS.
    #[error("--otlp-tls-ca: --otlp-endpoint does not ask for TLS; use https://")]
    Plain,
    /// The exporter could not be made.
    #[error("cannot send to the collector")]
    Exporter(#[from] ExporterBuildError),
}

/// What names this process to collectors. `OTEL_RESOURCE_ATTRIBUTES` adds to it.
pub(crate) fn resource() -> Resource {
    static INSTANCE: LazyLock<String> =
        LazyLock::new(|| RandomIdGenerator::default().new_trace_id().to_string());
    Resource::builder()
        .with_service_name("sluicegate")
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_attribute(KeyValue::new("service.instance.id", INSTANCE.as_str()))
        .build()
}

/// How the collector is spoken to over TLS; `None` if it is not.
pub(crate) fn tls(settings: &OtlpSettings) -> Result<Option<ClientTlsConfig>, OtlpError> {
    let is_tls = settings.otlp_endpoint.as_ref().is_some_and(OtlpEndpoint::is_tls);
    let Some(file) = &settings.otlp_tls_ca else {
        return Ok(is_tls.then(|| ClientTlsConfig::new().with_enabled_roots()));
    };
    if !is_tls {
        return Err(OtlpError::Plain);
    }
    let pem = fs::read(file).map_err(|source| OtlpError::Read { file: file.clone(), source })?;
    let mut certificates = CertificateDer::pem_slice_iter(&pem);
    // Without any, nobody would be trusted, and that would be told with every connection.
    if !matches!(certificates.next(), Some(Ok(_))) {
        return Err(OtlpError::NoCertificate(file.clone()));
    }
    Ok(Some(ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem))))
}

/// Sends the metrics to the collector, now and then; `None` if there is none, or never. Needs a runtime.
pub(super) fn pushed(settings: &OtlpSettings) -> Result<Option<PeriodicReader<Pushed>>, OtlpError> {
    // A mistake is one, also where nothing is sent.
    let tls = tls(settings)?;
    let interval = settings.otlp_metrics_interval;
    let Some(endpoint) = &settings.otlp_endpoint else { return Ok(None) };
    if interval.is_zero() {
        return Ok(None);
    }
    let mut exporter =
        MetricExporter::builder().with_tonic().with_endpoint(endpoint.uri().to_string());
    if let Some(tls) = tls {
        exporter = exporter.with_tls_config(tls);
    }
    let exporter = exporter.with_temporality(Temporality::Cumulative).build()?;
    let pushed = Pushed { exporter, fails: AtomicBool::new(false) };
    Ok(Some(PeriodicReader::builder(pushed).with_interval(interval).build()))
}

/// Tells once when the collector cannot be reached, and when it can again.
#[derive(Debug)]
pub(super) struct Pushed {
    exporter: MetricExporter,
    fails: AtomicBool,
}

impl PushMetricExporter for Pushed {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        let exported = self.exporter.export(metrics).await;
        let failed = self.fails.swap(exported.is_err(), Ordering::Relaxed);
        match (&exported, failed) {
            (Err(error), false) => {
                tracing::warn!(%error, "metrics cannot be sent to the collector");
            }
            (Ok(()), true) => tracing::info!("metrics are sent to the collector again"),
            (Err(_), true) | (Ok(()), false) => {}
        }
        exported
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn temporality(&self) -> Temporality {
        self.exporter.temporality()
    }
}
