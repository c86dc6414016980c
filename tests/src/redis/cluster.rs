//! Starts and changes a Redis Cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use futures::future::join_all;

use super::{Redis, Setup};
use crate::{finish, until};

/// Number of primaries.
const PRIMARIES: usize = 3;

/// Time after which a requested failover has failed: Redis itself gives up after five seconds.
const FAILOVER_TIMEOUT: Duration = Duration::from_secs(6);

/// A Redis Cluster of three primaries, without Redis replicas, or with one each that takes over after about two
/// seconds.
#[derive(Debug)]
pub struct Cluster {
    /// All nodes. The first three began as primaries; added ones are last.
    pub nodes: Vec<Redis>,
    setup: Setup,
}

/// The move of a slot from one node to another. Nodes are positions in [`Cluster::nodes`].
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    /// The slot.
    pub slot: u16,
    /// The old owner.
    pub from: usize,
    /// The new owner.
    pub to: usize,
}

impl Cluster {
    /// Starts a cluster with default settings.
    pub async fn start() -> Self {
        Self::of(Setup::new()).await
    }

    /// Starts a cluster with these settings, and waits until all nodes report it complete and all replicas are in sync:
    /// earlier, no replica could take over.
    pub async fn of(setup: Setup) -> Self {
        Self::with_replicas(setup, 1).await
    }

    /// Starts primaries without replicas, so that only calls cost them CPU.
    pub async fn of_primaries() -> Self {
        Self::with_replicas(Setup::new(), 0).await
    }

    /// Starts a cluster with this number of replicas for each primary.
    async fn with_replicas(setup: Setup, replicas: usize) -> Self {
        let setup = setup.config("cluster-enabled yes\ncluster-node-timeout 1000");
        let nodes = (0..PRIMARIES * (1 + replicas)).map(|_| setup.clone().start());
        let nodes = join_all(nodes).await;
        let cluster = Self { nodes, setup };
        let mut create = cluster.nodes[0].client();
        create.args(["--cluster", "create"]).args(cluster.nodes.iter().map(Redis::address));
        create.args(["--cluster-replicas", &replicas.to_string(), "--cluster-yes"]);
        let created = finish(create).await;
        assert_eq!(created.code, 0, "{created:?}");
        let following = || async {
            let roles = join_all(cluster.nodes.iter().map(Redis::is_replica)).await;
            (roles.iter().filter(|it| **it).count() == PRIMARIES * replicas).then_some(())
        };
        until("the replicas to know their part", following).await;
        cluster.until_whole().await;
        cluster
    }

    /// Adds a primary without slots, and waits until every node knows it. Returns its position.
    pub async fn add_primary(&mut self) -> usize {
        let added = self.setup.clone().start().await;
        let port = added.port.to_string();
        self.nodes[0].query(&["CLUSTER", "MEET", "127.0.0.1", &port]).await;
        self.nodes.push(added);
        let all = format!("cluster_known_nodes:{}", self.nodes.len());
        for node in self.running() {
            until("the node to be known", || async {
                let info = node.try_query(&["CLUSTER", "INFO"]).await.ok()?;
                info.contains(&all).then_some(())
            })
            .await;
        }
        self.until_whole().await;
        self.nodes.len() - 1
    }

    /// The URL for `--store`, with three nodes.
    #[must_use]
    pub fn url(&self) -> String {
        let urls: Vec<_> = self.nodes.iter().take(PRIMARIES).map(Redis::url).collect();
        let (scheme, _) = urls[0].split_once(':').unwrap();
        let addresses: Vec<_> = self.nodes.iter().take(PRIMARIES).map(Redis::address).collect();
        format!("{scheme}-cluster://{}", addresses.join(","))
    }

    /// The nodes that are neither killed nor paused.
    fn running(&self) -> impl Iterator<Item = &Redis> {
        self.nodes.iter().filter(|node| node.is_running())
    }

