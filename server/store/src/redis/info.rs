//! Polls `INFO` of every server.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;

use super::{
    Reply, Stats,
    node::Node,
    server_info::{ServerInfo, field},
    topology::Topology,
};

/// Interval of polls. All servers are also polled when one of them becomes usable or unusable, and when other servers
/// own the slots of a cluster.
const INFO_INTERVAL: Duration = Duration::from_secs(15);

/// Polls until cancelled.
pub(super) async fn poll(topology: Arc<Topology>, stats: Arc<Stats>, database: u8) {
    loop {
        let map = topology.slot_map();
        join_all(map.nodes().iter().map(|node| poll_node(node, &stats, database))).await;
        let _changed = tokio::time::timeout(INFO_INTERVAL, topology.wait_for_change()).await;
    }
}

/// Polls one server. Without `INFO` permission or without a reply, its [`ServerInfo`] is `None`.
async fn poll_node(node: &Node, stats: &Stats, database: u8) {
    let info = node.query(&[b"INFO".as_slice(), b"memory", b"keyspace", b"cpu", b"clients"]).await;
    let info = info.as_ref().and_then(Reply::as_str);
    if let Some(info) = info {
        let policy = field(info, "maxmemory_policy").unwrap_or("noeviction");
        let bounded = field(info, "maxmemory").is_some_and(|bytes| bytes != "0");
        if bounded && policy != "noeviction" {
            stats.warn_of_eviction(&node.address, policy);
        }
    }
    node.set_info(info.and_then(|info| ServerInfo::read(info, database)));
}
