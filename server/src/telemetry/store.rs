//! Metrics of the store.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use sluicegate_core::CounterKey;
use sluicegate_store::{
    FallbackStats, Stack,
    redis::{Count, NodeStatus, Redis, Stats},
};

use super::{
    KeyHasher, Metrics,
    catalogue::{self, Counter, Gauge},
};

/// Bounds of the buckets for the duration of a call, in seconds. A usual call takes a fraction of a millisecond.
const CALL_BOUNDS: [f64; 13] =
    [0.000_1, 0.000_2, 0.000_3, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0];

/// Bounds of the buckets for the groups of one call. A call has at most 512 checks, and merged groups share theirs.
const BATCH_BOUNDS: [f64; 11] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0];

/// The interval in which each key with an unusable value is logged once, and the most keys that are logged in it.
const UNUSABLE_INTERVAL: Duration = Duration::from_secs(60);
const UNUSABLE_MAX: usize = 100;

/// Registers the metrics of the store. `counters_max`: the most counters in this process's memory.
pub(crate) fn register(
    metrics: &Metrics,
    store: &Arc<Stack>,
    counters_max: usize,
    hasher: &Arc<KeyHasher>,
) {
    let read = |read: fn(&Stack) -> usize| {
        let store = Arc::clone(store);
        move || read(&store)
    };
    let count = |read: fn(&Stack) -> u64| {
        let store = Arc::clone(store);
        move || read(&store)
    };
    metrics.register_gauge(catalogue::MEMORY_COUNTERS, read(Stack::counters_in_memory));
    metrics.register_gauge(catalogue::MEMORY_COUNTERS_MAX, move || counters_max);
    metrics.register_gauge(catalogue::STORE_DEGRADED, read(|it| usize::from(it.is_degraded())));
    let degraded = Arc::clone(store);
    metrics.register_seconds_counter(catalogue::STORE_DEGRADED_SECONDS, move || {
        degraded.total_degraded_time()
    });
    metrics.register_counter(catalogue::CHECKS_UNANSWERED, count(Stack::checks_unanswered));
    metrics.register_counter(catalogue::REQUESTS_UNANSWERED, count(Stack::requests_unanswered));
    let Some(redis) = store.as_redis() else { return };
    metrics.register_gauge(catalogue::DENY_CACHE_REFUSALS, read(Stack::deny_cache_refusals));
    let replicas = |it: &Stack| usize::try_from(it.live_replicas().get()).unwrap_or(usize::MAX);
    metrics.register_gauge(catalogue::LIVE_REPLICAS, read(replicas));
    metrics.register_counter(catalogue::REFUNDS_FAILED, count(Stack::refunds_failed));
    metrics.register_counter(catalogue::HITS_UNKNOWN, count(Stack::hits_unknown));
    metrics.register_gauge(catalogue::SETTLEMENTS_PENDING, read(Stack::refunds_and_late_calls));
    metrics.register_gauge(catalogue::SPLIT_REQUESTS_SETTLING, read(Stack::multi_slot_in_progress));
    metrics
        .register_counter(catalogue::SPLIT_REQUESTS_ABANDONED, count(Stack::multi_slot_abandoned));
    metrics.register_gauge(catalogue::REDIS_REQUESTS_WAITING, read(Stack::groups_waiting));
    register_fallback(metrics, store);
    let batches = metrics.register_histogram(catalogue::REDIS_BATCH_GROUPS, &BATCH_BOUNDS);
    store.on_batch(move |groups| batches.record(groups as f64));
    let log = UnusableLog { hasher: Arc::clone(hasher), logged: Mutex::new(LoggedKeys::new()) };
    redis.stats().on_unusable(move |key| log.log(&key));
    register_redis(metrics, store, redis);
}

/// Registers the metrics of the local fallback.
fn register_fallback(metrics: &Metrics, store: &Arc<Stack>) {
    let gauge = |metric: Gauge, read: fn(FallbackStats) -> u64| {
        let store = Arc::clone(store);
        metrics.register_gauge(metric, move || {
            usize::try_from(read(store.fallback_stats())).unwrap_or(usize::MAX)
        });
    };
    gauge(catalogue::FALLBACK_COUNTERS, |it| it.counters);
    gauge(catalogue::FALLBACK_HITS_UNDEBITED, |it| it.undebited);
    let count = |metric: Counter, read: fn(FallbackStats) -> u64| {
        let store = Arc::clone(store);
        metrics.register_counter(metric, move || read(store.fallback_stats()));
    };
    count(catalogue::FALLBACK_COUNTERS_EVICTED, |it| it.evicted);
    count(catalogue::FALLBACK_CHECKS_KNOWN, |it| it.found);
    count(catalogue::FALLBACK_CHECKS_UNKNOWN, |it| it.missed);
    count(catalogue::FALLBACK_HITS_DEBITED, |it| it.debited);
    count(catalogue::FALLBACK_HITS_UNKNOWN, |it| it.unknown);
    count(catalogue::FALLBACK_HITS_DROPPED, |it| it.dropped);
}

