//! Connection to an OpenTelemetry collector, and the resource attributes of this process.

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
    /// The address or the certificates cannot be used.
    #[error("cannot send to the collector")]
    Connection(#[from] tonic::transport::Error),
}

/// What names this process to collectors. `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_SERVICE_NAME` add to it, and win.
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
/// The file of authorities cannot be used.
pub(crate) fn check(settings: &OtlpSettings) -> Result<(), OtlpError> {
    tls(settings).map(|_| ())
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
    let pem = sluicegate_files::read(file, sluicegate_files::PEM_BYTES_MAX)
        .map_err(|source| OtlpError::Read { file: file.clone(), source })?;
    let mut certificates = CertificateDer::pem_slice_iter(&pem);
    // Without any, no collector would be trusted, and each connection would report it.
    if !matches!(certificates.next(), Some(Ok(_))) {
        return Err(OtlpError::NoCertificate(file.clone()));
    }
    Ok(Some(ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem))))
}
