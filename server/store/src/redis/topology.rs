//! The topology: the servers, and the slots that each of them owns.
//!
//! A task refreshes it at intervals, and soon after a failure. Every report of a node or sentinel has an epoch. A
//! report with an epoch older than the last known one is ignored while the known owner is up: a primary that was
//! paused, replaced and continued still reports that it is the primary. If the known owner is gone, older epochs apply,
//! because all servers may have been replaced by new ones. For the same reason a connection to a server of a cluster or
//! behind sentinels is used only after a refresh that began after the connection was opened has succeeded. In a
//! cluster, the refresh queries that server after all others with an open connection, so that they can report first
//! which server owns its slots. If no other one reports, its own report suffices: otherwise the only reachable server
//! of a cluster could not be used. It may have been replaced without having detected that yet; what it charges until
//! then is lost, like the writes of any client.

mod sentinels;
mod slot_map;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap, HashSet},
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{
    Address, Deployment, Reply, Stats,
    connection::{ConnectError, Connection, RedisConnectionSettings},
    degraded_timer::DegradedTimer,
    node::{Node, TopologyHandle},
    slots::{self, Claim, ClusterNode, SLOTS},
    sockets::Sockets,
    watched::Watched,
};
use crate::{LogLimit, clock};
use sentinels::Sentinels;
use slot_map::{NO_OWNER, NodeList, Owners, compact};

pub(super) use slot_map::SlotMap;

/// Interval of refreshes that were not requested.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// The shortest interval of refreshes.
const REFRESH_PAUSE: Duration = Duration::from_millis(50);

/// The servers, and the task that refreshes the list of them.
pub(super) struct Topology {
    map: ArcSwap<SlotMap>,
    /// Ordered by address, so that the simulation removes them in the same order in every run.
    nodes: Mutex<BTreeMap<Address, (Arc<Node>, CancellationToken)>>,
    /// The node of a cluster that last reported the topology.
    reported_by: Mutex<Option<Address>>,
    /// Servers whose role a refresh must confirm: their new connections wait for it. They are queried last.
    unconfirmed: Mutex<Vec<Address>>,
    /// For every known address of a node of a cluster, Redis replicas included: the address that this process uses for
    /// the node.
    canonical_addresses: Mutex<HashMap<Address, Address>>,
    deployment: Deployment,
    sockets: Arc<Sockets>,
    /// Number of servers without a socket, as last divided.
    without_socket: AtomicUsize,
    without_socket_log_limit: LogLimit,
    settings: Arc<RedisConnectionSettings>,
    stats: Arc<Stats>,
    refresh_requested: Notify,
    degraded_timer: DegradedTimer,
    /// Signals that a server has become usable or unusable, or that the servers in use have changed.
    health_changed: Notify,
    /// When the last successful refresh began.
    refresh_began: Watched<Option<Instant>>,
    cancelled: CancellationToken,
    this: Weak<Self>,
}

impl Topology {
    /// Starts to find and connect to servers, until `cancelled`.
    pub(super) fn start(
        deployment: Deployment,
        sockets: Sockets,
        settings: RedisConnectionSettings,
        stats: &Arc<Stats>,
        cancelled: &CancellationToken,
    ) -> Arc<Self> {
        let owners = match deployment {
            Deployment::Cluster(_) => Owners::Slots(vec![(NO_OWNER, 0); SLOTS].into()),
            Deployment::Single(_) | Deployment::Sentinel { .. } => Owners::One { epoch: 0 },
        };
        let topology = Arc::new_cyclic(|this| Self {
            map: ArcSwap::from_pointee(SlotMap { nodes: Vec::new(), owners }),
            nodes: Mutex::default(),
            reported_by: Mutex::default(),
            unconfirmed: Mutex::default(),
            canonical_addresses: Mutex::default(),
            deployment,
            sockets: Arc::new(sockets),
            without_socket: AtomicUsize::new(0),
            without_socket_log_limit: LogLimit::default(),
            settings: Arc::new(settings),
            stats: Arc::clone(stats),
            refresh_requested: Notify::new(),
            degraded_timer: DegradedTimer::started(),
            health_changed: Notify::new(),
            refresh_began: Watched::new(None),
            cancelled: cancelled.clone(),
            this: Weak::clone(this),
        });
        if let Deployment::Single(address) = &topology.deployment {
            topology.set_primary(address, 0);
        } else {
            let refresh = Arc::clone(&topology).keep_refreshing();
            tokio::spawn(cancelled.clone().run_until_cancelled_owned(refresh));
        }
        topology
    }

