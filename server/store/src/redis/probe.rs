//! Probes whether a server that rejected commands accepts them again. Requests cannot find out: if the health check
//! requires the store, there may be no requests.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;

use super::{
    failure::CommandError,
    node::Node,
    slots::{SLOTS, key_slot},
    topology::Topology,
};

/// Interval of probes. Shorter than `HEALTHY_AFTER` of the servers, so that replies to calls without a write do not
/// mark a server healthy that rejects the probe's write.
const INTERVAL: Duration = Duration::from_millis(500);

/// Expiry of the key that a probe writes, in milliseconds.
const LIFE: &str = "1";

/// Probes until cancelled.
pub(super) async fn watch(topology: Arc<Topology>, prefix: Box<[u8]>) {
    loop {
        tokio::time::sleep(INTERVAL).await;
        let map = topology.map();
        let rejecting = map.nodes().iter().enumerate().filter(|(_, node)| node.rejects_commands());
        let probes = rejecting.filter_map(|(position, node)| {
            let is_on_node = |key: &Vec<u8>| {
                usize::from(map.position(if map.is_single() { 0 } else { key_slot(key) }))
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
    let events = Arc::downgrade(topology);
    let words = [key, b"1".to_vec(), b"PX".to_vec(), LIFE.into()];
    match node.command("SET", &words, &events).await {
        Ok(_) => node.mark_healthy(&events),
        Err(CommandError::NotRun(why)) => node.mark_unhealthy(&why, &events),
        Err(CommandError::SlotMoved(_) | CommandError::Unknown(_)) => {}
    }
}
