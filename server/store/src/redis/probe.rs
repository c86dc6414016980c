//! Probes whether a server that rejected commands accepts them again. Requests cannot find out: if the health check
//! requires the store, there may be no requests.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;

use super::{
    call_error::CommandError,
    node::Node,
    slots::{SLOTS, key_slot},
    topology::Topology,
};

/// Interval of probes. Shorter than `HEALTHY_AFTER`, so that a server that rejects the probe's write stays unhealthy
/// even if it replies to calls that only read.
const WRITE_PROBE_INTERVAL: Duration = Duration::from_millis(500);

/// Expiry of the key that a probe writes, in milliseconds.
const KEY_LIFETIME: &str = "1";

/// Probes until cancelled.
pub(super) async fn run(topology: Arc<Topology>, prefix: Box<[u8]>) {
    loop {
        tokio::time::sleep(WRITE_PROBE_INTERVAL).await;
        let map = topology.slot_map();
        let rejecting = map.nodes().iter().enumerate().filter(|(_, node)| node.rejects_commands());
        let probes = rejecting.filter_map(|(position, node)| {
            let is_on_node = |key: &Vec<u8>| {
                usize::from(map.owner_position(if map.is_single() { 0 } else { key_slot(key) }))
                    == position
            };
            let key = keys(&prefix).find(is_on_node)?;
            Some(probe(node, key, &topology))
        });
        join_all(probes).await;
    }
}

/// Keys that cover about all slots.
fn keys(prefix: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    (0..SLOTS).map(move |number| [prefix, format!("s1:probe:{number}").as_bytes()].concat())
}

/// Writes a key that expires at once.
async fn probe(node: &Node, key: Vec<u8>, topology: &Arc<Topology>) {
    let topology_handle = Arc::downgrade(topology);
    let words = [key, b"1".to_vec(), b"PX".to_vec(), KEY_LIFETIME.into()];
    match node.run_command("SET", &words, &topology_handle).await {
        Ok(_) => node.mark_healthy(&topology_handle),
        Err(CommandError::NotRun(why)) => node.mark_unhealthy(&why, &topology_handle),
        Err(CommandError::SlotMoved(_) | CommandError::Unknown(_)) => {}
    }
}
