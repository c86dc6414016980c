//! Injects the faults of the schedule.

use std::time::Duration;

use sluicegate_tests::Cluster;

use crate::{
    record::Record,
    replicas::Replicas,
    schedule::{Event, RedisFault, ReplicaFault},
    traffic::Counter,
};

/// Injects the faults of Redis one after the other, until the end of the run.
pub(crate) async fn of_redis(
    cluster: &mut Cluster,
    events: Vec<Event<RedisFault>>,
    span: Duration,
    record: &Record,
) {
    for Event { at, fault } in events {
        record.until(at).await;
        let began = record.now();
        if began >= span {
            return;
        }
        assert_none_failed(cluster);
        let happened = match fault {
            RedisFault::FailOver { node } => {
                let place = node % cluster.nodes.len();
                cluster.fail_over(place).await;
                format!("Redis {place} took over from its primary")
            }
            RedisFault::Pause { node, pause } => self::pause(cluster, node, pause).await,
            RedisFault::Move { counter, to, pause } => {
                move_slot(cluster, &counter, to, pause).await
            }
            RedisFault::FlushScripts { node } => {
                let place = node % cluster.nodes.len();
                cluster.nodes[place].query(&["SCRIPT", "FLUSH"]).await;
                format!("Redis {place} forgot its scripts")
            }
        };
        let ended = record.now();
        record.note(|entries| entries.events.push((began, ended, happened)));
    }
}

/// Asserts that no node was marked as failed, which may lose writes. If one was, the machine was too slow for the run.
pub(crate) fn assert_none_failed(cluster: &Cluster) {
    for node in &cluster.nodes {
        let log = node.log();
        assert!(
            !log.contains("as failing"),
            "too slow a machine: a node was taken for dead\n{log}"
        );
    }
}

async fn pause(cluster: &mut Cluster, node: usize, pause: Duration) -> String {
    let place = node % cluster.nodes.len();
    cluster.nodes[place].pause();
    tokio::time::sleep(pause).await;
    cluster.nodes[place].resume();
    format!("Redis {place} paused for {pause:?}")
}

/// Moves the slot of a counter to another primary.
async fn move_slot(
    cluster: &mut Cluster,
    counter: &Counter,
    to: usize,
    pause: Option<(usize, Duration)>,
) -> String {
    let slot = cluster.slot(&counter.tag()).await;
    let from = cluster.primary_of(slot).await;
    let mut others = cluster.primary_places().await;
    others.retain(|place| Some(*place) != from);
    let migration = cluster.migrate_start(slot, others[to % others.len()]).await;
    let mut happened = format!("the slot of [{counter}] moved: {migration:?}");
    if let Some((node, pause)) = pause {
        // One counter of the tenant is on the target, the others are on the source.
        cluster.migrate_keys(migration, 1).await;
        happened += &format!(", during the move {}", self::pause(cluster, node, pause).await);
    }
    cluster.migrate_end(migration).await;
    cluster.until_agreed().await;
    happened
}

/// Injects the faults of replicas one after the other, until the end of the run.
pub(crate) async fn of_replicas(
    replicas: &mut Replicas,
    events: Vec<Event<ReplicaFault>>,
    span: Duration,
    record: &Record,
) {
    for Event { at, fault } in events {
        record.until(at).await;
        let began = record.now();
        if began >= span {
            return;
        }
        let happened = match fault {
            ReplicaFault::Kill { replica, delay, absence } => {
                replicas.kill(replica, delay, absence, record).await
            }
            ReplicaFault::Pause { replica, pause } => replicas.pause(replica, pause).await,
        };
        let ended = record.now();
        record.note(|entries| entries.events.push((began, ended, happened)));
    }
}
