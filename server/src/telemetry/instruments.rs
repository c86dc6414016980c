//! Instruments of the catalogue's entries, for Prometheus on each scrape, and for a collector
//! at intervals.
//!
//! Prometheus gets numbers directly from their counters. The SDK would look up each of them in a table with
//! room for all possible series, and rebuild that table each time.

mod shown;

use std::sync::Arc;

use opentelemetry::{
    KeyValue,
    metrics::{AsyncInstrument, Histogram as SdkHistogram, Meter, MeterProvider as _},
};
use opentelemetry_sdk::{
    Resource,
    metrics::{Instrument, PeriodicReader, SdkMeterProvider, Stream},
};
use parking_lot::Mutex;
use prometheus::{Encoder, Registry, TextEncoder};
use sluicegate_proto::text::printable;
use thiserror::Error;

use self::shown::ScrapedMetric;
pub(crate) use self::shown::Show;
use super::{
    catalogue::{self, Counter, Gauge, Histogram, Metric},
    otlp::OtlpError,
    push::OtlpMetricExporter,
};
use crate::settings::SERIES_MAX;

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

/// The instruments of one process.
pub(super) struct Instruments {
    /// All but histograms.
    shown: Mutex<Vec<Arc<ScrapedMetric>>>,
    /// Histograms.
    registry: Registry,
    scraped: SdkMeterProvider,
    /// Where all of them are pushed to, if they are.
    pushed: Option<SdkMeterProvider>,
}

/// Takes values that are spread over buckets.
#[derive(Clone, Debug)]
pub(crate) struct Recorder {
    scraped: SdkHistogram<f64>,
    pushed: Option<SdkHistogram<f64>>,
}

impl Recorder {
    pub(crate) fn record(&self, value: f64) {
        self.scraped.record(value, &[]);
        if let Some(pushed) = &self.pushed {
            pushed.record(value, &[]);
        }
    }
}

/// Room for all series, where there may be several.
fn stream(instrument: &Instrument) -> Option<Stream> {
    let metric = catalogue::ALL.iter().find(|metric| metric.name == instrument.name())?;
    let stream = Stream::builder().with_cardinality_limit(SERIES_MAX);
    if metric.labels.is_empty() { None } else { stream.build().ok() }
}

fn meter(provider: &SdkMeterProvider) -> Meter {
    provider.meter("sluicegate")
}

impl Instruments {
    /// None yet. What is made later is also `pushed`, if it is given.
    pub(super) fn new(
        resource: &Resource,
        pushed: Option<PeriodicReader<OtlpMetricExporter>>,
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
        let provider = || SdkMeterProvider::builder().with_resource(resource.clone());
        let scraped = provider().with_reader(exporter).build();
        let pushed = pushed.map(|it| provider().with_reader(it).with_view(stream).build());
        Ok(Self { shown: Mutex::default(), registry, scraped, pushed })
    }

    /// The metrics in Prometheus' text format.
    pub(super) fn render(&self) -> Result<Vec<u8>, MetricsError> {
        let shown = self.shown.lock().clone();
        let mut families: Vec<_> = shown.iter().filter_map(|shown| shown.family()).collect();
        families.extend(self.registry.gather());
        families.sort_unstable_by(|one, other| one.name().cmp(other.name()));
        let mut text = Vec::new();
        TextEncoder::new().encode(&families, &mut text)?;
        Ok(text)
    }

    /// Pushes what there is to push, and ends. Blocks meanwhile.
    pub(super) fn end(&self) {
        if let Some(pushed) = &self.pushed {
            // The result of the push was already reported.
            let _pushed = pushed.shutdown();
        }
    }

    /// What takes values that are spread over buckets with these upper bounds.
    pub(super) fn histogram(&self, metric: Histogram, bounds: &[f64]) -> Recorder {
        let histogram = |provider: &SdkMeterProvider| {
            meter(provider)
                .f64_histogram(metric.name)
                .with_description(metric.help)
                .with_unit(metric.unit())
                .with_boundaries(bounds.to_vec())
                .build()
        };
        Recorder { scraped: histogram(&self.scraped), pushed: self.pushed.as_ref().map(histogram) }
    }

