//! Metrics of the listeners' connections.

use super::{Admission, Capacity, DropReason, ListenerBound};
use crate::telemetry::{
    Metrics,
    catalogue::{self, Gauge},
};

/// Registers the metrics of all listeners.
pub(crate) fn register_metrics(metrics: &Metrics, capacity: &Capacity) {
    let gauge = |metric: Gauge, read: fn(&Admission) -> usize| {
        let capacity = capacity.clone();
        metrics.register_labelled_gauge(metric, move |observe| {
            for (listener, admission) in capacity.listeners() {
                observe(u64::try_from(read(admission)).unwrap_or(u64::MAX), &[listener]);
            }
        });
    };
    gauge(catalogue::CONNECTIONS_OPEN, Admission::open);
    gauge(catalogue::CONNECTIONS_PENDING, Admission::pending);
    gauge(catalogue::CONNECTIONS_MAX, Admission::max);
    let with_request_bounds = capacity.clone();
    metrics.register_labelled_counter(catalogue::REQUEST_BOUNDS_MET, move |observe| {
        let listeners = with_request_bounds.listeners().filter(|(listener, _)| *listener != "grpc");
        for (listener, admission) in listeners {
            for bound in ListenerBound::ALL {
                observe(admission.times_reached(bound), &[listener, bound.label()]);
            }
        }
    });
    let capacity = capacity.clone();
    metrics.register_labelled_counter(catalogue::CONNECTIONS_DROPPED, move |observe| {
        for (listener, admission) in capacity.listeners() {
            for reason in DropReason::ALL {
                observe(admission.dropped(reason), &[listener, reason.label()]);
            }
        }
    });
}
