//! Instruments of the metrics in the catalogue, for Prometheus' scrapes and for the export to a collector.
//!
//! A scrape reads numbers directly from their counters. OpenTelemetry's SDK would look up each number in a table of all
//! possible series, and rebuild that table for each scrape.

mod scraped;

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

pub(crate) use self::scraped::Observe;
use self::scraped::ScrapedMetric;
use super::{
    catalogue::{self, Counter, Gauge, Histogram, Metric},
    otlp::OtlpError,
    push::OtlpMetricExporter,
};
use crate::settings::SERIES_MAX;

/// Why the metrics cannot be set up or rendered.
#[derive(Debug, Error)]
pub enum MetricsError {
    /// The exporter for Prometheus cannot be created.
    #[error("cannot set up metrics: {0}")]
    Exporter(#[from] opentelemetry_sdk::error::OTelSdkError),
    /// The export to a collector cannot be set up.
    #[error(transparent)]
    Otlp(#[from] OtlpError),
    /// The text cannot be rendered.
    #[error("cannot render metrics: {0}")]
    Render(#[from] prometheus::Error),
}

/// The instruments of one process.
pub(super) struct Instruments {
    /// All metrics except histograms, for scrapes.
    scraped: Mutex<Vec<Arc<ScrapedMetric>>>,
    /// Histograms, for scrapes.
    registry: Registry,
    scraped_histograms: SdkMeterProvider,
    /// All metrics, for the export to a collector; `None` without one.
    pushed: Option<SdkMeterProvider>,
}

/// Records values of a histogram.
#[derive(Clone, Debug)]
pub(crate) struct HistogramRecorder {
    scraped: SdkHistogram<f64>,
    pushed: Option<SdkHistogram<f64>>,
}

impl HistogramRecorder {
    pub(crate) fn record(&self, value: f64) {
        self.scraped.record(value, &[]);
        if let Some(pushed) = &self.pushed {
            pushed.record(value, &[]);
        }
    }
}

/// Raises the SDK's bound on the number of series, for metrics with labels.
fn stream(instrument: &Instrument) -> Option<Stream> {
    let metric = catalogue::ALL.iter().find(|metric| metric.name == instrument.name())?;
    let stream = Stream::builder().with_cardinality_limit(SERIES_MAX);
    if metric.labels.is_empty() { None } else { stream.build().ok() }
}

fn meter(provider: &SdkMeterProvider) -> Meter {
    provider.meter("sluicegate")
}

impl Instruments {
    /// No instruments yet. With `pushed`, instruments are also exported to a collector.
    pub(super) fn new(
        resource: &Resource,
        pushed: Option<PeriodicReader<OtlpMetricExporter>>,
    ) -> Result<Self, MetricsError> {
        let registry = Registry::new();
        let exporter = opentelemetry_prometheus::exporter()
            .with_registry(registry.clone())
            .scope_info_enabled(false)
            .without_target_info()
            // The names in the catalogue include units and suffixes.
            .without_units()
            .without_counter_suffixes()
            .build()?;
        let provider = || SdkMeterProvider::builder().with_resource(resource.clone());
        let scraped_histograms = provider().with_reader(exporter).build();
        let pushed = pushed.map(|it| provider().with_reader(it).with_view(stream).build());
        Ok(Self { scraped: Mutex::default(), registry, scraped_histograms, pushed })
    }

    /// The metrics in Prometheus' text format.
    pub(super) fn render(&self) -> Result<Vec<u8>, MetricsError> {
        let scraped = self.scraped.lock().clone();
        let mut families: Vec<_> = scraped.iter().filter_map(|metric| metric.family()).collect();
        families.extend(self.registry.gather());
        families.sort_unstable_by(|one, other| one.name().cmp(other.name()));
        let mut text = Vec::new();
        TextEncoder::new().encode(&families, &mut text)?;
        Ok(text)
    }

    /// Exports the last metrics to the collector, and shuts the export down. Blocks.
    pub(super) fn shut_down(&self) {
        if let Some(pushed) = &self.pushed {
            // The exporter has logged the result.
            let _logged = pushed.shutdown();
        }
    }

    /// Registers a histogram whose buckets have these upper bounds.
    pub(super) fn register_histogram(
        &self,
        metric: Histogram,
        bounds: &[f64],
    ) -> HistogramRecorder {
        let histogram = |provider: &SdkMeterProvider| {
            meter(provider)
                .f64_histogram(metric.name)
                .with_description(metric.help)
                .with_unit(metric.unit())
                .with_boundaries(bounds.to_vec())
                .build()
        };
        let scraped = histogram(&self.scraped_histograms);
        HistogramRecorder { scraped, pushed: self.pushed.as_ref().map(histogram) }
    }

    /// Registers a counter of integers.
    pub(super) fn register_counter(
        &self,
        metric: Counter,
        read: impl Fn(Observe<'_, u64>) + Send + Sync + 'static,
    ) {
        let read = Arc::new(read);
        self.scrape_integers(*metric, Arc::clone(&read));
        if let Some(pushed) = &self.pushed {
            let _registered = meter(pushed)
                .u64_observable_counter(metric.name)
                .with_description(metric.help)
                .with_unit(metric.unit())
                .with_callback(observe(*metric, read))
                .build();
        }
    }

    /// Registers a counter of seconds. It has no series while `read` returns `None`.
    pub(super) fn register_seconds_counter(
        &self,
        metric: Counter,
        read: impl Fn() -> Option<f64> + Send + Sync + 'static,
    ) {
        self.register_labelled_seconds_counter(metric, move |observe| {
            if let Some(value) = read() {
                observe(value, &[]);
            }
        });
    }

    /// Registers a counter of seconds with labels.
    pub(super) fn register_labelled_seconds_counter(
        &self,
        metric: Counter,
        read: impl Fn(Observe<'_, f64>) + Send + Sync + 'static,
    ) {
        let read = Arc::new(read);
        let scraped = Arc::clone(&read);
        self.scrape(*metric, move |observe| scraped(observe));
        if let Some(pushed) = &self.pushed {
            let _registered = meter(pushed)
                .f64_observable_counter(metric.name)
                .with_description(metric.help)
                .with_unit(metric.unit())
                .with_callback(observe(*metric, read))
                .build();
        }
    }

    /// Registers a gauge of integers.
    pub(super) fn register_gauge(
        &self,
        metric: Gauge,
        read: impl Fn(Observe<'_, u64>) + Send + Sync + 'static,
    ) {
        let read = Arc::new(read);
        self.scrape_integers(*metric, Arc::clone(&read));
        if let Some(pushed) = &self.pushed {
            let _registered = meter(pushed)
                .u64_observable_gauge(metric.name)
                .with_description(metric.help)
                .with_unit(metric.unit())
                .with_callback(observe(*metric, read))
                .build();
        }
    }

    /// Registers a gauge of seconds. It has no series while `read` returns `None`.
    pub(super) fn register_seconds_gauge(
        &self,
        metric: Gauge,
        read: impl Fn() -> Option<f64> + Send + Sync + 'static,
    ) {
        let read = Arc::new(read);
        self.scrape_seconds(*metric, Arc::clone(&read));
        if let Some(pushed) = &self.pushed {
            let _registered = meter(pushed)
                .f64_observable_gauge(metric.name)
                .with_description(metric.help)
                .with_unit(metric.unit())
                .with_callback(observe_seconds(read))
                .build();
        }
    }

    /// Adds a metric of integers to the scraped ones.
    #[expect(clippy::cast_precision_loss, reason = "Prometheus has no other numbers")]
    fn scrape_integers(
        &self,
        metric: Metric,
        read: Arc<impl Fn(Observe<'_, u64>) + Send + Sync + 'static>,
    ) {
        self.scrape(metric, move |observe| {
            read(&|value, labels| observe(value as f64, labels));
        });
    }

    /// Adds a metric of seconds to the scraped ones.
    fn scrape_seconds(
        &self,
        metric: Metric,
        read: Arc<impl Fn() -> Option<f64> + Send + Sync + 'static>,
    ) {
        self.scrape(metric, move |observe| {
            if let Some(value) = read() {
                observe(value, &[]);
            }
        });
    }

    fn scrape(&self, metric: Metric, read: impl Fn(Observe<'_, f64>) + Send + Sync + 'static) {
        self.scraped.lock().push(Arc::new(ScrapedMetric::new(metric, read)));
    }
}

/// Reports values to the SDK's instrument.
fn observe<T>(
    metric: Metric,
    read: Arc<impl Fn(Observe<'_, T>) + Send + Sync + 'static>,
) -> impl Fn(&dyn AsyncInstrument<T>) + Send + Sync + 'static {
    move |observer| {
        read(&|value, labels| observer.observe(value, &labelled(&metric, labels)));
    }
}

/// Reports seconds to the SDK's instrument.
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
