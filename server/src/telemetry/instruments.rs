//! Makes instruments from the catalogue's entries, and shows them: to Prometheus when it asks, and to a collector
//! now and then.

use opentelemetry::{
    KeyValue,
    metrics::{Histogram as Recorder, Meter, MeterProvider as _},
};
use opentelemetry_sdk::{
    Resource,
    metrics::{Instrument, PeriodicReader, SdkMeterProvider, Stream},
};
use prometheus::{Encoder, Registry, TextEncoder};
use sluicegate_proto::text::printable;
use thiserror::Error;

use super::{
    catalogue::{Counter, Gauge, Histogram, Metric},
    otlp::OtlpError,
    push::Pushed,
};

/// The most series of one metric. Rules are configuration, so this bounds a mistake, not traffic.
pub(crate) const SERIES_MAX: usize = 1_000_000;

/// Why the metrics cannot be set up or shown.
#[derive(Debug, Error)]
pub enum MetricsError {
    /// The exporter could not be made.
    #[error("cannot set up metrics: {0}")]
    Exporter(#[from] opentelemetry_sdk::error::OTelSdkError),
    /// They cannot be sent to a collector.
    #[error(transparent)]
    Otlp(#[from] OtlpError),
    /// The text could not be written.
    #[error("cannot render metrics: {0}")]
    Render(#[from] prometheus::Error),
}

/// Takes values with their labels, in the order of the metric's entry; labels that are left out are not there.
pub(super) type Show<'a, T> = &'a dyn Fn(T, &[&str]);

/// The instruments of one process.
pub(super) struct Instruments {
    registry: Registry,
    meter: Meter,
    provider: SdkMeterProvider,
}

impl Instruments {
    /// None yet. What is made later is also `pushed`, if it is given.
    pub(super) fn new(
        resource: Resource,
        pushed: Option<PeriodicReader<Pushed>>,
    ) -> Result<Self, MetricsError> {
        let registry = Registry::new();
        let exporter = opentelemetry_prometheus::exporter()
            .with_registry(registry.clone())
            .scope_info_enabled(false)
            .without_target_info()
            // The names are whole.
            .without_units()
            .without_counter_suffixes()
            .build()?;
        let series =
            |_: &Instrument| Stream::builder().with_cardinality_limit(SERIES_MAX).build().ok();
        let mut provider = SdkMeterProvider::builder()
            .with_resource(resource)
            .with_reader(exporter)
            .with_view(series);
        if let Some(pushed) = pushed {
            provider = provider.with_reader(pushed);
        }
        let provider = provider.build();
        Ok(Self { registry, meter: provider.meter("sluicegate"), provider })
    }

    /// The metrics in Prometheus' text format.
    pub(super) fn render(&self) -> Result<Vec<u8>, MetricsError> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }

    /// Pushes what there is to push, and ends. Blocks meanwhile.
    pub(super) fn end(&self) {
        // Whether it was pushed has been told.
        let _pushed = self.provider.shutdown();
    }

    /// What takes values that are spread over buckets with these upper bounds.
    pub(super) fn histogram(&self, metric: Histogram, bounds: &[f64]) -> Recorder<f64> {
        self.meter
            .f64_histogram(metric.name)
            .with_description(metric.help)
            .with_unit(metric.unit())
            .with_boundaries(bounds.to_vec())
            .build()
    }

    /// Shows numbers that only grow, by label.
    pub(super) fn counts(
        &self,
        metric: Counter,
        read: impl Fn(Show<'_, u64>) + Send + Sync + 'static,
    ) {
        let _registered = self
            .meter
            .u64_observable_counter(metric.name)
            .with_description(metric.help)
            .with_unit(metric.unit())
            .with_callback(move |observer| {
                read(&|value, labels| observer.observe(value, &labelled(&metric, labels)));
            })
            .build();
    }

    /// Shows a time that only grows, in seconds, as long as there is one.
    pub(super) fn seconds_count(
        &self,
        metric: Counter,
        read: impl Fn() -> Option<f64> + Send + Sync + 'static,
    ) {
        let _registered = self
            .meter
            .f64_observable_counter(metric.name)
            .with_description(metric.help)
            .with_unit(metric.unit())
            .with_callback(move |observer| {
                if let Some(value) = read() {
                    observer.observe(value, &[]);
                }
            })
            .build();
    }

    /// Shows numbers that go up and down, by label.
    pub(super) fn gauges(
        &self,
        metric: Gauge,
        read: impl Fn(Show<'_, u64>) + Send + Sync + 'static,
    ) {
        let _registered = self
            .meter
            .u64_observable_gauge(metric.name)
            .with_description(metric.help)
            .with_unit(metric.unit())
            .with_callback(move |observer| {
                read(&|value, labels| observer.observe(value, &labelled(&metric, labels)));
            })
            .build();
    }

    /// Shows a time in seconds, as long as there is one.
    pub(super) fn seconds(
        &self,
        metric: Gauge,
        read: impl Fn() -> Option<f64> + Send + Sync + 'static,
    ) {
        let _registered = self
            .meter
            .f64_observable_gauge(metric.name)
            .with_description(metric.help)
            .with_unit(metric.unit())
            .with_callback(move |observer| {
                if let Some(value) = read() {
                    observer.observe(value, &[]);
                }
            })
            .build();
    }
}

fn labelled(metric: &Metric, values: &[&str]) -> Vec<KeyValue> {
    let labels = metric.labels.iter().zip(values);
    labels.map(|(label, value)| KeyValue::new(label.name, printable(value).into_owned())).collect()
}
