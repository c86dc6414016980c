//! TLS to an OpenTelemetry collector, and the resource attributes of this process.

use std::{env, io, path::PathBuf, sync::LazyLock};

use opentelemetry::KeyValue;
use opentelemetry_otlp::{
    ExporterBuildError,
    tonic_types::transport::{Certificate, ClientTlsConfig},
};
use opentelemetry_sdk::{
    Resource,
    resource::{EnvResourceDetector, TelemetryResourceDetector},
    trace::{IdGenerator as _, RandomIdGenerator},
};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use thiserror::Error;

use crate::settings::{OtlpEndpoint, OtlpSettings};

/// Why the export to a collector cannot be set up.
#[derive(Debug, Error)]
pub enum OtlpError {
    /// The file of CA certificates cannot be read.
    #[error("--otlp-tls-ca: cannot read {}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file of CA certificates has no certificate.
    #[error("--otlp-tls-ca: no certificate can be read from {}", .0.display())]
    NoCertificate(PathBuf),
    /// There are CA certificates, and the endpoint does not use TLS.
    #[error("--otlp-tls-ca: --otlp-endpoint does not ask for TLS; use https://")]
    CaWithoutTls,
    /// The exporter cannot be created.
    #[error("cannot send to the collector")]
    Exporter(#[from] ExporterBuildError),
    /// The address or the certificates cannot be used.
    #[error("cannot send to the collector")]
    Connection(#[from] tonic::transport::Error),
}

/// The resource attributes of this process. `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_SERVICE_NAME` add and override
/// attributes.
pub(crate) fn resource() -> Resource {
    static INSTANCE: LazyLock<String> =
        LazyLock::new(|| RandomIdGenerator::default().new_trace_id().to_string());
    let own = Resource::builder_empty()
        .with_service_name("sluicegate")
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_attribute(KeyValue::new("service.instance.id", INSTANCE.as_str()))
        .with_detectors(&[
            Box::new(TelemetryResourceDetector),
            Box::new(EnvResourceDetector::new()),
        ]);
    match env::var("OTEL_SERVICE_NAME") {
        Ok(name) if !name.is_empty() => own.with_service_name(name).build(),
        Ok(_) | Err(_) => own.build(),
    }
}

/// Checks the settings of the collector.
///
/// # Errors
/// The CA certificates cannot be used.
pub(crate) fn check(settings: &OtlpSettings) -> Result<(), OtlpError> {
    tls(settings).map(|_| ())
}

/// The TLS configuration of connections to the collector; `None` without TLS. A channel keeps its configuration, so a
/// replaced CA file requires a restart.
///
/// # Errors
/// The CA certificates cannot be used.
pub(crate) fn tls(settings: &OtlpSettings) -> Result<Option<ClientTlsConfig>, OtlpError> {
    let is_tls = settings.otlp_endpoint.as_ref().is_some_and(OtlpEndpoint::is_tls);
    let Some(file) = &settings.otlp_tls_ca else {
        return Ok(is_tls.then(|| ClientTlsConfig::new().with_enabled_roots()));
    };
    if !is_tls {
        return Err(OtlpError::CaWithoutTls);
    }
    let pem = sluicegate_files::read(file, sluicegate_files::PEM_BYTES_MAX)
        .map_err(|source| OtlpError::Read { file: file.clone(), source })?;
    let mut certificates = CertificateDer::pem_slice_iter(&pem);
    // Checked here, because without a certificate each connection to the collector would fail.
    if !matches!(certificates.next(), Some(Ok(_))) {
        return Err(OtlpError::NoCertificate(file.clone()));
    }
    Ok(Some(ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem))))
}
