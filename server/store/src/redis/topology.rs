//! Which servers there are, and which of them is asked about what.
//!
//! A task asks now and then, and at once where there is trouble. Every answer carries an epoch, and one
//! that is older than what is known counts for nothing while the owner that is known lives: a primary that
//! was stopped, replaced and continued still takes itself for one. (Where all servers are new, so are the
//! epochs, and the old owner is gone.) For the same reason a connection to a server of a cluster or
//! behind sentinels is used only after others were asked whether it is still theirs to ask.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use fred::{error::ErrorKind, types::Value};
use parking_lot::Mutex;
use sluicegate_core::CounterKey;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::{
    Address, Deployment, Stats, hash_slot,
    link::{Link, LinkError, LinkSettings, Password},
    node::{Fitness, Node},
    outage::Outage,
    slots::{self, Primary, SLOTS},
};

/// How often to ask who owns what, without a reason.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// How often at most, with one.
const REFRESH_PAUSE: Duration = Duration::from_millis(50);

/// The servers, as known. Immutable, swapped whole.
pub(super) struct Map {
    nodes: Vec<Arc<Node>>,
    owners: Owners,
}

enum Owners {
    /// One server has everything; the epoch is what sentinels go by.
    One { epoch: u64 },
    /// Position of each slot's owner, and the epoch of its claim.
    Slots(Box<[(u16, u64)]>),
}

/// The owner of a slot that nobody claims.
const NOBODY: u16 = u16::MAX;

impl Map {
    /// Whether one server has everything.
    pub(super) const fn is_single(&self) -> bool {
        matches!(self.owners, Owners::One { .. })
    }

    /// The slot of a counter; all are on one where one server has everything.
    pub(super) fn slot(&self, key: &CounterKey) -> u16 {
        if self.is_single() { 0 } else { hash_slot(key) }
    }

    /// Who is to be asked about a slot.
    pub(super) fn owner(&self, slot: u16) -> Option<&Arc<Node>> {
        self.nodes.get(usize::from(self.position(slot)))
    }

    /// Position of a slot's owner among the servers. Of slots without one it is no server's.
    pub(super) fn position(&self, slot: u16) -> u16 {
        match &self.owners {
            Owners::One { .. } => 0,
            Owners::Slots(owners) => owners.get(usize::from(slot)).map_or(NOBODY, |owner| owner.0),
        }
    }

    /// Whether every counter has a server to be asked.
    pub(super) fn is_whole(&self) -> bool {
        match &self.owners {
            Owners::One { .. } => !self.nodes.is_empty(),
            Owners::Slots(owners) => owners.iter().all(|(owner, _)| *owner != NOBODY),
        }
    }

    /// The servers in use.
    pub(super) fn nodes(&self) -> &[Arc<Node>] {
        &self.nodes
    }
}

/// Finds the servers.
pub(super) struct Topology {
    map: ArcSwap<Map>,
    known: Mutex<HashMap<Address, (Arc<Node>, CancellationToken)>>,
    /// Servers that the others are to be asked about.
    suspects: Mutex<Vec<Address>>,
    /// Other addresses under which redirections may name servers.
    aliases: Mutex<HashMap<Address, Address>>,
    deployment: Deployment,
    links: usize,
    settings: Arc<LinkSettings>,
    stats: Arc<Stats>,
    wanted: Notify,
    outage: Outage,
    /// That a server has become of use, or has ceased to be.
    changed: Notify,
    /// When the last successful look at the servers began.
    looked: watch::Sender<Option<Instant>>,
    gone: CancellationToken,
    this: Weak<Self>,
}

