//! The admin call that reports the status of the server.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use arc_swap::ArcSwapOption;
use sluicegate_proto::sluicegate::admin::v1 as wire;
use sluicegate_store::{Stack, redis::NodeStatus};

use crate::{
    grpc::InFlight,
    limits::{RejectedFiles, Snapshot},
};

/// The sources of the status, beside the rules and the store.
pub(crate) struct StatusSources {
    /// The time at which the server was started.
    pub(crate) started_at: Instant,
    /// Whether health is SERVING.
    pub(crate) serving: Arc<AtomicBool>,
    /// Changed limits files that were rejected.
    pub(crate) rejected: Arc<ArcSwapOption<RejectedFiles>>,
    /// Requests in flight.
    pub(crate) in_flight: InFlight,
    /// The most counters in memory.
    pub(crate) counters_max: usize,
}

pub(super) fn status(
    sources: &StatusSources,
    snapshot: &Snapshot,
    store: &Stack,
) -> wire::GetStatusResponse {
    wire::GetStatusResponse {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        uptime: sources.started_at.elapsed().try_into().ok(),
        serving: sources.serving.load(Ordering::Relaxed),
        config: Some(config(sources, snapshot)),
        store: Some(wire::StoreStatus {
            kind: store.kind().to_owned(),
            degraded: store.is_degraded(),
            redis: store.as_redis().map_or_else(Vec::new, |redis| {
                redis.status().into_iter().map(redis_server).collect()
            }),
            memory_counters: store.counters_in_memory() as u64,
            memory_counters_max: sources.counters_max as u64,
            deny_cache_refusals: store.deny_cache_refusals() as u64,
        }),
        in_flight: sources.in_flight.current() as u64,
        in_flight_max: sources.in_flight.max() as u64,
        live_replicas: store.live_replicas().get(),
    }
}

fn config(sources: &StatusSources, snapshot: &Snapshot) -> wire::ConfigStatus {
    let rejected = sources.rejected.load_full().map(|rejected| wire::RejectedConfig {
        at: Some(rejected.at.into()),
        mistakes: rejected.mistakes.clone(),
        left_out: rejected.left_out as u64,
    });
    wire::ConfigStatus {
        generation: snapshot.generation as u64,
        loaded_at: Some(snapshot.loaded_at.into()),
        rules: snapshot.rules.rules().count() as u64,
        warnings: snapshot.rules.warnings().total() as u64,
        rejected,
    }
}

fn redis_server(node: NodeStatus) -> wire::RedisServerStatus {
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    wire::RedisServerStatus {
        address: node.address.to_string(),
        breaker_open: node.is_breaker_open(),
        complaint: node.error.unwrap_or_default(),
        connections: number(node.connections),
        connections_wanted: number(node.connections_wanted),
    }
}