/// Logs keys of counters with values that cannot be their states.
struct UnusableLog {
    hasher: Arc<KeyHasher>,
    logged: Mutex<LoggedKeys>,
}

/// The keys that were logged in the current interval.
struct LoggedKeys {
    since: Instant,
    hashes: HashSet<String>,
}

impl LoggedKeys {
    fn new() -> Self {
        Self { since: Instant::now(), hashes: HashSet::new() }
    }
}

impl UnusableLog {
    fn log(&self, key: &CounterKey) {
        let hash = self.hasher.hash(key.as_bytes());
        let mut logged = self.logged.lock();
        if logged.since.elapsed() >= UNUSABLE_INTERVAL {
            *logged = LoggedKeys::new();
        }
        if logged.hashes.len() < UNUSABLE_MAX && logged.hashes.insert(hash.clone()) {
            tracing::warn!(
                key_hash = hash,
                "a counter's key in Redis holds a value that cannot be its state; the counter counts as unused"
            );
        }
    }
}

/// Registers the metrics of Redis servers and calls.
fn register_redis(metrics: &Metrics, store: &Arc<Stack>, redis: &Redis) {
    let stats = redis.stats();
    let calls = metrics.register_histogram(catalogue::REDIS_CALL_DURATION_SECONDS, &CALL_BOUNDS);
    stats.on_call(move |took| calls.record(took.as_secs_f64()));
    let count = |metric: Counter, read: fn(&Stats) -> &Count| {
        let stats = Arc::clone(stats);
        metrics.register_counter(metric, move || read(&stats).get());
    };
    count(catalogue::REDIS_CALLS, |it| &it.calls);
    count(catalogue::REDIS_CONNECTIONS, |it| &it.connections);
    count(catalogue::REDIS_RECONNECTS, |it| &it.reconnects);
    count(catalogue::REDIS_SCRIPT_LOADS, |it| &it.script_loads);
    count(catalogue::REDIS_REPLIES_REJECTED, |it| &it.replies_rejected);
    count(catalogue::REDIS_REDIRECTIONS_REFUSED, |it| &it.redirections_refused);
    count(catalogue::REDIS_COUNTERS_UNUSABLE, |it| &it.counters_unusable);
    let gauge = |metric: Gauge, read: fn(&NodeStatus) -> Option<u64>| {
        let store = Arc::clone(store);
        metrics.register_labelled_gauge(metric, move |observe| {
            let servers = store.as_redis().map(Redis::status).unwrap_or_default();
            for server in &servers {
                if let Some(value) = read(server) {
                    observe(value, &[&server.address.to_string()]);
                }
            }
        });
    };
    gauge(catalogue::REDIS_CONNECTIONS_OPEN, |it| u64::try_from(it.connections).ok());
    gauge(catalogue::REDIS_BREAKER_OPEN, |it| Some(u64::from(it.is_breaker_open())));
    gauge(catalogue::REDIS_MEMORY_USED_BYTES, |it| Some(it.info?.memory_used));
    gauge(catalogue::REDIS_MEMORY_MAX_BYTES, |it| Some(it.info?.memory_max));
    gauge(catalogue::REDIS_KEYS, |it| Some(it.info?.keys));
    gauge(catalogue::REDIS_CLIENTS, |it| it.info?.clients);
    gauge(catalogue::REDIS_CLIENTS_MAX, |it| it.info?.clients_max);
    let store = Arc::clone(store);
    metrics.register_labelled_seconds_counter(catalogue::REDIS_CPU, move |observe| {
        for server in store.as_redis().map(Redis::status).unwrap_or_default() {
            if let Some(cpu) = server.info.and_then(|it| it.cpu) {
                observe(cpu.as_secs_f64(), &[&server.address.to_string()]);
            }
        }
    });
}
