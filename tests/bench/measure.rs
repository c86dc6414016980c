//! Measures the cost of a load on a server.

use std::{sync::Arc, time::Duration};

use crate::{
    generator::{self, End},
    load::{ALLOWED, FLOODED, Load, REFUSED, Requests, Shape},
    metrics::Metrics,
    variant::{Server, Stores},
};

/// The cost of a load.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sample {
    /// Requests a second.
    pub(crate) rate: f64,
    /// Median latency, in µs.
    pub(crate) p50: f64,
    /// 99th percentile of latency, in µs.
    pub(crate) p99: f64,
    /// CPU of the server per request, in µs.
    pub(crate) cpu: f64,
    /// CPU of Redis per counter, in µs; zero without Redis.
    pub(crate) redis_cpu: f64,
    /// Scripts called per request.
    pub(crate) calls: f64,
    /// CPU of the load generator per request, in µs.
    pub(crate) generator_cpu: f64,
}

/// Measures a load on a server for `span`.
///
/// # Panics
/// The server's metrics report other decisions than the load expects.
pub(crate) async fn measure(
    server: &Server,
    stores: &Stores,
    load: &Load,
    requests: &Arc<Requests>,
    span: Duration,
) -> Sample {
    let before = server.metrics().await;
    let (cpu, redis_cpu) = (server.cpu(), stores.cpu(server.variant));
    let driven = generator::drive(server.address(), load.shape, requests, End::After(span)).await;
    let (cpu, redis_cpu) = (server.cpu() - cpu, stores.cpu(server.variant) - redis_cpu);
    let mut calls = 0;
    if let (Some(before), Some(after)) = (before, server.metrics().await) {
        check(load, driven.allowed, driven.refused, &before, &after);
        calls = after.since(&before, "sluicegate_redis_calls_total", &[]);
    }
    let requests = driven.requests();
    let percentile = |quantile| number(driven.latency.value_at_quantile(quantile)) / 1e3;
    Sample {
        rate: number(requests) / driven.elapsed.as_secs_f64(),
        p50: percentile(0.5),
        p99: percentile(0.99),
        cpu: micros(cpu) / number(requests),
        redis_cpu: micros(redis_cpu) / number(requests * chain(load)),
        calls: number(calls) / number(requests),
        generator_cpu: micros(driven.cpu) / number(requests),
    }
}

/// Checks the decisions by the server's metrics before and after a load.
///
/// # Panics
/// The store did not allow `allowed` requests, or not `refused` requests were refused.
pub(crate) fn check(load: &Load, allowed: u64, refused: u64, before: &Metrics, after: &Metrics) {
    let decided = |labels: &[_]| after.since(before, "sluicegate_decisions_total", labels);
    let by_store = decided(&[("domain", ALLOWED), ("code", "ok"), ("source", "store")]);
    assert_eq!(by_store, allowed * chain(load), "{load:?}: decisions to allow");
    let over_limit = decided(&[("domain", REFUSED), ("code", "over_limit")]);
    assert_eq!(over_limit, refused, "{load:?}: decisions to refuse");
    assert_eq!(decided(&[]), (allowed + refused) * chain(load), "{load:?}: decisions");
}

/// Sends every request once, with the tenants of the loads.
pub(crate) async fn warm_up(server: &Server, tenants: usize) {
    let all = Arc::new(Requests::all(tenants));
    let end = End::Requests(all.order.len());
    // One connection, so that each is sent once.
    let shape = Shape { connections: 1, ..Shape::BUSY };
    generator::drive(server.address(), shape, &all, end).await;
}

/// Allocations per request of a server with the counting allocator, over `count` requests.
pub(crate) async fn allocations(
    server: &Server,
    load: &Load,
    requests: &Arc<Requests>,
    count: usize,
) -> f64 {
    let before = server.allocations().await;
    let end = End::Requests(count);
    let driven = generator::drive(server.address(), load.shape, requests, end).await;
    number(server.allocations().await - before) / number(driven.requests())
}

/// Script calls per refused request, while one tenant exceeds its limit per minute by far for `span`.
///
/// # Panics
/// Fewer than nine of ten requests are refused.
pub(crate) async fn flood(server: &Server, span: Duration) -> f64 {
    let requests = Arc::new(Requests::flood());
    let before = server.metrics().await.unwrap();
    let driven = generator::drive(server.address(), Shape::BUSY, &requests, End::After(span)).await;
    let after = server.metrics().await.unwrap();
    let refused = [("domain", FLOODED), ("code", "over_limit")];
    let refused = after.since(&before, "sluicegate_decisions_total", &refused);
    assert!(refused * 10 > driven.requests() * 9, "{refused} of {}", driven.requests());
    number(after.since(&before, "sluicegate_redis_calls_total", &[])) / number(refused)
}

fn chain(load: &Load) -> u64 {
    load.chain.try_into().unwrap()
}

/// A duration in µs.
pub(crate) fn micros(span: Duration) -> f64 {
    span.as_secs_f64() * 1e6
}

/// Converts a count for divisions.
#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
pub(crate) const fn number(count: u64) -> f64 {
    count as f64
}
