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
mod command;
mod heartbeat;
mod inspect;
mod link;
mod node;
mod outage;
mod pipeline;
mod probe;
mod reply;
mod script;
mod size;
mod slots;
mod sockets;
mod stored;
mod topology;
mod url;
mod watched;

use std::{
    borrow::Cow,
    num::NonZeroUsize,
    slice,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use futures::future::join_all;
use parking_lot::Mutex;
use sluicegate_core::{Answers, Batch, Check, CounterKey, Store, StoreError, store::Late};
use smallvec::SmallVec;
use thiserror::Error;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    Clock, Lanes, LiveReplicas, LogLimit, Place, Redirected, Settled, clock, observed::Observed,
};
use heartbeat::Heartbeat;
use node::{Failure, Fitness as _, LateReply, Node, within};
use sockets::Sockets;
use topology::{Map, Topology};

pub use call::{Call, Replied, UnexpectedReply};
pub use inspect::Cursor;
pub use link::{ByteStream, Connect, FileError, LinkSettings, Password, TlsFiles};
pub use node::LATE_MAX;
pub use reply::Reply;
pub use script::Script;
pub use size::Size;
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
    /// The counter of which this is the name in Redis, if it is the name of one.
    #[must_use]
    pub fn counter(&self, name: &str) -> Option<CounterKey> {
        CounterKey::from_text(name.strip_prefix(&self.0)?.as_bytes())
    }

    /// The name of a counter in Redis.
    #[must_use]
    pub fn name(&self, key: &CounterKey) -> String {
        format!("{}{}", self.0, String::from_utf8_lossy(key.as_bytes()))
    }
}