    /// The URL scheme of the deployment, without TLS.
    pub(super) const fn scheme(&self) -> &'static str {
        match self.deployment {
            Deployment::Single(_) => "redis",
            Deployment::Cluster(_) => "redis-cluster",
            Deployment::Sentinel { .. } => "redis-sentinel",
        }
    }

    pub(super) fn slot_map(&self) -> Arc<SlotMap> {
        self.map.load_full()
    }

    /// The server at the address of a redirection. `None` if the cluster does not list it, not even after a refresh, or
    /// if the refresh takes until the deadline.
    pub(super) async fn redirection_target(
        &self,
        address: &Address,
        deadline: Option<Instant>,
    ) -> Option<Arc<Node>> {
        self.request_refresh();
        let canonical = || self.canonical_addresses.lock().get(address).cloned();
        let mut used = canonical();
        if used.is_none() {
            let left = deadline.map_or(REFRESH_INTERVAL, |it| it - clock::now());
            if self.wait_for_refresh(left).await.is_err() {
                return None;
            }
            used = canonical();
        }
        if used.is_none() {
            self.stats.note_refused_redirection(address);
        }
        // A new server may have all sockets until they are divided again.
        Some(self.get_or_start_node(&used?, self.sockets.sockets_for(0, 1)))
    }

    /// The server at an address. Starts to connect to a new server, with `allowed` connections.
    fn get_or_start_node(&self, address: &Address, allowed: usize) -> Arc<Node> {
        let mut nodes = self.nodes.lock();
        let (node, _) = nodes.entry(address.clone()).or_insert_with(|| {
            let cancelled = self.cancelled.child_token();
            let this = Arc::new(Weak::clone(&self.this));
            let (address, sockets) = (address.clone(), &self.sockets);
            let (settings, stats) = (&self.settings, &self.stats);
            let node = Node::start(address, sockets, settings, &this, stats, &cancelled);
            node.allow_connections(allowed);
            (node, cancelled)
        });
        Arc::clone(node)
    }

    /// Removes all other servers, and closes their connections.
    fn retain_nodes(&self, kept: &[Arc<Node>]) {
        let kept: HashSet<_> = kept.iter().map(Arc::as_ptr).collect();
        self.nodes.lock().retain(|_, (node, cancelled)| {
            let keep = kept.contains(&Arc::as_ptr(node));
            if !keep {
                cancelled.cancel();
            }
            keep
        });
    }

    async fn keep_refreshing(self: Arc<Self>) {
        let mut sentinels = Sentinels::default();
        loop {
            let began = clock::now();
            if self.refresh(&mut sentinels).await {
                self.refresh_began.set(Some(began));
            }
            tokio::time::sleep(REFRESH_PAUSE).await;
            let requested = self.refresh_requested.notified();
            let _requested = tokio::time::timeout(REFRESH_INTERVAL, requested).await;
        }
    }

    /// Updates the topology by the report of one server or sentinel. Returns whether one replied.
    async fn refresh(&self, sentinels: &mut Sentinels) -> bool {
        match &self.deployment {
            Deployment::Single(_) => true,
            Deployment::Cluster(seeds) => {
                let Some(nodes) = self.query_cluster_nodes(seeds).await else { return false };
                self.set_cluster_nodes(&nodes);
                true
            }
            Deployment::Sentinel { sentinels: addresses, name } => {
                let found =
                    sentinels.query_primary(addresses, name, &self.settings, &self.stats).await;
                let Some((address, epoch)) = found else { return false };
                self.set_primary(&address, epoch);
                true
            }
        }
    }

    /// The nodes that a connected server lists; without one, those that a configured or last known server lists.
    async fn query_cluster_nodes(&self, seeds: &[Address]) -> Option<Vec<ClusterNode>> {
        let tls = self.settings.tls.is_some();
        let mut nodes = self.slot_map().nodes.clone();
        fastrand::shuffle(&mut nodes);
        let unconfirmed = self.unconfirmed.lock().clone();
        nodes.sort_by_cached_key(|node| unconfirmed.contains(&node.address));
        for node in &nodes {
            let reply = node.query(&[b"CLUSTER".as_slice(), b"NODES"]).await;
            let listed =
                reply.and_then(|reply| slots::parse_cluster_nodes(&reply, &node.address, tls));
            if listed.is_some() {
                *self.reported_by.lock() = Some(node.address.clone());
                return listed;
            }
        }
        // The last known servers, too, because the configured ones may all have been removed from the cluster.
        let known = nodes.iter().map(|node| node.address.clone());
        let mut addresses: Vec<Address> = seeds.iter().cloned().chain(known).collect();
        fastrand::shuffle(&mut addresses);
        for address in addresses {
            let queried = async {
                let connection = Connection::open(&address, &self.settings).await?;
                connection.query(self.settings.connect_timeout, &["CLUSTER", "NODES"]).await
            };
            match queried.await {
                Ok(reply) => match slots::parse_cluster_nodes(&reply, &address, tls) {
                    None => {
                        self.stats.warn_no_topology(&address, "has no list of the cluster's nodes");
                    }
                    listed => {
                        *self.reported_by.lock() = Some(address);
                        return listed;
                    }
                },
                Err(error) => self.stats.warn_no_topology(&address, &error.to_string()),
            }
        }
        None
    }

    /// Updates the slot map by the nodes that a node of the cluster lists.
    fn set_cluster_nodes(&self, listed: &[ClusterNode]) {
        let addresses = |it: &ClusterNode| {
            let used = it.address.clone();
            let all = it.aliases.iter().chain([&it.address]).cloned();
            all.map(move |address| (address, used.clone())).collect::<Vec<_>>()
        };
        *self.canonical_addresses.lock() = listed.iter().flat_map(addresses).collect();
        let claims: Vec<(Arc<Node>, &Claim)> = listed
            .iter()
            .filter_map(|it| {
                it.claim.as_ref().map(|claim| (self.get_or_start_node(&it.address, 0), claim))
            })
            .collect();
        let map = self.slot_map();
        let Owners::Slots(owners) = &map.owners else { return };
        let mut owners = owners.clone();
        let mut nodes = NodeList::of(&map.nodes);
        let gone: Vec<bool> = map.nodes.iter().map(|node| node.is_gone()).collect();
        let usable: Vec<bool> = map.nodes.iter().map(|node| node.is_usable()).collect();
        let is = |which: &[bool], owner: u16| which.get(usize::from(owner)).is_some_and(|it| *it);
        for (node, claim) in &claims {
            let position = nodes.position_or_insert(node);
            let was_connected = node.was_connected();
            for slot in claim.slots.iter().cloned().flatten() {
                let Some(owner) = owners.get_mut(usize::from(slot)) else { continue };
                // Until a new owner has a connection, the former owner redirects to it, and callers wait for that
                // connection.
                let is_later = owner.1 <= claim.epoch && (was_connected || !is(&usable, owner.0));
                if owner.0 == NO_OWNER || is(&gone, owner.0) || is_later {
                    *owner = (position, claim.epoch);
                }
            }
        }
        let same = |a: &[Arc<Node>], b: &[Arc<Node>]| {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| Arc::ptr_eq(a, b))
        };
        let new = compact(&nodes.nodes, &owners);
        let has_same_servers = same(&map.nodes, &new.nodes);
        let mut kept = NodeList::of(&new.nodes);
        self.map.store(Arc::new(new));
        self.update_degraded_timer();
        if !has_same_servers {
            self.health_changed.notify_one();
        }
        let (owners, others): (Vec<_>, Vec<_>) =
            claims.iter().partition(|(_, claim)| !claim.slots.is_empty());
        owners.iter().for_each(|(node, _)| _ = kept.position_or_insert(node));
        let owners = kept.nodes.len();
        // Kept, because a primary without slots may get some soon.
        others.iter().for_each(|(node, _)| _ = kept.position_or_insert(node));
        self.retain_nodes(&kept.nodes);
        self.divide_sockets(&kept.nodes, owners);
    }

    /// Divides the sockets among servers. The first `owners` servers own slots and come first.
    fn divide_sockets(&self, nodes: &[Arc<Node>], owners: usize) {
        let mut ordered: Vec<_> = nodes.iter().enumerate().collect();
        // Independent of the order of the list, so that servers keep their sockets.
        ordered
            .sort_by_key(|(number, node)| (*number >= owners, Reverse(node.connections_allowed())));
        for (position, (_, node)) in ordered.into_iter().enumerate() {
            node.allow_connections(self.sockets.sockets_for(position, nodes.len()));
        }
        let without = nodes.len().saturating_sub(self.sockets.total_max());
        let before = self.without_socket.swap(without, Ordering::Relaxed);
        if without > 0 && before == 0 && self.without_socket_log_limit.try_acquire() {
            tracing::warn!(
                servers = nodes.len(),
                without,
                connections_max = self.sockets.total_max(),
                "no file descriptors left for some servers of the Redis Cluster, applying on_failure; raise the \
                 limit of open files"
            );
        }
    }

    /// Updates the slot map by the primary that a sentinel reports, or the only server.
    fn set_primary(&self, address: &Address, epoch: u64) {
        let map = self.slot_map();
        let Owners::One { epoch: known } = map.owners else { return };
        if let Some(current) = map.nodes.first() {
            // A later epoch of the same address applies too, so that a sentinel that missed it cannot replace the
            // primary.
            if epoch <= known && (current.address == *address || !current.is_gone()) {
                return;
            }
        }
        let nodes = vec![self.get_or_start_node(address, self.sockets.sockets_for(0, 1))];
        self.map.store(Arc::new(SlotMap { nodes: nodes.clone(), owners: Owners::One { epoch } }));
        self.update_degraded_timer();
        self.health_changed.notify_one();
        self.retain_nodes(&nodes);
    }
}

