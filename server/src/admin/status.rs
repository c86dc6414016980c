//! How the server does.

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
    limits::{Rejected, Snapshot},
};

/// What is known of the server beside its rules and its store.
pub(crate) struct StatusSources {
    /// When it was started.
    pub(crate) began: Instant,
    /// Whether health says SERVING.
    pub(crate) serving: Arc<AtomicBool>,
    /// Files that are not in force because they are bad.
    pub(crate) rejected: Arc<ArcSwapOption<Rejected>>,
    /// Requests in progress.
    pub(crate) in_flight: InFlight,
    /// The most counters in memory.
    pub(crate) counters_max: usize,
}

pub(super) fn status(
    vitals: &StatusSources,
    snapshot: &Snapshot,
    store: &Stack,
) -> wire::GetStatusResponse {
    wire::GetStatusResponse {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        uptime: vitals.began.elapsed().try_into().ok(),
        serving: vitals.serving.load(Ordering::Relaxed),
        config: Some(config(vitals, snapshot)),
        store: Some(wire::StoreStatus {
            kind: store.kind().to_owned(),
            degraded: store.is_degraded(),
            redis: store.in_redis().map_or_else(Vec::new, |redis| {
                redis.status().into_iter().map(redis_server).collect()
            }),
            memory_counters: store.counters() as u64,
            memory_counters_max: vitals.counters_max as u64,
            deny_cache_refusals: store.refusals() as u64,
        }),
        in_flight: vitals.in_flight.current() as u64,
        in_flight_max: vitals.in_flight.max() as u64,
        live_replicas: store.replicas().get(),
    }
}

fn config(vitals: &StatusSources, snapshot: &Snapshot) -> wire::ConfigStatus {
    let rejected = vitals.rejected.load_full().map(|rejected| wire::RejectedConfig {
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
        complaint: node.complaint.unwrap_or_default(),
        connections: number(node.connections),
        connections_wanted: number(node.connections_wanted),
    }
}