impl Topology {
    /// Begins to find and connect to servers, until `gone`.
    pub(super) fn start(
        deployment: Deployment,
        links: usize,
        settings: LinkSettings,
        stats: &Arc<Stats>,
        gone: &CancellationToken,
    ) -> Arc<Self> {
        let owners = match deployment {
            Deployment::Cluster(_) => Owners::Slots(vec![(NOBODY, 0); SLOTS].into()),
            Deployment::Single(_) | Deployment::Sentinel { .. } => Owners::One { epoch: 0 },
        };
        let topology = Arc::new_cyclic(|this| Self {
            map: ArcSwap::from_pointee(Map { nodes: Vec::new(), owners }),
            known: Mutex::default(),
            suspects: Mutex::default(),
            aliases: Mutex::default(),
            deployment,
            links,
            settings: Arc::new(settings),
            stats: Arc::clone(stats),
            wanted: Notify::new(),
            outage: Outage::begun(),
            changed: Notify::new(),
            looked: watch::Sender::new(None),
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

    /// The server that a redirection names. One that is not known yet is connected to.
    pub(super) fn named(&self, address: &Address) -> Arc<Node> {
        self.wanted.notify_one();
        let usual = self.aliases.lock().get(address).cloned();
        self.node(usual.as_ref().unwrap_or(address))
    }

    fn node(&self, address: &Address) -> Arc<Node> {
        let mut known = self.known.lock();
        let (node, _) = known.entry(address.clone()).or_insert_with(|| {
            let gone = self.gone.child_token();
            let this = Arc::new(Weak::clone(&self.this));
            let node =
                Node::start(address.clone(), self.links, &self.settings, &this, &self.stats, &gone);
            (node, gone)
        });
        Arc::clone(node)
    }

    /// Forgets servers that are no longer asked about anything.
    fn forget(&self, kept: &[Arc<Node>]) {
        self.known.lock().retain(|_, (node, gone)| {
            let keep = kept.iter().any(|it| Arc::ptr_eq(it, node));
            if !keep {
                gone.cancel();
            }
            keep
        });
    }

    async fn keep_looking(self: Arc<Self>) {
        let mut sentinels = Sentinels::default();
        loop {
            let began = Instant::now();
            if self.look(&mut sentinels).await {
                self.looked.send_replace(Some(began));
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
                let Some(primaries) = self.primaries(seeds).await else { return false };
                self.use_cluster(&primaries);
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
    async fn primaries(&self, seeds: &[Address]) -> Option<Vec<Primary>> {
        let tls = self.settings.tls.is_some();
        let args = || vec![Value::from_static_str("NODES")];
        let mut nodes = self.map().nodes.clone();
        fastrand::shuffle(&mut nodes);
        let suspects = self.suspects.lock().clone();
        nodes.sort_by_key(|node| suspects.contains(&node.address));
        for node in &nodes {
            if let Some(Value::String(text)) = node.ask("CLUSTER", args()).await {
                return Some(slots::primaries(&text, &node.address, tls));
            }
        }
        // The nodes that were known last may be all that is left of those that the settings name.
        let known = nodes.iter().map(|node| node.address.clone());
        let mut places: Vec<Address> = seeds.iter().cloned().chain(known).collect();
        fastrand::shuffle(&mut places);
        for seed in places {
            let asked = async {
                let link = Link::open(&seed, &self.settings).await?;
                link.ask(self.settings.connect_timeout, "CLUSTER", args()).await
            };
            match asked.await {
                Ok(Value::String(text)) => return Some(slots::primaries(&text, &seed, tls)),
                Ok(_) => self.stats.unreachable(&seed, "has no list of the cluster's nodes"),
                Err(error) => self.stats.unreachable(&seed, &error.to_string()),
            }
        }
        None
    }

    /// Takes up what a node of a cluster says.
    fn use_cluster(&self, primaries: &[Primary]) {
        let aliases = primaries
            .iter()
            .flat_map(|it| it.aliases.iter().map(|alias| (alias.clone(), it.address.clone())));
        *self.aliases.lock() = aliases.collect();
        let claims: Vec<(Arc<Node>, &Primary)> =
            primaries.iter().map(|primary| (self.node(&primary.address), primary)).collect();
        let map = self.map();
        let Owners::Slots(owners) = &map.owners else { return };
        let mut owners = owners.clone();
        let mut nodes = map.nodes.clone();
        let gone: Vec<bool> = nodes.iter().map(|node| node.is_gone()).collect();
        for (node, primary) in &claims {
            let position = position(&mut nodes, node);
            for slot in primary.slots.iter().cloned().flatten() {
                let Some(owner) = owners.get_mut(usize::from(slot)) else { continue };
                let forsaken = gone.get(usize::from(owner.0)).is_some_and(|gone| *gone);
                if owner.0 == NOBODY || forsaken || owner.1 <= primary.epoch {
                    *owner = (position, primary.epoch);
                }
            }
        }
        let map = compacted(&nodes, &owners);
        let mut kept = map.nodes.clone();
        self.map.store(Arc::new(map));
        self.note_change();
        // A primary without slots may be about to get some.
        kept.extend(claims.into_iter().map(|(node, _)| node));
        self.forget(&kept);
    }

    /// Takes up what sentinels say.
    fn use_one(&self, address: &Address, epoch: u64) {
        let map = self.map();
        let Owners::One { epoch: known } = map.owners else { return };
        if let Some(current) = map.nodes.first() {
            let newer = epoch > known || current.is_gone();
            if current.address == *address || !newer {
                return;
            }
        }
        let nodes = vec![self.node(address)];
        self.map.store(Arc::new(Map { nodes: nodes.clone(), owners: Owners::One { epoch } }));
        self.note_change();
        self.forget(&nodes);
    }
}

/// Where a node stands; one that is new is put last.
fn position(nodes: &mut Vec<Arc<Node>>, node: &Arc<Node>) -> u16 {
    let position = nodes.iter().position(|it| Arc::ptr_eq(it, node)).unwrap_or_else(|| {
        nodes.push(Arc::clone(node));
        nodes.len() - 1
    });
    u16::try_from(position).unwrap_or(NOBODY)
}

/// The same owners without the nodes that own nothing.
fn compacted(nodes: &[Arc<Node>], owners: &[(u16, u64)]) -> Map {
    let mut kept = Vec::new();
    let owners = owners.iter().map(|&(owner, epoch)| {
        let node = nodes.get(usize::from(owner));
        (node.map_or(NOBODY, |node| position(&mut kept, node)), epoch)
    });
    let owners = Owners::Slots(owners.collect());
    Map { nodes: kept, owners }
}

impl Fitness for Weak<Topology> {
    async fn check(&self, address: &Address, link: &Link) -> Result<(), LinkError> {
        let Some(topology) = self.upgrade() else { return Ok(()) };
        topology.check(address, link).await
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

    /// Resolves when a server has become of use, or has ceased to be, since it was asked last.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Waits until somebody has said, from now on, who is who.
    async fn look_again(&self, within: Duration) -> Result<(), LinkError> {
        let asked = Instant::now();
        let mut looked = self.looked.subscribe();
        self.trouble();
        let since = looked.wait_for(|at| at.is_some_and(|at| at >= asked));
        tokio::time::timeout(within, since).await.map_err(|_| LinkError::Timeout)?.ok();
        Ok(())
    }

    async fn check(&self, address: &Address, link: &Link) -> Result<(), LinkError> {
        let timeout = self.settings.connect_timeout;
        if matches!(self.deployment, Deployment::Sentinel { .. }) {
            let role = link.ask(timeout, "ROLE", Vec::new()).await?;
            let role = role.into_array().into_iter().next().and_then(Value::into_string);
            if role.as_deref() != Some("master") {
                return Err(LinkError::Unfit("is not the primary".to_owned()));
            }
        }
        if matches!(self.deployment, Deployment::Cluster(_)) {
            let info = link.ask(timeout, "CLUSTER", vec!["INFO".into()]).await?;
            if !info.as_str().is_some_and(|info| info.contains("cluster_state:ok")) {
                return Err(LinkError::Unfit("CLUSTERDOWN: its cluster is down".to_owned()));
            }
        }
        if !matches!(self.deployment, Deployment::Single(_)) {
            self.suspects.lock().push(address.clone());
            let looked = self.look_again(timeout * 2).await;
            let mut suspects = self.suspects.lock();
            if let Some(at) = suspects.iter().position(|suspect| suspect == address) {
                suspects.swap_remove(at);
            }
            looked?;
        }
        Ok(())
    }
}

/// Connections to sentinels, of which each is asked in turn: one of them may be cut off together with a
/// primary that is no longer one.
#[derive(Default)]
struct Sentinels {
    links: HashMap<Address, Link>,
    turn: usize,
}

impl Sentinels {
    async fn primary(
        &mut self,
        addresses: &[Address],
        name: &str,
        settings: &LinkSettings,
        stats: &Stats,
    ) -> Option<(Address, u64)> {
        let first = self.turn;
        self.turn = self.turn.wrapping_add(1);
        for step in 0..addresses.len() {
            let address = addresses.get(first.wrapping_add(step) % addresses.len())?;
            match self.ask(address, name, settings).await {
                Ok(Some(found)) => return Some(found),
                Ok(None) => stats.unreachable(address, "knows no primary of that name"),
                Err(error) => {
                    self.links.remove(address);
                    stats.unreachable(address, &error.to_string());
                }
            }
        }
        None
    }

    async fn ask(
        &mut self,
        address: &Address,
        name: &str,
        settings: &LinkSettings,
    ) -> Result<Option<(Address, u64)>, LinkError> {
        if !self.links.contains_key(address) {
            self.links.insert(address.clone(), sentinel(address, settings).await?);
        }
        let Some(link) = self.links.get(address) else { return Ok(None) };
        let ask = |what: &'static str| {
            let args = vec![Value::from_static_str(what), name.into()];
            link.ask(settings.connect_timeout, "SENTINEL", args)
        };
        // While its replicas are told of a new primary, a sentinel still names the old one beside the epoch.
        let place = ask("GET-MASTER-ADDR-BY-NAME").await?.into_array();
        let [host, port] = place.as_slice() else { return Ok(None) };
        let fields = ask("MASTER").await?.into_array();
        let found = || {
            let (epochs, []) = fields.as_chunks::<2>() else { return None };
            let is_epoch = |name: &Value| name.as_str().as_deref() == Some("config-epoch");
            let [_, epoch] = epochs.iter().find(|[name, _]| is_epoch(name))?;
            let port = port.as_string()?.parse().ok()?;
            Some((Address { host: host.as_string()?, port }, epoch.as_string()?.parse().ok()?))
        };
        Ok(found())
    }
}

/// Connects to a sentinel. Many ask for no password where their servers do, and refuse one.
async fn sentinel(address: &Address, settings: &LinkSettings) -> Result<Link, LinkError> {
    // Sentinels have no databases.
    let settings = LinkSettings { database: 0, ..settings.clone() };
    match Link::open(address, &settings).await {
        Err(LinkError::Redis(error))
            if error.details().contains("AUTH") || *error.kind() == ErrorKind::Auth =>
        {
            let open = LinkSettings { username: None, password: Password::None, ..settings };
            Link::open(address, &open).await.map_err(|_| LinkError::Redis(error))
        }
        opened => opened,
    }
}