impl TopologyHandle for Weak<Topology> {
    async fn check_connection(
        &self,
        address: &Address,
        connection: &Connection,
    ) -> Result<(), ConnectError> {
        let Some(topology) = self.upgrade() else { return Ok(()) };
        topology.check_connection(address, connection).await
    }

    fn is_cluster(&self) -> bool {
        self.upgrade().is_some_and(|topology| topology.is_cluster())
    }

    fn request_refresh(&self) {
        if let Some(topology) = self.upgrade() {
            topology.request_refresh();
        }
    }

    fn report_health_change(&self) {
        if let Some(topology) = self.upgrade() {
            topology.update_degraded_timer();
            topology.health_changed.notify_one();
        }
    }
}

impl Topology {
    const fn is_cluster(&self) -> bool {
        matches!(self.deployment, Deployment::Cluster(_))
    }

    /// Requests a refresh, because a server failed or redirected a call.
    pub(super) fn request_refresh(&self) {
        self.refresh_requested.notify_one();
    }

    /// Whether some counters are unavailable.
    pub(super) fn is_degraded(&self) -> bool {
        let map = self.slot_map();
        !map.covers_all_slots() || !map.nodes().iter().all(|node| node.is_usable())
    }

    /// Total time for which some counters were unavailable.
    pub(super) fn total_degraded_time(&self) -> Duration {
        self.degraded_timer.total()
    }

