//! Which servers there are, and which of them is asked about what.
//!
//! A task asks now and then, and at once where there is trouble. Every answer carries an epoch, and one
//! that is older than what is known counts for nothing while the owner that is known lives: a primary that
//! was stopped, replaced and continued still takes itself for one. (Where all servers are new, so are the
//! epochs, and the old owner is gone.) For the same reason a connection to a server of a cluster or
//! behind sentinels is used only after others were asked whether it is still theirs to ask.

mod map;
mod sentinels;

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
    link::{Link, LinkError, LinkSettings},
    node::{Fitness, Node},
    outage::Outage,
    slots::{self, Claim, ClusterNode, SLOTS},
    sockets::Sockets,
    watched::Watched,
};
use crate::{LogLimit, clock};
use map::{NO_OWNER, Numbered, Owners, compacted};
use sentinels::Sentinels;

pub(super) use map::Map;

/// How often to ask who owns what, without a reason.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// How often at most, with one.
const REFRESH_PAUSE: Duration = Duration::from_millis(50);

/// Finds the servers.
pub(super) struct Topology {
    map: ArcSwap<Map>,
    /// In an order that is the same in every run: so are then their ends.
    known: Mutex<BTreeMap<Address, (Arc<Node>, CancellationToken)>>,
    /// The node of a cluster that answered last.
    answered: Mutex<Option<Address>>,
    /// Servers that the others are to be asked about.
    suspects: Mutex<Vec<Address>>,
    /// The last known nodes of a cluster, including replicas: the usual address of each, by every address that it has.
    members: Mutex<HashMap<Address, Address>>,
    deployment: Deployment,
    sockets: Arc<Sockets>,
    /// Servers without a socket, as last divided.
    without_socket: AtomicUsize,
    without_socket_logged: LogLimit,
    settings: Arc<LinkSettings>,
    stats: Arc<Stats>,
    wanted: Notify,
    outage: Outage,
    /// Signals that a server has become usable or unusable.
    changed: Notify,
    /// When the last successful look at the servers began.
    looked: Watched<Option<Instant>>,
    gone: CancellationToken,
    this: Weak<Self>,
}

impl Topology {
    /// Begins to find and connect to servers, until `gone`.
    pub(super) fn start(
        deployment: Deployment,
        sockets: Sockets,
        settings: LinkSettings,
        stats: &Arc<Stats>,
        gone: &CancellationToken,
    ) -> Arc<Self> {
        let owners = match deployment {
            Deployment::Cluster(_) => Owners::Slots(vec![(NO_OWNER, 0); SLOTS].into()),
            Deployment::Single(_) | Deployment::Sentinel { .. } => Owners::One { epoch: 0 },
        };
        let topology = Arc::new_cyclic(|this| Self {
            map: ArcSwap::from_pointee(Map { nodes: Vec::new(), owners }),
            known: Mutex::default(),
            answered: Mutex::default(),
            suspects: Mutex::default(),
            members: Mutex::default(),
            deployment,
            sockets: Arc::new(sockets),
            without_socket: AtomicUsize::new(0),
            without_socket_logged: LogLimit::default(),
            settings: Arc::new(settings),
            stats: Arc::clone(stats),
            wanted: Notify::new(),
            outage: Outage::begun(),
            changed: Notify::new(),
            looked: Watched::new(None),
            gone: gone.clone(),
            this: Weak::clone(this),
        });
        if let Deployment::Single(address) = &topology.deployment {
            topology.use_one(address, 0);
        } else {
            let look = Arc::clone(&topology).keep_looking();
            tokio::spawn(gone.clone().run_until_cancelled_owned(look));
        }
        topology
    }

