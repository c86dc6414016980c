//! Counters in Redis, shared by all replicas.
//!
//! One script call settles all checks of a request on one slot atomically. The checks on other slots are
//! settled by concurrent calls; [`FailurePolicy`](crate::FailurePolicy) gets all answers, and
//! refunds the charges of one slot if another refused.
//!
//! A single server, and a primary behind sentinels, is treated as a cluster of one server that owns all slots.

mod call;
mod call_error;
mod command;
mod connection;
mod degraded_timer;
mod error_code;
mod heartbeat;
mod info;
mod inspect;
mod key_prefix;
mod node;
mod pipeline;
mod pooled;
mod probe;
mod reply;
mod script;
mod server_info;
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
    Answers, Batch, Check, CounterKey, Store, StoreError, store::LateAnswersFuture,
};
use smallvec::SmallVec;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    BatchAnswers, Clock, CounterLocation, LiveReplicas, OnRedirection, QueuedStore, clock,
};
use call_error::{CallError, LateReply, until_deadline};
use heartbeat::Heartbeat;
use node::{Node, TopologyHandle as _};
use sockets::Sockets;
use topology::{SlotMap, Topology};

pub use call::{Call, DecodedReply, UnexpectedReply};
pub use call_error::LATE_REPLY_TIMEOUT;
pub use connection::{ByteStream, Connect, FileError, Password, RedisConnectionSettings, TlsFiles};
pub use inspect::Cursor;
pub use key_prefix::{KEY_PREFIX_MAX, KeyPrefix, KeyPrefixError};
pub use reply::Reply;
pub use script::Script;
pub use server_info::ServerInfo;
pub use slots::hash_slot;
pub use stats::{Count, Stats};
pub use url::{Address, Deployment, RedisUrl, UrlError};

/// The most redirections and `TRYAGAIN` retries of one call.
const REDIRECTIONS_MAX: usize = 16;

/// How long to wait before a call is sent again after `TRYAGAIN`.
const TRY_AGAIN_WAIT: Duration = Duration::from_millis(1);

/// The servers, and how to connect to them.
#[derive(Clone, Debug)]
pub struct RedisSettings {
    /// The servers.
    pub deployment: Deployment,
    /// How to connect to each server.
    pub connection: RedisConnectionSettings,
    /// Connections to each server.
    pub connections: NonZeroUsize,
    /// The most connections to all servers together. With many servers, each has fewer connections, and some have
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

/// Interval at which [`Redis::wait_until_available`] checks the servers.
const AVAILABILITY_INTERVAL: Duration = Duration::from_millis(2);

/// Status of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// The server's address.
    pub address: Address,
    /// Why the server is unusable; `None` if it is usable.
    pub error: Option<String>,
    /// Open connections.
    pub connections: usize,
    /// Connections that should be open.
    pub connections_wanted: usize,
    /// What the last `INFO` reported; `None` without `INFO` permission or without a reply.
    pub info: Option<ServerInfo>,
}

impl NodeStatus {
    /// Whether the circuit breaker is open: calls fail at once.
    #[must_use]
    pub const fn is_breaker_open(&self) -> bool {
        self.connections == 0
    }
}

impl Redis {
    /// Starts to connect. Until a connection is open, checks are answered [`StoreError::Unavailable`].
    ///
    /// Updates `replicas`, if given, to the number of replicas that share the counters. Uses Redis' own
    /// clock unless `clock` is given.
    ///
    /// # Errors
    /// A password or TLS file cannot be used.
    pub fn start(
        settings: RedisSettings,
        replicas: Option<LiveReplicas>,
        clock: Option<Arc<dyn Clock>>,
    ) -> Result<Self, FileError> {
        settings.connection.check()?;
        let stats = Arc::new(Stats::default());
        let running = CancellationToken::new();
        let prefix: Box<[u8]> = settings.key_prefix.as_bytes().into();
        let sockets = Sockets::new(settings.connections_max, settings.connections.get());
        let database = settings.connection.database;
        let topology =
            Topology::start(settings.deployment, sockets, settings.connection, &stats, &running);
        let probes = probe::run(Arc::clone(&topology), prefix.clone());
        tokio::spawn(running.clone().run_until_cancelled_owned(probes));
        let heartbeat = Heartbeat::new(&prefix, Arc::clone(&topology)).run(replicas);
        tokio::spawn(running.clone().run_until_cancelled_owned(heartbeat));
        let polls = info::poll(Arc::clone(&topology), Arc::clone(&stats), database);
        tokio::spawn(running.clone().run_until_cancelled_owned(polls));
        Ok(Self { topology, prefix, clock, stats, _running: running.drop_guard() })
    }

