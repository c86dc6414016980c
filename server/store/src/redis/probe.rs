//! Finds out whether a server that refused something does what it is asked again, without a request: where health
//! requires the store, there may be none.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;

use super::{
    failure::NoAnswer,
    node::Node,
    slots::{SLOTS, key_slot},
    topology::Topology,
};

/// How often a server that refuses is asked: more often than it takes for answers without a write to count as consent.
const INTERVAL: Duration = Duration::from_millis(500);

/// Milliseconds after which what was written is gone.
const LIFE: &str = "1";

/// Asks until it is cancelled.
pub(super) async fn watch(topology: Arc<Topology>, prefix: Box<[u8]>) {
    loop {
        tokio::time::sleep(INTERVAL).await;
        let map = topology.map();
        let refusing = map.nodes().iter().enumerate().filter(|(_, node)| node.refuses());
        let probes = refusing.filter_map(|(position, node)| {
            let is_its = |key: &Vec<u8>| {
                usize::from(map.position(if map.is_single() { 0 } else { key_slot(key) }))
                    == position
            };
            let key = keys(&prefix).find(is_its)?;
            Some(probe(node, key, &topology))
        });
        join_all(probes).await;
    }
}

/// Keys in as many slots as there are, about.
fn keys(prefix: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    (0..SLOTS).map(move |number| [prefix, format!("s1:probe:{number}").as_bytes()].concat())
}

/// Writes what is gone at once.
async fn probe(node: &Node, key: Vec<u8>, topology: &Arc<Topology>) {
    let fitness = Arc::downgrade(topology);
    let words = [key, b"1".to_vec(), b"PX".to_vec(), LIFE.into()];
    match node.command("SET", &words, &fitness).await {
        Ok(_) => node.content(&fitness),
        Err(NoAnswer::Because(why)) => node.complain(&why, &fitness),
        Err(NoAnswer::Elsewhere(_) | NoAnswer::Unknown(_)) => {}
    }
}
