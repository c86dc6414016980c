//! Counters in Redis, shared by every replica of this service.
//!
//! All checks of one request that lie on one slot are settled by one call of one script, at one moment of
//! one server. Checks on other slots are settled by calls of their own, at the same time; what has to be
//! given back because another slot refused is the business of [`FailurePolicy`](crate::FailurePolicy),
//! which hears of all of them.
//!
//! A server that is alone is a cluster of one: the same type serves both, and a primary that sentinels
//! choose.

mod call;
mod heartbeat;
mod link;
mod node;
mod script;
mod slots;
mod stored;
mod topology;
mod url;

use std::{
    num::NonZeroUsize,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use fred::util::redis_keyslot;
use futures::future::join_all;
use parking_lot::Mutex;
use sluicegate_core::{Answers, Batch, Check, CounterKey, Store, StoreError, store::Veto};
use smallvec::SmallVec;
use thiserror::Error;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{Clock, LiveReplicas};
use heartbeat::Heartbeat;
use node::{Failure, Fitness as _, Node, within};
use topology::{Map, Topology};

pub use call::{Call, UnexpectedReply};
pub use link::{FileError, LinkSettings, Password, TlsFiles};
pub use script::Script;
pub use stored::state_of;
pub use url::{Address, Deployment, RedisUrl, UrlError};

/// How often one call follows a slot that moves, or waits for it.
const REDIRECTIONS_MAX: usize = 16;

/// How long to wait for keys that are being moved.
const MOVING: Duration = Duration::from_millis(1);

/// The longest key prefix, in bytes.
pub const KEY_PREFIX_MAX: usize = 64;

/// What stands before every key, so that several installations can share one Redis.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyPrefix(String);

/// A prefix that cannot be used.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error(
    "a key prefix is up to {KEY_PREFIX_MAX} printable ASCII characters without spaces and braces"
)]
pub struct KeyPrefixError;

impl FromStr for KeyPrefix {
    type Err = KeyPrefixError;

    fn from_str(text: &str) -> Result<Self, KeyPrefixError> {
        // Braces would choose the slot of every key.
        let fits = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'{' | b'}');
        let good = text.len() <= KEY_PREFIX_MAX && text.bytes().all(fits);
        good.then(|| Self(text.to_owned())).ok_or(KeyPrefixError)
    }
}

impl KeyPrefix {
    /// The name of a counter in Redis.
    #[must_use]
    pub fn name(&self, key: &CounterKey) -> String {
        format!("{}{}", self.0, String::from_utf8_lossy(key.as_bytes()))
    }
}

/// The slot of a Redis Cluster that a counter lies on. A prefix does not change it.
#[must_use]
pub fn hash_slot(key: &CounterKey) -> u16 {
    redis_keyslot(key.as_bytes())
}

/// Where Redis is and how to use it.
#[derive(Clone, Debug)]
pub struct RedisSettings {
    /// Which servers.
    pub deployment: Deployment,
    /// How to connect to each.
    pub link: LinkSettings,
    /// Connections to each server.
    pub connections: NonZeroUsize,
    /// What stands before every key.
    pub key_prefix: KeyPrefix,
}

/// Counters in Redis.
pub struct Redis {
    topology: Arc<Topology>,
    prefix: Box<[u8]>,
    clock: Option<Arc<dyn Clock>>,
    stats: Arc<Stats>,
    _running: DropGuard,
}

impl std::fmt::Debug for Redis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redis").field("status", &self.status()).finish_non_exhaustive()
    }
}