    /// Waits until every running node reports that all slots are served, and every running replica is in sync.
    pub async fn until_whole(&self) {
        for node in self.running() {
            until("the cluster to be whole", || async {
                let info = node.try_query(&["CLUSTER", "INFO"]).await.ok()?;
                info.contains("cluster_state:ok").then_some(())
            })
            .await;
            node.until_synced().await;
        }
    }

    /// Waits until the replica of a primary has acknowledged all writes. `WAIT` covers only writes of its own
    /// connection.
    pub async fn until_replicated(&self, primary: usize) {
        let primary = &self.nodes[primary];
        until("the replica to have all writes", || async {
            let replica = primary.info("replication", "slave0").await.ok()??;
            let written = primary.info("replication", "master_repl_offset").await.ok()??;
            let mut fields = replica.split(',');
            fields.any(|it| it.strip_prefix("offset=") == Some(&written)).then_some(())
        })
        .await;
    }

    /// The slot of a key.
    pub async fn slot(&self, key: &str) -> u16 {
        let node = self.running().next().unwrap();
        node.query(&["CLUSTER", "KEYSLOT", key]).await.parse().unwrap()
    }

    /// Position of the primary of a slot, as most running nodes report it.
    pub async fn primary_of(&self, slot: u16) -> Option<usize> {
        let running = self.running().count();
        let mut votes = BTreeMap::<usize, usize>::new();
        for node in self.running() {
            let nodes = node.try_query(&["CLUSTER", "NODES"]).await.unwrap_or_default();
            let primary = nodes.lines().map(Seen::new).find(|seen| seen.serves(slot));
            if let Some(primary) = primary {
                let place = self.nodes.iter().position(|node| node.address() == primary.address);
                *votes.entry(place.unwrap()).or_default() += 1;
            }
        }
        votes.into_iter().find_map(|(place, votes)| (votes * 2 > running).then_some(place))
    }

    /// Waits until another node than `former` serves the slot, and the cluster is complete again.
    pub async fn until_taken_over(&self, slot: u16, former: usize) -> usize {
        let successor = until("another primary", || async {
            self.primary_of(slot).await.filter(|place| *place != former)
        })
        .await;
        self.until_whole().await;
        successor
    }

    /// Makes a replica take over from its primary, and waits until all running nodes agree. No acknowledged write is
    /// lost.
    ///
    /// # Panics
    /// The node is a primary.
    pub async fn fail_over(&self, place: usize) {
        let node = &self.nodes[place];
        assert!(node.is_replica().await, "is a primary");
        while node.is_replica().await {
            // An error means that the replica has already taken over.
            let _taken_over = node.try_query(&["CLUSTER", "FAILOVER"]).await;
            let taken_over = until("the replica to take over", || async {
                (!node.is_replica().await).then_some(())
            });
            let _given_up = tokio::time::timeout(FAILOVER_TIMEOUT, taken_over).await;
        }
        self.until_whole().await;
        self.until_agreed().await;
    }

    /// Waits until all running nodes name the same primary for every slot. Earlier, a replica that takes over may claim
    /// slots that its primary has just transferred.
    pub async fn until_agreed(&self) {
        until("the nodes to agree", || async {
            let mut views = BTreeSet::new();
            for node in self.running() {
                let nodes = node.try_query(&["CLUSTER", "NODES"]).await.ok()?;
                views.insert(nodes.lines().filter_map(|line| Seen::new(line).owns()).collect());
            }
            let views: BTreeSet<BTreeSet<(String, Vec<String>)>> = views;
            (views.len() == 1).then_some(())
        })
        .await;
    }

    /// Positions of the running primaries.
    pub async fn primary_places(&self) -> Vec<usize> {
        let mut places = Vec::new();
        for (place, node) in self.nodes.iter().enumerate() {
            if node.is_running() && !node.is_replica().await {
                places.push(place);
            }
        }
        places
    }