/// The slot of a Redis Cluster that a counter lies on. A prefix does not change it.
#[must_use]
pub fn hash_slot(key: &CounterKey) -> u16 {
    slots::key_slot(key.as_bytes())
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
    /// The most connections to all servers together. Where there are more servers, each has fewer connections, and some have
    /// none.
    pub connections_max: usize,
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
    /// Connections made.
    pub connections: Count,
    /// Of these, the ones in the place of one that stood before.
    pub reconnects: Count,
    /// Connections dropped because of a reply beyond a bound, or of none that could be read.
    pub replies_rejected: Count,
    /// Times that scripts were loaded because a server had lost them.
    pub script_loads: Count,
    /// Redirections to servers that the cluster does not name.
    pub redirections_refused: Count,
    /// Times that something was found under a counter's name that cannot be its state.
    pub counters_unusable: Count,
    unusable: Observed<CounterKey>,
    refused_logged: LogLimit,
    call_durations: Observed<Duration>,
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
    /// Has it told how long each call takes, from sending it until it is answered or given up; calls to one server that
    /// are sent together are one. Only the first who asks is told.
    pub fn on_call(&self, listener: impl Fn(Duration) + Send + Sync + 'static) {
        self.call_durations.tell(listener);
    }

    /// Has it told of each counter under whose name something was found that cannot be its state. Only the first who asks
    /// is told.
    pub fn on_unusable(&self, listener: impl Fn(CounterKey) + Send + Sync + 'static) {
        self.unusable.tell(listener);
    }

    /// A redirection leads to a server that the cluster does not name.
    fn redirection_refused(&self, address: &Address) {
        self.redirections_refused.add(1);
        if self.refused_logged.allows() {
            tracing::warn!(
                redis = %address,
                "Redis redirects a call to a server that its cluster does not name, rules' on_failure decides"
            );
        }
    }

    /// Warns of servers that drop counters when they run out of memory.
    fn memory(&self, address: &Address, info: &str) {
        let policy = size::field(info, "maxmemory_policy").unwrap_or("noeviction");
        let bounded = size::field(info, "maxmemory").is_some_and(|bytes| bytes != "0");
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

/// How often to look whether connections stand.
const CONNECTED_INTERVAL: Duration = Duration::from_millis(2);

/// The most different warnings about servers.
const TOLD_MAX: usize = 1000;

/// How one server does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// Which.
    pub address: Address,
    /// What is wrong with it; `None` if it answers.
    pub complaint: Option<String>,
    /// Connections to it that stand.
    pub connections: usize,
    /// Connections that there should be.
    pub connections_wanted: usize,
    /// How much it holds, as last asked; `None` if it does not say.
    pub size: Option<Size>,
}

impl NodeStatus {
    /// Whether calls to it fail at once.
    #[must_use]
    pub const fn is_breaker_open(&self) -> bool {
        self.connections == 0
    }
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
        let sockets = Sockets::new(settings.connections_max, settings.connections.get());
        let database = settings.link.database;
        let topology =
            Topology::start(settings.deployment, sockets, settings.link, &stats, &running);
        let probes = probe::watch(Arc::clone(&topology), prefix.clone());
        tokio::spawn(running.clone().run_until_cancelled_owned(probes));
        let heartbeat = Heartbeat::new(&prefix, Arc::clone(&topology)).beat(replicas);
        tokio::spawn(running.clone().run_until_cancelled_owned(heartbeat));
        let sizes = size::watch(Arc::clone(&topology), Arc::clone(&stats), database);
        tokio::spawn(running.clone().run_until_cancelled_owned(sizes));
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
            connections: node.connections(),
            size: node.size(),
            connections_wanted: node.connections_wanted(),
        };
        self.topology.map().nodes().iter().map(status).collect()
    }

    /// Whether some counters cannot be asked.
    pub fn is_degraded(&self) -> bool {
        self.topology.is_degraded()
    }

    /// Waits until every counter can be asked, for so long at most.
    pub async fn connected(&self, within: Duration) {
        let connected = async {
            while self.is_degraded() {
                tokio::time::sleep(CONNECTED_INTERVAL).await;
            }
        };
        let _late = tokio::time::timeout(within, connected).await;
    }

    /// For how long some counters could not be asked, all times together.
    pub fn degraded_for(&self) -> Duration {
        self.topology.degraded_for()
    }

    /// Asks one server about parts, each of which it settles for itself. Returns the parts without a reply so far, too.
    async fn ask(
        &self,
        map: &Map,
        parts: &[&[Piece<'_>]],
        deadline: Option<Instant>,
        redirected: Redirected,
    ) -> (Vec<Answers>, Vec<LatePart>) {
        let all = |part: &[Piece<'_>], error| {
            part.iter().flat_map(|piece| piece.checks.iter()).map(|_| Err(error)).collect()
        };
        let slot_of = |part: &[Piece<'_>]| part.first().map_or(0, |piece| piece.slot);
        let Some(owner) = parts.first().and_then(|part| map.owner(slot_of(part))) else {
            self.topology.trouble();
            let answers = parts.iter().map(|part| all(part, StoreError::Unavailable));
            return (answers.collect(), Vec::new());
        };
        let now = self.clock.as_ref().map(|clock| clock.read().wall);
        let call = |part: &&[Piece<'_>]| {
            Call::new(&self.prefix, part.iter().map(|piece| piece.checks.iter()), now)
        };
        let calls: SmallVec<[Call; 1]> = parts.iter().map(call).collect();
        let topology = Arc::downgrade(&self.topology);
        let mut replies = owner.call(&calls, false, deadline, &topology).await;
        let mut followed = Vec::new();
        for ((part, call), reply) in parts.iter().zip(&calls).zip(&mut replies) {
            if matches!((&reply, redirected), (Err(_), Redirected::Follow)) {
                // Rare and large.
                followed.push(Box::pin(async move {
                    let first = std::mem::replace(reply, Err(Failure::NotRun));
                    *reply = self.follow(first, call, slot_of(part), deadline).await;
                }));
            }
        }
        join_all(followed).await;
        let mut late = Vec::new();
        let answered = parts.iter().zip(calls).zip(replies);
        let answers = answered.map(|((part, call), reply)| match reply {
            Ok(reply) => match call.decode(&reply) {
                Ok(replied) => {
                    replied.unusable.iter().for_each(|name| self.note_unusable(name));
                    replied.answers
                }
                Err(error) => {
                    self.stats.replies_rejected.add(1);
                    owner.complain(&error.to_string(), &topology);
                    all(part, StoreError::Unknown)
                }
            },
            Err(Failure::Unknown) => all(part, StoreError::Unknown),
            Err(Failure::Late(reply)) => {
                let positions = part.iter().flat_map(|piece| piece.positions.iter().copied());
                let (positions, slot) = (positions.collect(), slot_of(part));
                late.push(LatePart { positions, slot, call, reply });
                all(part, StoreError::Unknown)
            }
            Err(Failure::NotRun) => all(part, StoreError::Unavailable),
            Err(Failure::Moved(_) | Failure::Ask(_) | Failure::TryAgain) => {
                self.topology.trouble();
                all(part, StoreError::Elsewhere)
            }
        });
        (answers.collect(), late)
    }

    /// Takes note of a counter under whose name something else was stored.
    fn note_unusable(&self, name: &[u8]) {
        self.stats.counters_unusable.add(1);
        let key = name.strip_prefix(&*self.prefix).and_then(CounterKey::from_text);
        if let Some(key) = key {
            self.stats.unusable.note(key);
        }
    }

    /// Goes where a call is sent instead. What redirects has run nothing, so it is followed as long as there
    /// is time. Without a reply it ends with [`Failure::NotRun`], [`Failure::Unknown`] or [`Failure::Late`].
    async fn follow(
        &self,
        first: Result<Reply, Failure>,
        call: &Call,
        slot: u16,
        deadline: Option<Instant>,
    ) -> Result<Reply, Failure> {
        let mut failure = match first {
            Ok(reply) => return Ok(reply),
            Err(failure) => failure,
        };
        let topology = Arc::downgrade(&self.topology);
        for _ in 0..REDIRECTIONS_MAX {
            let (node, asking) = match &failure {
                Failure::Moved(address) | Failure::Ask(address) => {
                    let Some(node) = self.topology.named(address, deadline).await else { break };
                    (node, matches!(failure, Failure::Ask(_)))
                }
                Failure::TryAgain => {
                    topology.trouble();
                    if within(deadline, tokio::time::sleep(MOVING)).await.is_none() {
                        break;
                    }
                    // From the start: by now the keys may be at either server.
                    let Some(owner) = self.topology.map().owner(slot).map(Arc::clone) else {
                        break;
                    };
                    (owner, false)
                }
                Failure::NotRun | Failure::Unknown | Failure::Late(_) => return Err(failure),
            };
            node.connected(deadline).await;
            let mut replies = node.call(slice::from_ref(call), asking, deadline, &topology).await;
            match replies.pop() {
                Some(Ok(reply)) => return Ok(reply),
                Some(Err(next)) => failure = next,
                None => return Err(Failure::Unknown),
            }
        }
        match failure {
            Failure::Unknown | Failure::Late(_) => Err(failure),
            _ => Err(Failure::NotRun),
        }
    }
}

/// A call without a reply at its deadline.
struct LatePart {
    /// The positions of its checks in the batch.
    positions: SmallVec<[usize; 4]>,
    slot: u16,
    call: Call,
    reply: LateReply,
}

/// The answers to a batch of so many checks that come until then.
async fn late_answers(
    parts: Vec<LatePart>,
    checks: usize,
    until: Instant,
    topology: Arc<Topology>,
    stats: Arc<Stats>,
) -> Answers {
    let mut answers: Answers = (0..checks).map(|_| Err(StoreError::Unknown)).collect();
    let (mut charged, mut owners) = (Vec::new(), Vec::new());
    for LatePart { positions, slot, call, reply } in parts {
        let server = reply.server.clone();
        let reply = reply.until(until).await;
        let decoded = match &reply {
            Ok(reply) => call.decode(reply).map(|it| it.answers).map_err(|_| {
                stats.replies_rejected.add(1);
                StoreError::Unknown
            }),
            Err(Failure::NotRun) => Err(StoreError::Unavailable),
            Err(_) => Err(StoreError::Unknown),
        };
        for (at, &position) in positions.iter().enumerate() {
            let answer = match &decoded {
                Ok(answers) => answers.get(at).copied().unwrap_or(Err(StoreError::Unknown)),
                Err(error) => Err(*error),
            };
            answers.get_mut(position).into_iter().for_each(|it| *it = answer);
        }
        if decoded.is_ok_and(|it| it.iter().flatten().any(|it| it.receipt.is_some())) {
            charged.push(positions);
            owners.push((slot, server));
        }
    }
    if charged.is_empty() {
        return answers;
    }
    let own = topology.still_own(&owners).await;
    let lost = charged.into_iter().zip(own).filter(|(_, owns)| !owns);
    for position in lost.flat_map(|(positions, _)| positions) {
        answers.get_mut(position).into_iter().for_each(|it| *it = Err(StoreError::Unknown));
    }
    answers
}

impl Store for Redis {
    async fn decide(&self, batch: Batch) -> Answers {
        self.settle(batch, Redirected::Follow).await.answers
    }
}

impl Lanes for Redis {
    fn place(&self, key: &CounterKey) -> Place {
        let map = self.topology.map();
        let slot = map.slot(key);
        Place { lane: usize::from(map.position(slot)), slot }
    }

    async fn settle(&self, batch: Batch, redirected: Redirected) -> Settled {
        let Batch { groups, deadline } = batch;
        let map = self.topology.map();
        let mut pieces = Vec::with_capacity(groups.len());
        let mut first = 0;
        for group in &groups {
            Piece::cut(&map, group, first, &mut pieces);
            first += group.len();
        }
        // Groups of one slot stay in order.
        pieces.sort_by_key(|piece| (piece.owner, piece.slot));
        let parts: Vec<&[Piece<'_>]> = pieces.chunk_by(|a, b| a.slot == b.slot).collect();
        let same_owner = |a: &&[Piece<'_>], b: &&[Piece<'_>]| {
            a.first().map(|piece| piece.owner) == b.first().map(|piece| piece.owner)
        };
        let of_owners = parts.chunk_by(same_owner);
        let answers = of_owners.map(|parts| self.ask(&map, parts, deadline, redirected));
        let (answers, late): (Vec<_>, Vec<_>) = join_all(answers).await.into_iter().unzip();
        let positions = pieces.iter().flat_map(|piece| piece.positions.iter().copied());
        let mut ordered: Answers = (0..first).map(|_| Err(StoreError::Unknown)).collect();
        for (position, answer) in positions.zip(answers.into_iter().flatten().flatten()) {
            ordered.get_mut(position).into_iter().for_each(|it| *it = answer);
        }
        let late: Vec<LatePart> = late.into_iter().flatten().collect();
        let late = (!late.is_empty()).then(|| {
            let until = clock::now() + LATE_MAX;
            let (topology, stats) = (Arc::clone(&self.topology), Arc::clone(&self.stats));
            Box::pin(late_answers(late, first, until, topology, stats)) as Late
        });
        Settled { answers: ordered, late }
    }
}

/// What a group has on one slot.
struct Piece<'a> {
    owner: u16,
    slot: u16,
    checks: Cow<'a, [Check]>,
    /// Where each of these checks stands in the batch.
    positions: SmallVec<[usize; 4]>,
}

impl<'a> Piece<'a> {
    /// Adds the pieces of a group whose first check stands at `first`.
    fn cut(map: &Map, group: &'a [Check], first: usize, pieces: &mut Vec<Self>) {
        let slots: SmallVec<[u16; 8]> = group.iter().map(|check| map.slot(&check.key)).collect();
        let piece =
            |slot, checks, positions| Self { owner: map.position(slot), slot, checks, positions };
        let Some((&slot, others)) = slots.split_first() else { return };
        if others.iter().all(|other| *other == slot) {
            let positions = (first..first + group.len()).collect();
            pieces.push(piece(slot, Cow::Borrowed(group), positions));
            return;
        }
        let begun = pieces.len();
        for (offset, (check, &slot)) in group.iter().zip(&slots).enumerate() {
            let check = Check { veto: check.veto.of_part(), ..check.clone() };
            let known = pieces.iter_mut().skip(begun).find(|piece| piece.slot == slot);
            match known {
                Some(known) => {
                    known.checks.to_mut().push(check);
                    known.positions.push(first + offset);
                }
                None => {
                    let positions = SmallVec::from_iter([first + offset]);
                    pieces.push(piece(slot, Cow::Owned(vec![check]), positions));
                }
            }
        }
    }
}
