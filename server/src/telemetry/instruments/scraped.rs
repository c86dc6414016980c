//! Metrics that are read on each scrape.

use std::{cell::RefCell, collections::BTreeMap};

use prometheus::proto::{Counter, Gauge, LabelPair, Metric as Sample, MetricFamily, MetricType};
use sluicegate_proto::text::printable;

use crate::telemetry::catalogue::{Kind, Metric};

/// Called with a value and its label values, in the order of the catalogue's entry. A series has no labels beyond those
/// passed.
pub(crate) type Observe<'a, T> = &'a dyn Fn(T, &[&str]);

/// Reads the values of a metric.
type Read = dyn Fn(Observe<'_, f64>) + Send + Sync;

/// Names and values of the labels of a series, sorted by name.
type Labels = Vec<(&'static str, String)>;

/// A metric, and the function that reads its values.
pub(super) struct ScrapedMetric {
    metric: Metric,
    read: Box<Read>,
}

impl ScrapedMetric {
    pub(super) fn new(
        metric: Metric,
        read: impl Fn(Observe<'_, f64>) + Send + Sync + 'static,
    ) -> Self {
        Self { metric, read: Box::new(read) }
    }

    /// All series, sorted by labels; `None` if there are none. Counts with the same labels, for example of two rules
    /// with the same path, are added up.
    pub(super) fn family(&self) -> Option<MetricFamily> {
        let is_counter = self.metric.kind == Kind::Counter;
        let series = RefCell::new(BTreeMap::<Labels, f64>::new());
        (self.read)(&|value, labels| {
            let mut series = series.borrow_mut();
            let sum = series.entry(self.labels(labels)).or_default();
            *sum = if is_counter { *sum + value } else { value };
        });
        let samples = series.into_inner().into_iter().map(|(labels, value)| {
            let mut sample = Sample::from_label(labels.into_iter().map(pair).collect());
            if is_counter {
                let mut counter = Counter::default();
                counter.set_value(value);
                sample.set_counter(counter);
            } else {
                let mut gauge = Gauge::default();
                gauge.set_value(value);
                sample.set_gauge(gauge);
            }
            sample
        });
        let samples: Vec<_> = samples.collect();
        if samples.is_empty() {
            return None;
        }
        let mut family = MetricFamily::default();
        family.set_name(self.metric.name.to_owned());
        family.set_help(self.metric.help.to_owned());
        family.set_field_type(if is_counter { MetricType::COUNTER } else { MetricType::GAUGE });
        family.set_metric(samples);
        Some(family)
    }

    fn labels(&self, values: &[&str]) -> Labels {
        let labels = self.metric.labels.iter().zip(values);
        let mut labels: Labels =
            labels.map(|(label, value)| (label.name, printable(value).into_owned())).collect();
        labels.sort_unstable_by_key(|(name, _)| *name);
        labels
    }
}

fn pair((name, value): (&'static str, String)) -> LabelPair {
    let mut pair = LabelPair::default();
    pair.set_name(name.to_owned());
    pair.set_value(value);
    pair
}

#[cfg(test)]
mod tests {
    use prometheus::TextEncoder;

    use super::*;
    use crate::telemetry::catalogue;

    fn text(metric: Metric, read: impl Fn(Observe<'_, f64>) + Send + Sync + 'static) -> String {
        let family = ScrapedMetric::new(metric, read).family();
        TextEncoder::new().encode_to_string(&Vec::from_iter(family)).unwrap()
    }

    #[test]
    fn series_are_sorted_and_equal_ones_are_added_up() {
        let counts = text(*catalogue::DECISIONS, |observe| {
            observe(1.0, &["b", "rule", "ok", "store"]);
            observe(2.0, &["a", "rule", "ok", "store"]);
            observe(3.0, &["b", "rule", "ok", "store"]);
        });
        let name = catalogue::DECISIONS.name;
        let series = |domain: &str, value: u32| {
            format!(
                "{name}{{code=\"ok\",domain=\"{domain}\",rule=\"rule\",source=\"store\"}} {value}\n"
            )
        };
        let help = catalogue::DECISIONS.help;
        let head = format!("# HELP {name} {help}\n# TYPE {name} counter\n");
        assert_eq!(counts, head + &series("a", 2) + &series("b", 4));
        let gauge = text(*catalogue::MEMORY_COUNTERS, |observe| {
            observe(1.0, &[]);
            observe(2.0, &[]);
        });
        assert!(gauge.ends_with(&format!("{} 2\n", catalogue::MEMORY_COUNTERS.name)), "{gauge}");
    }

    #[test]
    fn a_metric_without_series_is_omitted() {
        assert_eq!(text(*catalogue::DECISIONS, |_| {}), "");
    }
}