    /// Called after a server has become usable or unusable, or the slot map was replaced.
    fn update_degraded_timer(&self) {
        self.degraded_timer.update(|| self.is_degraded());
    }

    /// Waits until a server has become usable or unusable, or the servers in use have changed, since the last call.
    pub(super) async fn wait_for_change(&self) {
        self.health_changed.notified().await;
    }

    /// For each slot and server, whether the server still owns the slot, by a new report of another server or sentinel.
    /// A primary that was paused and replaced runs calls until it detects that, and what they charge is lost.
    pub(super) async fn still_own(&self, owners: &[(u16, Address)]) -> Vec<bool> {
        let mut is_refreshed = true;
        if !matches!(self.deployment, Deployment::Single(_)) {
            let guards =
                owners.iter().map(|(_, owner)| UnconfirmedGuard::new(&self.unconfirmed, owner));
            let _guards: Vec<_> = guards.collect();
            let timeout = self.settings.connect_timeout * 2;
            is_refreshed = self.wait_for_refresh(timeout).await.is_ok();
        }
        let map = self.slot_map();
        let reported_by = self.reported_by.lock().clone();
        let is_alone = map.nodes.len() == 1;
        let owns = |(slot, address): &(u16, Address)| {
            let is_owner = map.owner(*slot).is_some_and(|node| node.address == *address);
            is_refreshed && is_owner && (is_alone || reported_by.as_ref() != Some(address))
        };
        owners.iter().map(owns).collect()
    }

    /// Requests a refresh that begins from now on, and waits for it.
    async fn wait_for_refresh(&self, within: Duration) -> Result<(), ConnectError> {
        let now = clock::now();
        self.request_refresh();
        let refreshed =
            self.refresh_began.wait_for(|began| began.is_some_and(|began| began >= now));
        tokio::time::timeout(within, refreshed).await.map_err(|_| ConnectError::Timeout)
    }