    /// What the store is called in settings, leaving out whether TLS is spoken.
    pub(super) const fn scheme(&self) -> &'static str {
        match self.deployment {
            Deployment::Single(_) => "redis",
            Deployment::Cluster(_) => "redis-cluster",
            Deployment::Sentinel { .. } => "redis-sentinel",
        }
    }

    pub(super) fn map(&self) -> Arc<Map> {
        self.map.load_full()
    }

    /// The server that a redirection names, if the cluster names it, too. If it did not when it was asked last, it is
    /// asked again.
    pub(super) async fn named(
        &self,
        address: &Address,
        deadline: Option<Instant>,
    ) -> Option<Arc<Node>> {
        self.trouble();
        let member = || self.members.lock().get(address).cloned();
        let mut usual = member();
        if usual.is_none() {
            let left = deadline.map_or(REFRESH_INTERVAL, |it| it - clock::now());
            if self.look_again(left).await.is_err() {
                return None;
            }
            usual = member();
        }
        if usual.is_none() {
            self.stats.redirection_refused(address);
        }
        // Until the sockets are divided again.
        Some(self.node(&usual?, self.sockets.share(0, 1)))
    }

    /// The server at an address. One that is new is allowed so many connections.
    fn node(&self, address: &Address, allowed: usize) -> Arc<Node> {
        let mut known = self.known.lock();
        let (node, _) = known.entry(address.clone()).or_insert_with(|| {
            let gone = self.gone.child_token();
            let this = Arc::new(Weak::clone(&self.this));
            let (address, sockets) = (address.clone(), &self.sockets);
            let node = Node::start(address, sockets, &self.settings, &this, &self.stats, &gone);
            node.allow(allowed);
            (node, gone)
        });
        Arc::clone(node)
    }

    /// Forgets servers that are no longer asked about anything.
    fn forget(&self, kept: &[Arc<Node>]) {
        let kept: HashSet<_> = kept.iter().map(Arc::as_ptr).collect();
        self.known.lock().retain(|_, (node, gone)| {
            let keep = kept.contains(&Arc::as_ptr(node));
            if !keep {
                gone.cancel();
            }
            keep
        });
    }

    async fn keep_looking(self: Arc<Self>) {
        let mut sentinels = Sentinels::default();
        loop {
            let began = clock::now();
            if self.look(&mut sentinels).await {
                self.looked.set(Some(began));
            }
            tokio::time::sleep(REFRESH_PAUSE).await;
            let _wanted = tokio::time::timeout(REFRESH_INTERVAL, self.wanted.notified()).await;
        }
    }

    /// Asks one server, or sentinel, how things are. Returns whether it answered.
    async fn look(&self, sentinels: &mut Sentinels) -> bool {
        match &self.deployment {
            Deployment::Single(_) => true,
            Deployment::Cluster(seeds) => {
                let Some(nodes) = self.cluster_nodes(seeds).await else { return false };
                self.use_cluster(&nodes);
                true
            }
            Deployment::Sentinel { sentinels: addresses, name } => {
                let asked = sentinels.primary(addresses, name, &self.settings, &self.stats).await;
                let Some((address, epoch)) = asked else { return false };
                self.use_one(&address, epoch);
                true
            }
        }
    }

    /// What some server that is connected says, or else one that the settings name.
    async fn cluster_nodes(&self, seeds: &[Address]) -> Option<Vec<ClusterNode>> {
        let tls = self.settings.tls.is_some();
        let mut nodes = self.map().nodes.clone();
        fastrand::shuffle(&mut nodes);
        let suspects = self.suspects.lock().clone();
        nodes.sort_by_cached_key(|node| suspects.contains(&node.address));
        for node in &nodes {
            let reply = node.ask(&[b"CLUSTER".as_slice(), b"NODES"]).await;
            let listed = reply.and_then(|reply| slots::nodes(&reply, &node.address, tls));
            if listed.is_some() {
                *self.answered.lock() = Some(node.address.clone());
                return listed;
            }
        }
        // The nodes that were known last may be all that is left of those that the settings name.
        let known = nodes.iter().map(|node| node.address.clone());
        let mut places: Vec<Address> = seeds.iter().cloned().chain(known).collect();
        fastrand::shuffle(&mut places);
        for seed in places {
            let asked = async {
                let link = Link::open(&seed, &self.settings).await?;
                link.ask(self.settings.connect_timeout, &["CLUSTER", "NODES"]).await
            };
            match asked.await {
                Ok(reply) => match slots::nodes(&reply, &seed, tls) {
                    None => self.stats.unreachable(&seed, "has no list of the cluster's nodes"),
                    listed => {
                        *self.answered.lock() = Some(seed);
                        return listed;
                    }
                },
                Err(error) => self.stats.unreachable(&seed, &error.to_string()),
            }
        }
        None
    }

    /// Takes up what a node of a cluster says.
    fn use_cluster(&self, listed: &[ClusterNode]) {
        let addresses = |it: &ClusterNode| {
            let usual = it.address.clone();
            let all = it.aliases.iter().chain([&it.address]).cloned();
            all.map(move |address| (address, usual.clone())).collect::<Vec<_>>()
        };
        *self.members.lock() = listed.iter().flat_map(addresses).collect();
        let claims: Vec<(Arc<Node>, &Claim)> = listed
            .iter()
            .filter_map(|it| it.claim.as_ref().map(|claim| (self.node(&it.address, 0), claim)))
            .collect();
        let map = self.map();
        let Owners::Slots(owners) = &map.owners else { return };
        let mut owners = owners.clone();
        let mut nodes = Numbered::of(&map.nodes);
        let gone: Vec<bool> = map.nodes.iter().map(|node| node.is_gone()).collect();
        let up: Vec<bool> = map.nodes.iter().map(|node| node.is_up()).collect();
        let is = |which: &[bool], owner: u16| which.get(usize::from(owner)).is_some_and(|it| *it);
        for (node, claim) in &claims {
            let position = nodes.position(node);
            let can_be_asked = node.was_connected();
            for slot in claim.slots.iter().cloned().flatten() {
                let Some(owner) = owners.get_mut(usize::from(slot)) else { continue };
                // Until a new owner can be asked, the one before it redirects to it, and callers wait for a connection.
                let is_later = owner.1 <= claim.epoch && (can_be_asked || !is(&up, owner.0));
                if owner.0 == NO_OWNER || is(&gone, owner.0) || is_later {
                    *owner = (position, claim.epoch);
                }
            }
        }
        let map = compacted(&nodes.nodes, &owners);
        let mut kept = Numbered::of(&map.nodes);
        self.map.store(Arc::new(map));
        self.note_change();
        let (owners, others): (Vec<_>, Vec<_>) =
            claims.iter().partition(|(_, claim)| !claim.slots.is_empty());
        owners.iter().for_each(|(node, _)| _ = kept.position(node));
        let owners = kept.nodes.len();
        // A primary without slots may be about to get some.
        others.iter().for_each(|(node, _)| _ = kept.position(node));
        self.forget(&kept.nodes);
        self.divide_sockets(&kept.nodes, owners);
    }

    /// Divides the sockets among servers, of which so many of the first own slots.
    fn divide_sockets(&self, nodes: &[Arc<Node>], owners: usize) {
        let mut ordered: Vec<_> = nodes.iter().enumerate().collect();
        // Those that have sockets keep them, in whatever order servers are listed.
        ordered.sort_by_key(|(number, node)| (*number >= owners, Reverse(node.allowed())));
        for (position, (_, node)) in ordered.into_iter().enumerate() {
            node.allow(self.sockets.share(position, nodes.len()));
        }
        let without = nodes.len().saturating_sub(self.sockets.total_max());
        let before = self.without_socket.swap(without, Ordering::Relaxed);
        if without > 0 && before == 0 && self.without_socket_logged.allows() {
            tracing::warn!(
                servers = nodes.len(),
                without,
                connections_max = self.sockets.total_max(),
                "no file descriptors left for some servers of the Redis Cluster, applying on_failure; raise the \
                 limit of open files"
            );
        }
    }

    /// Takes up what sentinels say.
    fn use_one(&self, address: &Address, epoch: u64) {
        let map = self.map();
        let Owners::One { epoch: known } = map.owners else { return };
        if let Some(current) = map.nodes.first() {
            // A later epoch counts for the same address too: a sentinel that has missed it may name another one.
            if epoch <= known && (current.address == *address || !current.is_gone()) {
                return;
            }
        }
        let nodes = vec![self.node(address, self.sockets.share(0, 1))];
        self.map.store(Arc::new(Map { nodes: nodes.clone(), owners: Owners::One { epoch } }));
        self.note_change();
        self.forget(&nodes);
    }
}