/// What is counted about the way to Redis.
#[derive(Debug, Default)]
pub struct Stats {
    /// Calls sent.
    pub calls: Count,
    /// Takes of which nobody knows whether they were charged. Each may stay charged until it expires.
    pub unknown_takes: Count,
    /// Connections made.
    pub connections: Count,
    /// Times that scripts were loaded because a server had lost them.
    pub script_loads: Count,
    /// Servers that cannot be reached, and with what they may drop: told once.
    told: Mutex<Vec<String>>,
}

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// The number.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Stats {
    /// Warns of servers that drop counters when they run out of memory.
    fn memory(&self, address: &Address, info: &str) {
        let field = |name: &str| {
            info.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'))
        };
        let policy = field("maxmemory_policy").unwrap_or("noeviction");
        let bounded = field("maxmemory").is_some_and(|bytes| bytes != "0");
        if bounded && policy != "noeviction" && self.tell(format!("{address} {policy}")) {
            tracing::warn!(
                redis = %address, policy,
                "Redis may drop live counters when its memory is full, and with them forget what was used; \
                 set maxmemory-policy noeviction"
            );
        }
    }

    /// Warns of servers and sentinels that cannot tell who is who.
    fn unreachable(&self, address: &Address, why: &str) {
        if self.tell(format!("{address} {why}")) {
            tracing::warn!(redis = %address, why, "cannot tell which servers there are");
        } else {
            tracing::debug!(redis = %address, why, "cannot tell which servers there are");
        }
    }

    /// Whether this was not told before.
    fn tell(&self, what: String) -> bool {
        let mut told = self.told.lock();
        let new = told.len() < TOLD_MAX && !told.contains(&what);
        if new {
            told.push(what);
        }
        new
    }
}

/// The most different warnings about servers.
const TOLD_MAX: usize = 1000;

/// How one server does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// Which.
    pub address: Address,
    /// What is wrong with it; `None` if it answers.
    pub complaint: Option<String>,
}

impl Redis {
    /// Begins to connect. What is asked before a connection stands is answered [`StoreError::Unavailable`].
    ///
    /// `replicas` is kept at the number of processes that share the counters, if it is given. Redis' own
    /// clock is gone by, unless `clock` is given.
    ///
    /// # Errors
    /// A password or TLS file cannot be used.
    pub fn start(
        settings: RedisSettings,
        replicas: Option<LiveReplicas>,
        clock: Option<Arc<dyn Clock>>,
    ) -> Result<Self, FileError> {
        settings.link.check()?;
        let stats = Arc::new(Stats::default());
        let running = CancellationToken::new();
        let prefix: Box<[u8]> = settings.key_prefix.0.as_bytes().into();
        let links = settings.connections.get();
        let topology = Topology::start(settings.deployment, links, settings.link, &stats, &running);
        let heartbeat = Heartbeat::new(&prefix, Arc::clone(&topology)).beat(replicas);
        tokio::spawn(running.clone().run_until_cancelled_owned(heartbeat));
        Ok(Self { topology, prefix, clock, stats, _running: running.drop_guard() })
    }

    /// What was counted.
    pub fn stats(&self) -> &Arc<Stats> {
        &self.stats
    }

    /// How every server in use does. Empty while none has been found.
    pub fn status(&self) -> Vec<NodeStatus> {
        let status = |node: &Arc<Node>| NodeStatus {
            address: node.address.clone(),
            complaint: (!node.is_up()).then(|| node.complaint()),
        };
        self.topology.map().nodes().iter().map(status).collect()
    }

    /// Whether some counters cannot be asked.
    pub fn is_degraded(&self) -> bool {
        let map = self.topology.map();
        !map.is_whole() || !map.nodes().iter().all(|node| node.is_up())
    }

    /// Settles groups whose counters lie on one slot.
    async fn settle(
        &self,
        map: &Map,
        slot: u16,
        groups: &[&[Check]],
        deadline: Option<Instant>,
    ) -> Answers {
        let checks = || groups.iter().flat_map(|group| group.iter());
        let all = |error| checks().map(|_| Err(error)).collect();
        let Some(owner) = map.owner(slot) else {
            self.topology.trouble();
            return all(StoreError::Unavailable);
        };
        if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            // What would not be waited for is not charged either.
            return all(StoreError::Unavailable);
        }
        let call =
            Call::new(&self.prefix, groups.iter().copied(), self.clock.as_ref().map(Clock::now));
        match self.follow(&call, slot, owner, deadline).await {
            Ok(reply) => call.decode(&reply).unwrap_or_else(|error| {
                tracing::error!(%error, "a reply cannot be read");
                all(StoreError::Unknown)
            }),
            Err(StoreError::Unknown) => {
                let takes = checks().filter(|check| check.take.charges()).count();
                self.stats.unknown_takes.add(u64::try_from(takes).unwrap_or(0));
                all(StoreError::Unknown)
            }
            Err(error) => all(error),
        }
    }

    /// Calls whoever has the slot. What redirects has run nothing, so it is followed as long as there is time.
    async fn follow(
        &self,
        call: &Call,
        slot: u16,
        owner: &Arc<Node>,
        deadline: Option<Instant>,
    ) -> Result<fred::types::Value, StoreError> {
        let (mut node, mut asking) = (Arc::clone(owner), false);
        let topology = Arc::downgrade(&self.topology);
        for _ in 0..REDIRECTIONS_MAX {
            match node.call(call, asking, deadline, &topology).await {
                Ok(reply) => return Ok(reply),
                Err(Failure::Moved(address)) => {
                    (node, asking) = (self.topology.named(&address), false);
                }
                Err(Failure::Ask(address)) => {
                    (node, asking) = (self.topology.named(&address), true);
                }
                Err(Failure::TryAgain) => {
                    topology.trouble();
                    if within(deadline, tokio::time::sleep(MOVING)).await.is_none() {
                        break;
                    }
                    // From the start: by now the keys may be at either server.
                    let map = self.topology.map();
                    (node, asking) = (Arc::clone(map.owner(slot).unwrap_or(owner)), false);
                }
                Err(Failure::NotRun) => return Err(StoreError::Unavailable),
                Err(Failure::Unknown) => return Err(StoreError::Unknown),
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                break;
            }
        }
        Err(StoreError::Unavailable)
    }
}