    /// Shows numbers that only grow, by label.
    pub(super) fn counts(
        &self,
        metric: Counter,
        read: impl Fn(Show<'_, u64>) + Send + Sync + 'static,
    ) {
        let read = Arc::new(read);
        self.register_whole(*metric, Arc::clone(&read));
        if let Some(pushed) = &self.pushed {
            let _registered = meter(pushed)
                .u64_observable_counter(metric.name)
                .with_description(metric.help)
                .with_unit(metric.unit())
                .with_callback(observe(*metric, read))
                .build();
        }
    }

    /// Shows a time that only grows, in seconds, as long as there is one.
    pub(super) fn seconds_count(
        &self,
        metric: Counter,
        read: impl Fn() -> Option<f64> + Send + Sync + 'static,
    ) {
        let read = Arc::new(read);
        self.register_seconds(*metric, Arc::clone(&read));
        if let Some(pushed) = &self.pushed {
            let _registered = meter(pushed)
                .f64_observable_counter(metric.name)
                .with_description(metric.help)
                .with_unit(metric.unit())
                .with_callback(observe_seconds(read))
                .build();
        }
    }

    /// Shows numbers that go up and down, by label.
    pub(super) fn gauges(
        &self,
        metric: Gauge,
        read: impl Fn(Show<'_, u64>) + Send + Sync + 'static,
    ) {
        let read = Arc::new(read);
        self.register_whole(*metric, Arc::clone(&read));
        if let Some(pushed) = &self.pushed {
            let _registered = meter(pushed)
                .u64_observable_gauge(metric.name)
                .with_description(metric.help)
                .with_unit(metric.unit())
                .with_callback(observe(*metric, read))
                .build();
        }
    }

    /// Shows a time in seconds, as long as there is one.
    pub(super) fn seconds(
        &self,
        metric: Gauge,
        read: impl Fn() -> Option<f64> + Send + Sync + 'static,
    ) {
        let read = Arc::new(read);
        self.register_seconds(*metric, Arc::clone(&read));
        if let Some(pushed) = &self.pushed {
            let _registered = meter(pushed)
                .f64_observable_gauge(metric.name)
                .with_description(metric.help)
                .with_unit(metric.unit())
                .with_callback(observe_seconds(read))
                .build();
        }
    }

    /// Shows whole numbers to Prometheus.
    #[expect(clippy::cast_precision_loss, reason = "Prometheus has no other numbers")]
    fn register_whole(
        &self,
        metric: Metric,
        read: Arc<impl Fn(Show<'_, u64>) + Send + Sync + 'static>,
    ) {
        self.show(metric, move |show| read(&|value, labels| show(value as f64, labels)));
    }

    /// Shows a time to Prometheus.
    fn register_seconds(
        &self,
        metric: Metric,
        read: Arc<impl Fn() -> Option<f64> + Send + Sync + 'static>,
    ) {
        self.show(metric, move |show| {
            if let Some(value) = read() {
                show(value, &[]);
            }
        });
    }

    fn show(&self, metric: Metric, read: impl Fn(Show<'_, f64>) + Send + Sync + 'static) {
        self.shown.lock().push(Arc::new(ScrapedMetric::new(metric, read)));
    }
}

/// Reports integers to the SDK's instrument.
fn observe(
    metric: Metric,
    read: Arc<impl Fn(Show<'_, u64>) + Send + Sync + 'static>,
) -> impl Fn(&dyn AsyncInstrument<u64>) + Send + Sync + 'static {
    move |observer| {
        read(&|value, labels| observer.observe(value, &labelled(&metric, labels)));
    }
}

/// Reports a duration to the SDK's instrument.
fn observe_seconds(
    read: Arc<impl Fn() -> Option<f64> + Send + Sync + 'static>,
) -> impl Fn(&dyn AsyncInstrument<f64>) + Send + Sync + 'static {
    move |observer| {
        if let Some(value) = read() {
            observer.observe(value, &[]);
        }
    }
}

fn labelled(metric: &Metric, values: &[&str]) -> Vec<KeyValue> {
    let labels = metric.labels.iter().zip(values);
    labels.map(|(label, value)| KeyValue::new(label.name, printable(value).into_owned())).collect()
}