impl Fitness for Weak<Topology> {
    async fn check(&self, address: &Address, link: &Link) -> Result<(), LinkError> {
        let Some(topology) = self.upgrade() else { return Ok(()) };
        topology.check(address, link).await
    }

    fn is_cluster(&self) -> bool {
        self.upgrade().is_some_and(|topology| topology.is_cluster())
    }

    fn trouble(&self) {
        if let Some(topology) = self.upgrade() {
            topology.trouble();
        }
    }

    fn changed(&self) {
        if let Some(topology) = self.upgrade() {
            topology.note_change();
        }
    }
}

impl Topology {
    const fn is_cluster(&self) -> bool {
        matches!(self.deployment, Deployment::Cluster(_))
    }

    /// Something does not answer as it should: look around soon.
    pub(super) fn trouble(&self) {
        self.wanted.notify_one();
    }

    /// Whether some counters cannot be asked.
    pub(super) fn is_degraded(&self) -> bool {
        let map = self.map();
        !map.is_whole() || !map.nodes().iter().all(|node| node.is_up())
    }

    /// For how long that was so, all times together.
    pub(super) fn degraded_for(&self) -> Duration {
        self.outage.total()
    }

    fn note_change(&self) {
        self.outage.look(|| self.is_degraded());
        self.changed.notify_one();
    }