impl Store for Redis {
    async fn decide(&self, batch: Batch) -> Answers {
        let map = self.topology.map();
        let groups: SmallVec<[&[Check]; 4]> = batch.groups.iter().map(|it| &**it).collect();
        if map.is_single() {
            return self.settle(&map, 0, &groups, batch.deadline).await;
        }
        let slots: SmallVec<[u16; 8]> = groups
            .iter()
            .flat_map(|group| group.iter())
            .map(|check| hash_slot(&check.key))
            .collect();
        match slots.split_first() {
            None => Answers::new(),
            Some((&slot, others)) if others.iter().all(|other| *other == slot) => {
                self.settle(&map, slot, &groups, batch.deadline).await
            }
            Some(_) => self.settle_parts(&map, &Part::split(&groups, &slots), batch.deadline).await,
        }
    }
}

impl Redis {
    /// Settles parts of groups, all at the same time.
    async fn settle_parts(&self, map: &Map, parts: &[Part], deadline: Option<Instant>) -> Answers {
        let settled = join_all(parts.iter().map(|part| async {
            let groups: Vec<&[Check]> = part.groups.iter().map(Vec::as_slice).collect();
            self.settle(map, part.slot, &groups, deadline).await
        }));
        let settled = settled.await;
        let mut answers: Vec<_> = parts
            .iter()
            .zip(settled)
            .flat_map(|(part, answers)| part.positions.iter().copied().zip(answers))
            .collect();
        answers.sort_unstable_by_key(|(position, _)| *position);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }
}

/// What of a batch lies on one slot.
struct Part {
    slot: u16,
    /// The checks of each group that has any here.
    groups: Vec<Vec<Check>>,
    /// Where each of these checks stands in the batch.
    positions: Vec<usize>,
}

impl Part {
    fn split(groups: &[&[Check]], slots: &[u16]) -> Vec<Self> {
        let mut parts: Vec<Self> = Vec::new();
        let mut first = 0;
        for group in groups {
            let of_group = slots.get(first..first + group.len()).unwrap_or_default();
            let is_split = of_group.iter().any(|slot| Some(slot) != of_group.first());
            let mut begun: SmallVec<[u16; 8]> = SmallVec::new();
            for (offset, (check, &slot)) in group.iter().zip(of_group).enumerate() {
                let at = parts.iter().position(|part| part.slot == slot).unwrap_or_else(|| {
                    parts.push(Self { slot, groups: Vec::new(), positions: Vec::new() });
                    parts.len() - 1
                });
                let Some(part) = parts.get_mut(at) else { continue };
                if !begun.contains(&slot) {
                    begun.push(slot);
                    part.groups.push(Vec::new());
                }
                let mut check = check.clone();
                if is_split && check.veto == Veto::Quota {
                    // Whether all quota rules are over shows only when every slot has answered.
                    check.veto = Veto::None;
                }
                part.positions.push(first + offset);
                part.groups.last_mut().into_iter().for_each(|checks| checks.push(check.clone()));
            }
            first += group.len();
        }
        parts
    }
}
