//! Exports spans to the collector, and logs when exports begin to fail or to succeed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use opentelemetry::trace::SpanKind;
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{SpanData, SpanExporter as Export},
};

use crate::telemetry::count::Count;

/// Counts of sampled requests.
#[derive(Debug, Default)]
pub(super) struct ExportCounts {
    pub(super) traced: Count,
    pub(super) sent: Count,
}

/// An exporter that logs when an export fails after a success, and when it succeeds after a failure.
#[derive(Debug)]
pub(super) struct LoggingExporter {
    pub(super) exporter: SpanExporter,
    pub(super) is_failing: AtomicBool,
    pub(super) counts: Arc<ExportCounts>,
}

impl Export for LoggingExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let requests = batch.iter().filter(|span| span.span_kind == SpanKind::Server).count();
        let exported = self.exporter.export(batch).await;
        if exported.is_ok() {
            self.counts.sent.add(u64::try_from(requests).unwrap_or(u64::MAX));
        }
        match (&exported, self.is_failing.swap(exported.is_err(), Ordering::Relaxed)) {
            (Err(error), false) => tracing::warn!(%error, "traces cannot be sent to the collector"),
            (Ok(()), true) => tracing::info!("traces are sent to the collector again"),
            (Err(_), true) | (Ok(()), false) => {}
        }
        exported
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