    /// Counts of calls and connections.
    pub fn stats(&self) -> &Arc<Stats> {
        &self.stats
    }

    /// Status of every server in use. Empty until a server is found.
    pub fn status(&self) -> Vec<NodeStatus> {
        let status = |node: &Arc<Node>| NodeStatus {
            address: node.address.clone(),
            error: (!node.is_usable()).then(|| node.error()),
            connections: node.connections(),
            info: node.info(),
            connections_wanted: node.connections_wanted(),
        };
        self.topology.slot_map().nodes().iter().map(status).collect()
    }

    /// Whether some counters are unavailable.
    pub fn is_degraded(&self) -> bool {
        self.topology.is_degraded()
    }

    /// Waits until every counter is available, at most for `within`.
    pub async fn wait_until_available(&self, within: Duration) {
        let connected = async {
            while self.is_degraded() {
                tokio::time::sleep(AVAILABILITY_INTERVAL).await;
            }
        };
        let _late = tokio::time::timeout(within, connected).await;
    }

    /// Total time for which some counters were unavailable.
    pub fn total_degraded_time(&self) -> Duration {
        self.topology.total_degraded_time()
    }

    /// Sends calls to one server, each with the slot groups of one slot. Returns the answers to each call, and the
    /// calls without a reply by the deadline.
    async fn call_server(
        &self,
        map: &SlotMap,
        by_slot: &[&[SlotGroup<'_>]],
        deadline: Option<Instant>,
        on_redirection: OnRedirection,
    ) -> (Vec<Answers>, Vec<LateCall>) {
        let error_for_all = |groups: &[SlotGroup<'_>], error| {
            groups.iter().flat_map(|group| group.checks.iter()).map(|_| Err(error)).collect()
        };
        let slot_of = |groups: &[SlotGroup<'_>]| groups.first().map_or(0, |group| group.slot);
        let Some(owner) = by_slot.first().and_then(|groups| map.owner(slot_of(groups))) else {
            self.topology.request_refresh();
            let answers =
                by_slot.iter().map(|groups| error_for_all(groups, StoreError::Unavailable));
            return (answers.collect(), Vec::new());
        };
        let now = self.clock.as_ref().map(|clock| clock.read().wall);
        let call = |groups: &&[SlotGroup<'_>]| {
            Call::new(&self.prefix, groups.iter().map(|group| group.checks.iter()), now)
        };
        let calls: SmallVec<[Call; 1]> = by_slot.iter().map(call).collect();
        let topology = Arc::downgrade(&self.topology);
        let mut replies = owner.call(&calls, false, deadline, &topology).await;
        let mut followed = Vec::new();
        for ((groups, call), reply) in by_slot.iter().zip(&calls).zip(&mut replies) {
            if matches!((&reply, on_redirection), (Err(_), OnRedirection::Follow)) {
                // Boxed, because the future is large and rare.
                followed.push(Box::pin(async move {
                    let first = std::mem::replace(reply, Err(CallError::NotRun));
                    *reply = self.follow_redirections(first, call, slot_of(groups), deadline).await;
                }));
            }
        }
        join_all(followed).await;
        let mut late = Vec::new();
        let answered = by_slot.iter().zip(calls).zip(replies);
        let answers = answered.map(|((groups, call), reply)| match reply {
            Ok(reply) => match call.decode(&reply) {
                Ok(decoded) => {
                    decoded.unusable.iter().for_each(|name| self.note_unusable(name));
                    decoded.answers
                }
                Err(error) => {
                    self.stats.replies_rejected.add(1);
                    owner.mark_unhealthy(&error.to_string(), &topology);
                    error_for_all(groups, StoreError::OutcomeUnknown)
                }
            },
            Err(CallError::Unknown) => error_for_all(groups, StoreError::OutcomeUnknown),
            Err(CallError::Late(reply)) => {
                let positions = groups.iter().flat_map(|group| group.positions.iter().copied());
                let (positions, slot) = (positions.collect(), slot_of(groups));
                late.push(LateCall { positions, slot, call, reply });
                error_for_all(groups, StoreError::OutcomeUnknown)
            }
            Err(CallError::NotRun) => error_for_all(groups, StoreError::Unavailable),
            Err(CallError::Moved(_) | CallError::Ask(_) | CallError::TryAgain) => {
                self.topology.request_refresh();
                error_for_all(groups, StoreError::Moved)
            }
        });
        (answers.collect(), late)
    }

    /// Counts and reports a key whose value is not a valid state.
    fn note_unusable(&self, name: &[u8]) {
        self.stats.counters_unusable.add(1);
        let key = name.strip_prefix(&*self.prefix).and_then(CounterKey::from_text);
        if let Some(key) = key {
            self.stats.on_unusable.call(key);
        }
    }

    /// Follows the redirections of a call until it has a reply, until the deadline at most. A redirected call was not
    /// run, so it can be sent again. Fails with [`CallError::NotRun`], [`CallError::Unknown`] or [`CallError::Late`].
    async fn follow_redirections(
        &self,
        first: Result<Reply, CallError>,
        call: &Call,
        slot: u16,
        deadline: Option<Instant>,
    ) -> Result<Reply, CallError> {
        let mut error = match first {
            Ok(reply) => return Ok(reply),
            Err(error) => error,
        };
        let topology = Arc::downgrade(&self.topology);
        for _ in 0..REDIRECTIONS_MAX {
            let (node, asking) = match &error {
                CallError::Moved(address) | CallError::Ask(address) => {
                    let target = self.topology.redirection_target(address, deadline).await;
                    let Some(node) = target else { break };
                    (node, matches!(error, CallError::Ask(_)))
                }
                CallError::TryAgain => {
                    topology.request_refresh();
                    let wait = tokio::time::sleep(TRY_AGAIN_WAIT);
                    if until_deadline(deadline, wait).await.is_none() {
                        break;
                    }
                    // From the owner again, because by now all keys may be at either server.
                    let Some(owner) = self.topology.slot_map().owner(slot).map(Arc::clone) else {
                        break;
                    };
                    (owner, false)
                }
                CallError::NotRun | CallError::Unknown | CallError::Late(_) => return Err(error),
            };
            node.wait_for_connection(deadline).await;
            let mut replies = node.call(slice::from_ref(call), asking, deadline, &topology).await;
            match replies.pop() {
                Some(Ok(reply)) => return Ok(reply),
                Some(Err(next)) => error = next,
                None => return Err(CallError::Unknown),
            }
        }
        match error {
            CallError::Unknown | CallError::Late(_) => Err(error),
            _ => Err(CallError::NotRun),
        }
    }
}

/// A call without a reply by its deadline.
struct LateCall {
    /// The positions of its checks in the batch.
    positions: SmallVec<[usize; 4]>,
    slot: u16,
    call: Call,
    reply: LateReply,
}

/// The answers to a batch of `checks` checks from late replies that arrive by `deadline`. An answer stays
/// [`StoreError::OutcomeUnknown`] if its server no longer owns the slot: what that server charged is lost.
async fn await_late_calls(
    late_calls: Vec<LateCall>,
    checks: usize,
    deadline: Instant,
    topology: Arc<Topology>,
    stats: Arc<Stats>,
) -> Answers {
    let mut answers: Answers = (0..checks).map(|_| Err(StoreError::OutcomeUnknown)).collect();
    let (mut charged, mut owners) = (Vec::new(), Vec::new());
    for LateCall { positions, slot, call, reply } in late_calls {
        let server = reply.server.clone();
        let reply = reply.wait_until(deadline).await;
        let decoded = match &reply {
            Ok(reply) => call.decode(reply).map(|it| it.answers).map_err(|_| {
                stats.replies_rejected.add(1);
                StoreError::OutcomeUnknown
            }),
            Err(CallError::NotRun) => Err(StoreError::Unavailable),
            Err(_) => Err(StoreError::OutcomeUnknown),
        };
        for (at, &position) in positions.iter().enumerate() {
            let answer = match &decoded {
                Ok(answers) => answers.get(at).copied().unwrap_or(Err(StoreError::OutcomeUnknown)),
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
    let still_own = topology.still_own(&owners).await;
    let lost = charged.into_iter().zip(still_own).filter(|(_, owns)| !owns);
    for position in lost.flat_map(|(positions, _)| positions) {
        answers.get_mut(position).into_iter().for_each(|it| *it = Err(StoreError::OutcomeUnknown));
    }
    answers
}

impl Store for Redis {
    async fn decide(&self, batch: Batch) -> Answers {
        self.settle(batch, OnRedirection::Follow).await.answers
    }

    fn is_available(&self, key: &CounterKey) -> bool {
        let map = self.topology.slot_map();
        map.owner(map.slot(key)).is_some_and(|node| node.is_usable())
    }
}

impl QueuedStore for Redis {
    fn location(&self, key: &CounterKey) -> CounterLocation {
        let map = self.topology.slot_map();
        let slot = map.slot(key);
        CounterLocation { queue: usize::from(map.owner_position(slot)), slot }
    }

    async fn settle(&self, batch: Batch, on_redirection: OnRedirection) -> BatchAnswers {
        let Batch { groups, deadline } = batch;
        let map = self.topology.slot_map();
        let mut slot_groups = Vec::with_capacity(groups.len());
        let mut first = 0;
        for group in &groups {
            SlotGroup::split(&map, group, first, &mut slot_groups);
            first += group.len();
        }
        // Stable, so that the groups of one slot stay in order.
        slot_groups.sort_by_key(|group| (group.owner, group.slot));
        let by_slot: Vec<&[SlotGroup<'_>]> =
            slot_groups.chunk_by(|a, b| a.slot == b.slot).collect();
        let same_owner = |a: &&[SlotGroup<'_>], b: &&[SlotGroup<'_>]| {
            a.first().map(|group| group.owner) == b.first().map(|group| group.owner)
        };
        let by_owner = by_slot.chunk_by(same_owner);
        let answers =
            by_owner.map(|by_slot| self.call_server(&map, by_slot, deadline, on_redirection));
        let (answers, late): (Vec<_>, Vec<_>) = join_all(answers).await.into_iter().unzip();
        let positions = slot_groups.iter().flat_map(|group| group.positions.iter().copied());
        let mut ordered: Answers = (0..first).map(|_| Err(StoreError::OutcomeUnknown)).collect();
        for (position, answer) in positions.zip(answers.into_iter().flatten().flatten()) {
            ordered.get_mut(position).into_iter().for_each(|it| *it = answer);
        }
        let late: Vec<LateCall> = late.into_iter().flatten().collect();
        let late = (!late.is_empty()).then(|| {
            let deadline = clock::now() + LATE_REPLY_TIMEOUT;
            let (topology, stats) = (Arc::clone(&self.topology), Arc::clone(&self.stats));
            Box::pin(await_late_calls(late, first, deadline, topology, stats)) as LateAnswersFuture
        });
        BatchAnswers { answers: ordered, late }
    }
}

/// The checks of a group on one slot.
struct SlotGroup<'a> {
    /// Position of the slot's owner in the slot map.
    owner: u16,
    slot: u16,
    checks: Cow<'a, [Check]>,
    /// Position of each of these checks in the batch.
    positions: SmallVec<[usize; 4]>,
}

impl<'a> SlotGroup<'a> {
    /// Splits a group by slot. `first` is the position of its first check in the batch.
    fn split(map: &SlotMap, group: &'a [Check], first: usize, slot_groups: &mut Vec<Self>) {
        let slots: SmallVec<[u16; 8]> = group.iter().map(|check| map.slot(&check.key)).collect();
        let slot_group = |slot, checks, positions| Self {
            owner: map.owner_position(slot),
            slot,
            checks,
            positions,
        };
        let Some((&slot, others)) = slots.split_first() else { return };
        if others.iter().all(|other| *other == slot) {
            let positions = (first..first + group.len()).collect();
            slot_groups.push(slot_group(slot, Cow::Borrowed(group), positions));
            return;
        }
        let before = slot_groups.len();
        for (offset, (check, &slot)) in group.iter().zip(&slots).enumerate() {
            let check =
                Check { refusal_scope: check.refusal_scope.for_one_slot(), ..check.clone() };
            let known = slot_groups.iter_mut().skip(before).find(|it| it.slot == slot);
            match known {
                Some(known) => {
                    known.checks.to_mut().push(check);
                    known.positions.push(first + offset);
                }
                None => {
                    let positions = SmallVec::from_iter([first + offset]);
                    slot_groups.push(slot_group(slot, Cow::Owned(vec![check]), positions));
                }
            }
        }
    }
}
