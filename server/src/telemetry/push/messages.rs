//! Splits metrics into messages that a collector accepts.

use std::mem;

use opentelemetry_proto::tonic::{
    collector::metrics::v1::ExportMetricsServiceRequest,
    metrics::v1::{Gauge, Metric, NumberDataPoint, Sum, metric::Data},
};
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use prost::Message;

/// An upper bound of the bytes that a nested message needs beside its content: tag, length, and growth of the outer
/// lengths.
const FRAME_BYTES: usize = 16;

/// All metrics, in messages of at most `bytes_max` bytes, unless a single point is larger.
pub(super) fn from_metrics(
    metrics: &ResourceMetrics,
    bytes_max: usize,
) -> Vec<ExportMetricsServiceRequest> {
    split(metrics.into(), bytes_max)
}

fn split(all: ExportMetricsServiceRequest, bytes_max: usize) -> Vec<ExportMetricsServiceRequest> {
    let mut messages = Vec::new();
    for mut resource in all.resource_metrics {
        for mut scope in mem::take(&mut resource.scope_metrics) {
            let metrics = mem::take(&mut scope.metrics);
            let overhead = resource.encoded_len() + scope.encoded_len() + 2 * FRAME_BYTES;
            let room = bytes_max.saturating_sub(overhead);
            let parts = metrics.into_iter().flat_map(|metric| split_metric(metric, room));
            for metrics in pack(parts, room) {
                let mut resource = resource.clone();
                let mut scope = scope.clone();
                scope.metrics = metrics;
                resource.scope_metrics.push(scope);
                messages.push(ExportMetricsServiceRequest { resource_metrics: vec![resource] });
            }
        }
    }
    messages
}

/// A metric, in parts with at most `room` bytes of points each. Histograms have no labels, so they are not split.
fn split_metric(mut metric: Metric, room: usize) -> Vec<Metric> {
    let Some(all) = points(&mut metric).map(mem::take) else { return vec![metric] };
    let overhead = metric.encoded_len() + 2 * FRAME_BYTES;
    let part = |packed| {
        let mut part = metric.clone();
        if let Some(points) = points(&mut part) {
            *points = packed;
        }
        part
    };
    pack(all, room.saturating_sub(overhead)).into_iter().map(part).collect()
}

/// Packs messages in order into lists of at most `room` bytes. A larger message has a list of its own.
fn pack<T: Message>(all: impl IntoIterator<Item = T>, room: usize) -> Vec<Vec<T>> {
    let mut lists: Vec<Vec<T>> = Vec::new();
    let mut used = 0;
    for one in all {
        let bytes = one.encoded_len() + FRAME_BYTES;
        match lists.last_mut() {
            Some(list) if used + bytes <= room => list.push(one),
            Some(_) | None => {
                lists.push(vec![one]);
                used = 0;
            }
        }
        used += bytes;
    }
    lists
}

fn points(metric: &mut Metric) -> Option<&mut Vec<NumberDataPoint>> {
    match &mut metric.data {
        Some(Data::Gauge(Gauge { data_points }) | Data::Sum(Sum { data_points, .. })) => {
            Some(data_points)
        }
        Some(Data::Histogram(_) | Data::ExponentialHistogram(_) | Data::Summary(_)) | None => None,
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::{
        common::v1::KeyValue,
        metrics::v1::{Histogram, ResourceMetrics, ScopeMetrics},
    };

    use super::*;

    fn sum(name: &str, points: usize) -> Metric {
        let point = |number: usize| NumberDataPoint {
            attributes: vec![KeyValue { key: "k".repeat(number % 90), ..KeyValue::default() }],
            time_unix_nano: u64::try_from(number).unwrap(),
            ..NumberDataPoint::default()
        };
        let data_points = (0..points).map(point).collect();
        let data = Data::Sum(Sum { data_points, aggregation_temporality: 2, is_monotonic: true });
        Metric { name: name.to_owned(), data: Some(data), ..Metric::default() }
    }

    fn message(metrics: Vec<Metric>) -> ExportMetricsServiceRequest {
        let scope = ScopeMetrics { metrics, schema_url: "scope".to_owned(), ..Default::default() };
        let resource = ResourceMetrics {
            scope_metrics: vec![scope],
            schema_url: "resource".to_owned(),
            ..Default::default()
        };
        ExportMetricsServiceRequest { resource_metrics: vec![resource] }
    }

    #[test]
    fn messages_contain_all_points_once_and_have_bounded_size() {
        let histogram = Metric {
            name: "h".to_owned(),
            data: Some(Data::Histogram(Histogram::default())),
            ..Metric::default()
        };
        let metrics = vec![sum("a", 3), sum("b", 1_000), histogram, sum("c", 40), sum("d", 1)];
        let all = message(metrics.clone());
        assert_eq!(split(all.clone(), 1 << 20), vec![all.clone()], "a small message is not split");
        for bytes_max in [600, 1_000, 1_001, 4_096, 20_000] {
            let messages = split(all.clone(), bytes_max);
            let mut joined: Vec<Metric> = Vec::new();
            for message in messages {
                assert!(
                    message.encoded_len() <= bytes_max,
                    "{} {bytes_max}",
                    message.encoded_len()
                );
                let [resource] = &message.resource_metrics[..] else { panic!("{message:?}") };
                let [scope] = &resource.scope_metrics[..] else { panic!("{message:?}") };
                assert_eq!((&*resource.schema_url, &*scope.schema_url), ("resource", "scope"));
                for mut part in scope.metrics.clone() {
                    match joined.last_mut().filter(|metric| metric.name == part.name) {
                        Some(metric) => {
                            points(metric).unwrap().append(points(&mut part).unwrap());
                        }
                        None => joined.push(part),
                    }
                }
            }
            assert_eq!(joined, metrics, "{bytes_max}");
        }
    }

    #[test]
    fn a_point_that_is_too_large_has_its_own_message() {
        let messages = split(message(vec![sum("a", 3)]), 0);
        assert_eq!(messages.len(), 3);
    }
}