    /// Begins to move a slot: from now on, two nodes serve parts of it.
    ///
    /// # Panics
    /// The slot has no primary, or is already on the node `to`.
    pub async fn migrate_start(&self, slot: u16, to: usize) -> Migration {
        let from = self.primary_of(slot).await.unwrap();
        assert_ne!(from, to, "is there already");
        let migration = Migration { slot, from, to };
        self.set_slot(to, slot, "IMPORTING", from).await;
        self.set_slot(from, slot, "MIGRATING", to).await;
        migration
    }

    /// Moves at most `count` keys of the slot. Returns the number of moved keys.
    pub async fn migrate_keys(&self, migration: Migration, count: usize) -> usize {
        let Migration { slot, from, to } = migration;
        let (slot, count) = (slot.to_string(), count.to_string());
        let from = &self.nodes[from];
        let keys = from.query(&["CLUSTER", "GETKEYSINSLOT", &slot, &count]).await;
        let keys: Vec<_> = keys.lines().filter(|key| !key.is_empty()).collect();
        let port = self.nodes[to].port.to_string();
        for key in &keys {
            from.query(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]).await;
        }
        keys.len()
    }

    /// Moves the remaining keys of the slot and announces the new owner to every primary.
    pub async fn migrate_end(&self, migration: Migration) {
        let Migration { slot, from, to } = migration;
        while self.migrate_keys(migration, 100).await > 0 {}
        // The new owner first: otherwise the slot has no owner until the next command.
        self.set_slot(to, slot, "NODE", to).await;
        self.set_slot(from, slot, "NODE", to).await;
        for place in 0..self.nodes.len() {
            let node = &self.nodes[place];
            if node.is_running() && ![from, to].contains(&place) && !node.is_replica().await {
                self.set_slot(place, slot, "NODE", to).await;
            }
        }
        until("the slot to have moved", || async {
            (self.primary_of(slot).await == Some(to)).then_some(())
        })
        .await;
    }

    async fn set_slot(&self, target: usize, slot: u16, state: &str, node: usize) {
        let id = self.nodes[node].query(&["CLUSTER", "MYID"]).await;
        self.nodes[target].query(&["CLUSTER", "SETSLOT", &slot.to_string(), state, &id]).await;
    }

    /// The running primaries.
    async fn primaries(&self) -> Vec<&Redis> {
        self.primary_places().await.into_iter().map(|place| &self.nodes[place]).collect()
    }

    /// The keys of all running primaries that match a pattern.
    pub async fn keys(&self, pattern: &str) -> BTreeSet<String> {
        let mut keys = BTreeSet::new();
        for primary in self.primaries().await {
            keys.extend(primary.keys(pattern).await);
        }
        keys
    }

    /// Number of calls of a command on all running nodes.
    pub async fn calls(&self, command: &str) -> u64 {
        let calls = join_all(self.running().map(|node| node.calls(command))).await;
        calls.iter().sum()
    }
}

/// A line of the reply to CLUSTER NODES.
struct Seen<'a> {
    address: &'a str,
    flags: &'a str,
    slots: Vec<&'a str>,
}

impl<'a> Seen<'a> {
    fn new(line: &'a str) -> Self {
        let words: Vec<_> = line.split_whitespace().collect();
        let (address, _) = words[1].split_once('@').unwrap();
        Self { address, flags: words[2], slots: words[8..].to_vec() }
    }

    /// The address and the slots of a primary that has slots.
    fn owns(&self) -> Option<(String, Vec<String>)> {
        let slots: Vec<_> = self.settled().map(str::to_owned).collect();
        (!slots.is_empty()).then(|| (self.address.to_owned(), slots))
    }

    /// The slots of the node, without moving ones, which are in brackets.
    fn settled(&self) -> impl Iterator<Item = &'a str> {
        self.slots.iter().copied().filter(|range| !range.starts_with('['))
    }

    fn serves(&self, slot: u16) -> bool {
        // A failed node keeps its slots until a replica takes over.
        let serves = self.flags.split(',').all(|flag| flag != "fail");
        serves
            && self.settled().map(|range| range.split_once('-').unwrap_or((range, range))).any(
                |(first, last)| (first.parse().unwrap()..=last.parse().unwrap()).contains(&slot),
            )
    }
}