    /// Checks the server of a new connection: behind sentinels, that it reports to be the primary; in a cluster, that
    /// it reports the cluster as up; in both, that a later refresh of the topology succeeds.
    async fn check_connection(
        &self,
        address: &Address,
        connection: &Connection,
    ) -> Result<(), ConnectError> {
        let timeout = self.settings.connect_timeout;
        if matches!(self.deployment, Deployment::Sentinel { .. }) {
            let role = connection.query(timeout, &["ROLE"]).await?;
            if role.elements().first().and_then(Reply::as_str) != Some("master") {
                return Err(ConnectError::Unusable("is not the primary".to_owned()));
            }
        }
        if self.is_cluster() {
            let info = connection.query(timeout, &["CLUSTER", "INFO"]).await?;
            if !info.as_str().is_some_and(|info| info.contains("cluster_state:ok")) {
                return Err(ConnectError::Unusable("CLUSTERDOWN: its cluster is down".to_owned()));
            }
        }
        if !matches!(self.deployment, Deployment::Single(_)) {
            let _guard = UnconfirmedGuard::new(&self.unconfirmed, address);
            self.wait_for_refresh(timeout * 2).await?;
        }
        Ok(())
    }
}

/// Keeps a server in the list of unconfirmed servers until it is dropped, also if the check is cancelled.
struct UnconfirmedGuard<'a> {
    all: &'a Mutex<Vec<Address>>,
    address: &'a Address,
}

impl<'a> UnconfirmedGuard<'a> {
    fn new(all: &'a Mutex<Vec<Address>>, address: &'a Address) -> Self {
        all.lock().push(address.clone());
        Self { all, address }
    }
}

impl Drop for UnconfirmedGuard<'_> {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        if let Some(at) = all.iter().position(|other| other == self.address) {
            all.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::redis::Password;

    /// An address without a server.
    fn address(port: u16) -> Address {
        Address { host: "127.0.0.1".to_owned(), port }
    }

    fn topology(deployment: Deployment) -> Arc<Topology> {
        let settings = RedisConnectionSettings {
            username: None,
            password: Password::None,
            tls: None,
            database: 0,
            connect_timeout: Duration::from_secs(60),
            connector: None,
        };
        let (sockets, stats) = (Sockets::new(0, 1), Arc::default());
        Topology::start(deployment, sockets, settings, &stats, &CancellationToken::new())
    }

    #[tokio::test]
    async fn later_epoch_of_the_same_primary_counts() {
        let sentinels = Vec::new();
        let topology = topology(Deployment::Sentinel { sentinels, name: "main".to_owned() });
        let primary = || topology.slot_map().nodes().first().map(|node| node.address.clone());
        topology.set_primary(&address(1), 5);
        topology.set_primary(&address(1), 7);
        // From a sentinel that has missed it.
        topology.set_primary(&address(2), 6);
        assert_eq!(primary(), Some(address(1)));
        topology.set_primary(&address(2), 8);
        assert_eq!(primary(), Some(address(2)));
    }

    #[tokio::test]
    async fn refresh_without_new_servers_wakes_no_poll() {
        let topology = topology(Deployment::Cluster(Vec::new()));
        let claim = |port, slots| ClusterNode {
            address: address(port),
            aliases: Vec::new(),
            claim: Some(Claim { epoch: 1, slots: vec![slots] }),
        };
        let is_woken = || topology.wait_for_change().now_or_never().is_some();
        let (first, second) = (claim(1, 0..=8191), claim(2, 8192..=16383));
        topology.set_cluster_nodes(&[first.clone(), second.clone()]);
        assert!(is_woken());
        for listed in [[first.clone(), second.clone()], [second.clone(), first.clone()]] {
            topology.set_cluster_nodes(&listed);
            assert!(!is_woken());
        }
        // All slots move to a new server.
        let third = ClusterNode {
            claim: Some(Claim { epoch: 2, slots: vec![0..=16383] }),
            ..claim(3, 0..=16383)
        };
        topology.set_cluster_nodes(&[first, second, third]);
        assert!(is_woken());
    }

    #[tokio::test]
    async fn cancelled_check_leaves_no_unconfirmed_server() {
        let topology = topology(Deployment::Cluster(Vec::new()));
        let (ours, mut theirs) = tokio::io::duplex(1024);
        let connection = Connection::over(ours);
        let info = "cluster_state:ok";
        let reply = format!("${}\r\n{info}\r\n", info.len());
        tokio::spawn(async move {
            while theirs.read(&mut [0; 1024]).await.is_ok_and(|length| length > 0) {
                theirs.write_all(reply.as_bytes()).await.unwrap();
            }
        });
        let checked = address(1);
        tokio::select! {
            // No server reports the topology, so the check waits.
            _ = topology.check_connection(&checked, &connection) => unreachable!("there is no cluster"),
            () = async {
                while topology.unconfirmed.lock().is_empty() {
                    tokio::task::yield_now().await;
                }
            } => {}
        }
        assert_eq!(*topology.unconfirmed.lock(), []);
    }
}
