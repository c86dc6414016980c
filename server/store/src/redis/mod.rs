//! Counters in Redis, shared by every replica of this service.
//!
//! One script call settles all checks of a request on one slot atomically. Checks on other slots are
//! settled by other calls at the same time; [`FailurePolicy`](crate::FailurePolicy) gets all answers, and
//! refunds the charges of one slot if another refused.
//!
//! A single server is a cluster of one: the same type serves both, and a primary behind
//! sentinels.

mod call;
mod command;
mod failure;
mod heartbeat;
mod info;
mod inspect;
mod key_prefix;
mod link;
mod memory_info;
mod node;
mod outage;
mod pipeline;
mod pooled;
mod probe;
mod reply;
mod script;
mod slots;
mod sockets;
mod stats;
mod topology;
mod url;
mod watched;

use std::{
    borrow::Cow,
    num::NonZeroUsize,
    slice,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::join_all;
use sluicegate_core::{
    Answers, Batch, Check, CounterKey, Store, StoreError, store::PendingAnswers,
};
use smallvec::SmallVec;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{Clock, Lanes, LiveReplicas, Place, Redirected, Settled, clock};
use failure::{Failure, LateReply, within};
use heartbeat::Heartbeat;
use node::{Fitness as _, Node};
use sockets::Sockets;
use topology::{Map, Topology};

pub use call::{Call, Replied, UnexpectedReply};
pub use failure::LATE_MAX;
pub use inspect::Cursor;
pub use key_prefix::{KEY_PREFIX_MAX, KeyPrefix, KeyPrefixError};
pub use link::{ByteStream, Connect, FileError, LinkSettings, Password, TlsFiles};
pub use memory_info::MemoryInfo;
pub use reply::Reply;
pub use script::Script;
pub use slots::hash_slot;
pub use stats::{Count, Stats};
pub use url::{Address, Deployment, RedisUrl, UrlError};

/// How often one call follows a slot that moves, or waits for it.
const REDIRECTIONS_MAX: usize = 16;

/// How long to wait for keys that are being moved.
const MOVING: Duration = Duration::from_millis(1);

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
    /// Prefix of every key.
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

/// Interval of checks whether connections are open.
const CONNECTED_INTERVAL: Duration = Duration::from_millis(2);

/// How one server does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// Which.
    pub address: Address,
    /// What is wrong with it; `None` if it answers.
    pub complaint: Option<String>,
    /// Open connections to it.
    pub connections: usize,
    /// Connections that there should be.
    pub connections_wanted: usize,
    /// Its memory and keys, as of the last `INFO`; `None` without `INFO` permission or without a reply.
    pub memory: Option<MemoryInfo>,
}

impl NodeStatus {
    /// Whether calls to it fail at once.
    #[must_use]
    pub const fn is_breaker_open(&self) -> bool {
        self.connections == 0
    }
}

impl Redis {
    /// Starts to connect. Until a connection is open, checks are answered [`StoreError::Unavailable`].
    ///
    /// Updates `replicas`, if given, to the number of processes that share the counters. Uses Redis' own
    /// clock unless `clock` is given.
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
        let prefix: Box<[u8]> = settings.key_prefix.as_bytes().into();
        let sockets = Sockets::new(settings.connections_max, settings.connections.get());
        let database = settings.link.database;
        let topology =
            Topology::start(settings.deployment, sockets, settings.link, &stats, &running);
        let probes = probe::watch(Arc::clone(&topology), prefix.clone());
        tokio::spawn(running.clone().run_until_cancelled_owned(probes));
        let heartbeat = Heartbeat::new(&prefix, Arc::clone(&topology)).beat(replicas);
        tokio::spawn(running.clone().run_until_cancelled_owned(heartbeat));
        let polls = info::poll(Arc::clone(&topology), Arc::clone(&stats), database);
        tokio::spawn(running.clone().run_until_cancelled_owned(polls));
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
            memory: node.memory(),
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
                all(part, StoreError::Moved)
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
    /// is time. Without a reply it ends with [`Failure::NotRun`], [`Failure::Unknown`] or [`Failure::LateReply`].
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

    fn is_available(&self, key: &CounterKey) -> bool {
        let map = self.topology.map();
        map.owner(map.slot(key)).is_some_and(|node| node.is_up())
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
            Box::pin(late_answers(late, first, until, topology, stats)) as PendingAnswers
        });
        Settled { answers: ordered, late }
    }
}

/// What a group has on one slot.
struct Piece<'a> {
    owner: u16,
    slot: u16,
    checks: Cow<'a, [Check]>,
    /// Position of each of these checks in the batch.
    positions: SmallVec<[usize; 4]>,
}

impl<'a> Piece<'a> {
    /// Adds the parts of a group whose first check is at position `first`.
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
            let check =
                Check { refusal_scope: check.refusal_scope.for_one_slot(), ..check.clone() };
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