    /// Resolves when a server has become usable or unusable since the last call.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// The servers of these that still own their slots, as others say from now on. A primary that was paused and
    /// replaced runs calls before it hears of that, and what it has charged then is lost.
    pub(super) async fn still_own(&self, owners: &[(u16, Address)]) -> Vec<bool> {
        let mut is_asked = true;
        if !matches!(self.deployment, Deployment::Single(_)) {
            let suspects = owners.iter().map(|(_, owner)| Suspect::new(&self.suspects, owner));
            let _suspects: Vec<_> = suspects.collect();
            is_asked = self.look_again(self.settings.connect_timeout * 2).await.is_ok();
        }
        let map = self.map();
        let answered = self.answered.lock().clone();
        let is_alone = map.nodes.len() == 1;
        let owns = |(slot, address): &(u16, Address)| {
            let is_owner = map.owner(*slot).is_some_and(|node| node.address == *address);
            is_asked && is_owner && (is_alone || answered.as_ref() != Some(address))
        };
        owners.iter().map(owns).collect()
    }

    /// Waits until a server or sentinel reports the topology, from now on.
    async fn look_again(&self, within: Duration) -> Result<(), LinkError> {
        let asked = clock::now();
        self.trouble();
        let since = self.looked.wait_for(|at| at.is_some_and(|at| at >= asked));
        tokio::time::timeout(within, since).await.map_err(|_| LinkError::Timeout)
    }

    async fn check(&self, address: &Address, link: &Link) -> Result<(), LinkError> {
        let timeout = self.settings.connect_timeout;
        if matches!(self.deployment, Deployment::Sentinel { .. }) {
            let role = link.ask(timeout, &["ROLE"]).await?;
            if role.elements().first().and_then(Reply::as_str) != Some("master") {
                return Err(LinkError::Unfit("is not the primary".to_owned()));
            }
        }
        if self.is_cluster() {
            let info = link.ask(timeout, &["CLUSTER", "INFO"]).await?;
            if !info.as_str().is_some_and(|info| info.contains("cluster_state:ok")) {
                return Err(LinkError::Unfit("CLUSTERDOWN: its cluster is down".to_owned()));
            }
        }
        if !matches!(self.deployment, Deployment::Single(_)) {
            let _suspect = Suspect::new(&self.suspects, address);
            self.look_again(timeout * 2).await?;
        }
        Ok(())
    }
}

/// A server that the others are being asked about, until this is dropped: its connection may be given up meanwhile.
struct Suspect<'a> {
    all: &'a Mutex<Vec<Address>>,
    address: &'a Address,
}

impl<'a> Suspect<'a> {
    fn new(all: &'a Mutex<Vec<Address>>, address: &'a Address) -> Self {
        all.lock().push(address.clone());
        Self { all, address }
    }
}

impl Drop for Suspect<'_> {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        if let Some(at) = all.iter().position(|suspect| suspect == self.address) {
            all.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::redis::Password;

    /// Where nothing listens.
    fn address(port: u16) -> Address {
        Address { host: "127.0.0.1".to_owned(), port }
    }

    fn topology(deployment: Deployment) -> Arc<Topology> {
        let settings = LinkSettings {
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
        let primary = || topology.map().nodes().first().map(|node| node.address.clone());
        topology.use_one(&address(1), 5);
        topology.use_one(&address(1), 7);
        // From a sentinel that has missed it.
        topology.use_one(&address(2), 6);
        assert_eq!(primary(), Some(address(1)));
        topology.use_one(&address(2), 8);
        assert_eq!(primary(), Some(address(2)));
    }

    #[tokio::test]
    async fn check_that_is_cancelled_leaves_no_suspect() {
        let topology = topology(Deployment::Cluster(Vec::new()));
        let (ours, mut theirs) = tokio::io::duplex(1024);
        let link = Link::over(ours);
        let info = "cluster_state:ok";
        let reply = format!("${}\r\n{info}\r\n", info.len());
        tokio::spawn(async move {
            while theirs.read(&mut [0; 1024]).await.is_ok_and(|length| length > 0) {
                theirs.write_all(reply.as_bytes()).await.unwrap();
            }
        });
        let checked = address(1);
        tokio::select! {
            // Nothing can be asked who owns what, so it waits.
            _ = topology.check(&checked, &link) => unreachable!("there is no cluster"),
            () = async {
                while topology.suspects.lock().is_empty() {
                    tokio::task::yield_now().await;
                }
            } => {}
        }
        assert_eq!(*topology.suspects.lock(), []);
    }
}
