//! One Redis server: its connections and its circuit breaker.
//!
//! Each server has its own breaker, so that an unavailable server does not fail the checks
//! of the others. A connection on which [several calls in a row](super::pooled), over [`SILENCE`], got no
//! reply is dropped. Without a connection the breaker is open: calls fail at once. It closes when a new connection is
//! authenticated and has answered a few commands. Each connection is reconnected with exponential backoff,
//! so that a server that comes back is not overloaded by all replicas at once.

mod keep;
mod topology_handle;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::Mutex as AsyncMutex;
use tokio_util::sync::CancellationToken;

pub(super) use self::topology_handle::TopologyHandle;
use super::{
    Address, Stats,
    call::Call,
    call_error::{CallError, CommandError, LateReply, Replies, until_deadline},
    command::encode_command,
    connection::RedisConnectionSettings,
    error_code::{ErrorCode, first_word},
    pipeline::{CommandSender, PendingReply, PipelineError},
    pooled::{AtomicInstant, PooledConnection, SILENCE},
    reply::{Reply, ReplyBounds},
    script::Script,
    server_info::ServerInfo,
    slots,
    sockets::{NO_DESCRIPTORS, Sockets},
    watched::Watched,
};
use crate::{LogLimit, clock};

/// A server without a connection for this time may be replaced by another one that claims its slots, whatever the
/// epoch.
const GONE_AFTER: Duration = Duration::from_secs(10);

/// A server that has rejected no command for this time is healthy again.
const HEALTHY_AFTER: Duration = Duration::from_secs(1);

/// The fix if a node of a cluster is configured as a single server.
const USE_CLUSTER_URL: &str = "name its nodes with redis-cluster:// or rediss-cluster://";

/// One server.
pub(super) struct Node {
    pub(super) address: Address,
    pool: Box<[ArcSwapOption<PooledConnection>]>,
    /// Where the next search for an open connection begins.
    next_connection: AtomicUsize,
    /// Whether any connection is open.
    is_connected: AtomicBool,
    /// Why the server is unusable; empty if it is usable.
    error: Mutex<String>,
    /// Whether the server rejects commands, or cannot be connected to.
    is_unhealthy: AtomicBool,
    /// When the server last rejected a command.
    rejected_at: AtomicInstant,
    /// When the last connection was lost.
    lost_at: AtomicInstant,
    /// How often scripts were loaded: of many callers that miss a script, only the first loads it.
    script_loads: AtomicU64,
    loading_scripts: AsyncMutex<()>,
    log_limit: LogLimit,
    /// Why a reply was last rejected.
    last_rejected_reply: Mutex<Option<String>>,
    /// Whether a connection has ever been open.
    was_connected: Watched<bool>,
    info: Mutex<Option<ServerInfo>>,
    timeout: Duration,
    stats: Arc<Stats>,
    sockets: Arc<Sockets>,
    /// The number of connections that the server may have.
    connections_allowed: Watched<usize>,
}

impl Node {
    /// Starts to connect to a server, as soon as connections are [allowed](Self::allow_connections), until `cancelled`.
    pub(super) fn start<E: TopologyHandle>(
        address: Address,
        sockets: &Arc<Sockets>,
        settings: &Arc<RedisConnectionSettings>,
        topology: &Arc<E>,
        stats: &Arc<Stats>,
        cancelled: &CancellationToken,
    ) -> Arc<Self> {
        let connections = sockets.per_server_max();
        let node = Arc::new(Self {
            address,
            pool: (0..connections).map(|_| ArcSwapOption::empty()).collect(),
            next_connection: AtomicUsize::new(0),
            is_connected: AtomicBool::new(false),
            error: Mutex::new("not connected yet".to_owned()),
            is_unhealthy: AtomicBool::new(true),
            rejected_at: AtomicInstant::now(),
            lost_at: AtomicInstant::now(),
            script_loads: AtomicU64::new(0),
            loading_scripts: AsyncMutex::new(()),
            log_limit: LogLimit::default(),
            last_rejected_reply: Mutex::default(),
            was_connected: Watched::new(false),
            info: Mutex::new(None),
            timeout: settings.connect_timeout,
            stats: Arc::clone(stats),
            sockets: Arc::clone(sockets),
            connections_allowed: Watched::new(0),
        });
        for number in 0..connections {
            let task = Arc::clone(&node).keep_connected(
                number,
                Arc::clone(settings),
                Arc::clone(topology),
            );
            tokio::spawn(cancelled.clone().run_until_cancelled_owned(task));
        }
        node
    }

    /// Sets the number of connections that the server may have. Further ones are closed.
    pub(super) fn allow_connections(&self, connections: usize) {
        if connections == 0 {
            NO_DESCRIPTORS.clone_into(&mut self.error.lock());
        }
        self.connections_allowed.set(connections);
    }

    /// The number of connections that the server may have.
    pub(super) fn connections_allowed(&self) -> usize {
        self.connections_allowed.get()
    }

    /// Waits until the connection of this number is allowed or, if `allowed` is false, until it is not allowed.
    async fn wait_until_allowed(&self, number: usize, allowed: bool) {
        self.connections_allowed.wait_for(|it| (number < it) == allowed).await;
    }

    /// Whether the server has a connection and does not reject commands.
    pub(super) fn is_usable(&self) -> bool {
        self.is_connected.load(Ordering::Relaxed) && !self.is_unhealthy.load(Ordering::Relaxed)
    }

    /// Whether the server has a connection and rejects commands.
    pub(super) fn rejects_commands(&self) -> bool {
        self.is_connected.load(Ordering::Relaxed) && self.is_unhealthy.load(Ordering::Relaxed)
    }

    /// Whether a connection has ever been open.
    pub(super) fn was_connected(&self) -> bool {
        self.was_connected.get()
    }

    /// Waits for the first connection to a new server, until the deadline at most.
    pub(super) async fn wait_for_connection(&self, deadline: Option<Instant>) {
        if !self.was_connected() {
            let deadline = deadline.unwrap_or_else(|| clock::now() + self.timeout);
            let _late = until_deadline(Some(deadline), self.was_connected.wait_for(|it| it)).await;
        }
    }

    /// Whether the server has had no connection for [`GONE_AFTER`].
    pub(super) fn is_gone(&self) -> bool {
        !self.is_connected.load(Ordering::Relaxed) && self.lost_at.is_older_than(GONE_AFTER)
    }

    /// Number of open connections.
    pub(super) fn connections(&self) -> usize {
        self.pool.iter().filter(|connection| connection.load().is_some()).count()
    }

    /// Number of connections that should be open.
    pub(super) fn connections_wanted(&self) -> usize {
        self.pool.len()
    }

    /// What the last `INFO` reported.
    pub(super) fn info(&self) -> Option<ServerInfo> {
        *self.info.lock()
    }

    pub(super) fn set_info(&self, info: Option<ServerInfo>) {
        *self.info.lock() = info;
    }

    /// Why the server is unusable; empty if it is usable.
    pub(super) fn error(&self) -> String {
        self.error.lock().clone()
    }

    /// Sends script calls together, and returns the reply to each. `asking` sends `ASKING` first, after an `ASK`
    /// redirection; then there must be one call only.
    pub(super) async fn call<E: TopologyHandle>(
        &self,
        calls: &[Call],
        asking: bool,
        deadline: Option<Instant>,
        topology: &E,
    ) -> Replies {
        let Some(connection) = self.connection() else {
            return calls.iter().map(|_| Err(CallError::NotRun)).collect();
        };
        let loads = self.script_loads.load(Ordering::Acquire);
        let mut sent = self.send(&connection, calls, asking, deadline, topology).await;
        let has_no_script = |(_, reply): &(&Call, &Result<Reply, AttemptError>)| {
            matches!(reply, Err(AttemptError::NoScript))
        };
        let again: Vec<Call> =
            calls.iter().zip(&sent).filter(has_no_script).map(|(call, _)| call.clone()).collect();
        if let Some(first) = again.first() {
            let commands = &connection.commands;
            let loaded = self.load_scripts(commands, first.script, loads, deadline, topology).await;
            let mut replies = match loaded {
                Ok(()) => self.send(&connection, &again, asking, deadline, topology).await,
                Err(_) => SmallVec::new(),
            }
            .into_iter();
            for reply in sent.iter_mut().filter(|it| matches!(it, Err(AttemptError::NoScript))) {
                *reply = replies.next().unwrap_or(Err(AttemptError::Call(CallError::NotRun)));
            }
        }
        sent.into_iter().map(|sent| self.update_health(sent, topology)).collect()
    }

    /// Updates the health of the server by a reply.
    fn update_health<E: TopologyHandle>(
        &self,
        sent: Result<Reply, AttemptError>,
        topology: &E,
    ) -> Result<Reply, CallError> {
        match sent {
            Ok(value) => {
                // Only after a while, because a server that rejects writes still answers calls that only read.
                if self.is_unhealthy.load(Ordering::Relaxed)
                    && self.rejected_at.is_older_than(HEALTHY_AFTER)
                {
                    self.mark_healthy(topology);
                }
                Ok(value)
            }
            Err(AttemptError::Call(error)) => {
                if matches!(error, CallError::Unknown | CallError::Late(_)) {
                    topology.request_refresh();
                }
                Err(error)
            }
            Err(AttemptError::Rejected(reason)) => {
                self.mark_unhealthy(&reason, topology);
                topology.request_refresh();
                Err(CallError::NotRun)
            }
            Err(AttemptError::NoScript) => {
                self.mark_unhealthy("scripts are not kept", topology);
                Err(CallError::NotRun)
            }
        }
    }

    /// Runs a command that no request waits for. `None` without a reply or with an error.
    pub(super) async fn query(&self, arguments: &[&[u8]]) -> Option<Reply> {
        let connection = self.connection()?;
        let command = encode_command(arguments.iter().copied());
        let mut pending = connection.commands.send(command, ReplyBounds::LIST);
        let reply = tokio::time::timeout(self.timeout, pending.reply()).await.ok()?.ok()?;
        (!matches!(reply, Reply::Error(_))).then_some(reply)
    }

    /// Runs a command that no request waits for, and reports why it has no result.
    pub(super) async fn run_command<E: TopologyHandle>(
        &self,
        name: &'static str,
        arguments: &[Vec<u8>],
        topology: &E,
    ) -> Result<Reply, CommandError> {
        let Some(connection) = self.connection() else {
            return Err(CommandError::NotRun(self.error()));
        };
        let words = [name.as_bytes()].into_iter().chain(arguments.iter().map(Vec::as_slice));
        let mut pending = connection.commands.send(encode_command(words), ReplyBounds::LIST);
        let Ok(reply) = tokio::time::timeout(self.timeout, pending.reply()).await else {
            return Err(CommandError::Unknown("no answer in time".to_owned()));
        };
        match reply {
            Ok(Reply::Error(text)) => Err(match self.attempt_error(&text, topology) {
                AttemptError::Call(
                    CallError::Moved(_) | CallError::Ask(_) | CallError::TryAgain,
                ) => CommandError::SlotMoved(text),
                // A script that fails with ERR may have run in part, a single command has not run.
                AttemptError::Call(CallError::Unknown)
                    if ErrorCode::of(&text) != ErrorCode::Generic =>
                {
                    CommandError::Unknown(text)
                }
                _ => CommandError::NotRun(text),
            }),
            Ok(reply) => Ok(reply),
            Err(error @ PipelineError::Broken) => Err(CommandError::Unknown(error.to_string())),
            Err(error @ (PipelineError::QueueFull | PipelineError::NotSent)) => {
                Err(CommandError::NotRun(error.to_string()))
            }
        }
    }

    /// An open connection, in rotation.
    fn connection(&self) -> Option<Arc<PooledConnection>> {
        let first = self.next_connection.fetch_add(1, Ordering::Relaxed);
        let count = self.pool.len();
        (0..count).find_map(|step| self.pool.get(first.wrapping_add(step) % count)?.load_full())
    }

    async fn send<E: TopologyHandle>(
        &self,
        connection: &PooledConnection,
        calls: &[Call],
        asking: bool,
        deadline: Option<Instant>,
        topology: &E,
    ) -> SmallVec<[Result<Reply, AttemptError>; 1]> {
        let began = clock::now();
        if deadline.is_some_and(|deadline| deadline <= began) {
            // A timeout polls its future once even after the deadline, and that would send and charge the calls.
            return calls.iter().map(|_| Err(AttemptError::Call(CallError::NotRun))).collect();
        }
        self.stats.calls.add(u64::try_from(calls.len()).unwrap_or(0));
        // All calls are sent before the first reply is awaited.
        let sent = calls.iter().map(|call| send_call(&connection.commands, call, asking, deadline));
        let sent: SmallVec<[PendingReply; 1]> = sent.collect();
        let mut replies = SmallVec::with_capacity(calls.len());
        let (mut answered, mut timed_out) = (false, false);
        for mut pending in sent {
            let reply = until_deadline(deadline, pending.reply()).await;
            answered |= matches!(reply, Some(Ok(_)));
            timed_out |= reply.is_none();
            replies.push(match reply {
                Some(Ok(Reply::Error(text))) => Err(self.attempt_error(&text, topology)),
                Some(Ok(reply)) => Ok(reply),
                Some(Err(error @ PipelineError::QueueFull)) => {
                    Err(AttemptError::Rejected(error.to_string()))
                }
                Some(Err(PipelineError::NotSent)) => Err(AttemptError::Call(CallError::NotRun)),
                Some(Err(PipelineError::Broken)) => Err(AttemptError::Call(CallError::Unknown)),
                None => {
                    let server = self.address.clone();
                    Err(AttemptError::Call(CallError::Late(LateReply { server, pending })))
                }
            });
        }
        let took = clock::now() - began;
        self.stats.on_call.call(took);
        // A slow reply, to a call with a deadline of seconds, does not show that requests get replies in time.
        if answered && took < SILENCE {
            connection.note_reply();
        } else if timed_out {
            connection.note_timeout();
        }
        replies
    }

    /// Loads all scripts, the missing one `first`, unless another task has loaded them since `loads` was read.
    async fn load_scripts<E: TopologyHandle>(
        &self,
        commands: &CommandSender,
        first: &'static Script,
        loads: u64,
        deadline: Option<Instant>,
        topology: &E,
    ) -> Result<(), CallError> {
        let loaded = until_deadline(deadline, async {
            let _one = self.loading_scripts.lock().await;
            if self.script_loads.load(Ordering::Acquire) != loads {
                return Ok(());
            }
            let others = Script::all().filter(|script| !std::ptr::eq(*script, first));
            for script in [first].into_iter().chain(others) {
                let load = encode_command([b"SCRIPT".as_slice(), b"LOAD", script.text.as_bytes()]);
                match commands.send(load, ReplyBounds::LIST).reply().await {
                    Ok(Reply::Error(text)) => return Err(text),
                    Ok(_hash) => {}
                    Err(error) => return Err(error.to_string()),
                }
            }
            self.script_loads.fetch_add(1, Ordering::Release);
            self.stats.script_loads.add(1);
            Ok(())
        });
        match loaded.await {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => {
                self.mark_unhealthy(&error, topology);
                Err(CallError::NotRun)
            }
            None => Err(CallError::NotRun),
        }
    }

    /// Marks the server as unusable, because it rejects commands. Logs each new error once.
    pub(super) fn mark_unhealthy<E: TopologyHandle>(&self, what: &str, topology: &E) {
        if self.set_unhealthy(what, topology) {
            tracing::warn!(redis = %self.address, what, "Redis rejects commands, applying on_failure");
        }
    }

    /// Marks the server as unusable. Returns whether the error must be logged.
    fn set_unhealthy<E: TopologyHandle>(&self, what: &str, topology: &E) -> bool {
        self.rejected_at.set();
        let mut error = self.error.lock();
        let was_unhealthy = self.is_unhealthy.swap(true, Ordering::Relaxed);
        if !was_unhealthy {
            topology.report_health_change();
        }
        // Only codes are compared, because texts may contain lines of a script.
        let is_known = was_unhealthy && first_word(&error) == first_word(what);
        // At intervals, because a server may send another error with each reply.
        let is_logged = !is_known && (!was_unhealthy || self.log_limit.try_acquire());
        if is_logged {
            what.clone_into(&mut error);
        }
        is_logged
    }

    /// Marks the server as accepting commands.
    pub(super) fn mark_healthy<E: TopologyHandle>(&self, topology: &E) {
        self.error.lock().clear();
        if self.is_unhealthy.swap(false, Ordering::Relaxed) {
            topology.report_health_change();
            tracing::info!(redis = %self.address, "Redis accepts commands again");
        }
    }
}

/// Sends a script call, unless the deadline passes before. `asking` sends `ASKING` first.
fn send_call(
    commands: &CommandSender,
    call: &Call,
    asking: bool,
    deadline: Option<Instant>,
) -> PendingReply {
    if asking {
        let both = [&encode_command([b"ASKING".as_slice()])[..], &call.command()].concat();
        return commands.send_for_last_reply(1, both.into(), call.reply_bounds(), deadline);
    }
    commands.send_for_last_reply(0, call.command(), call.reply_bounds(), deadline)
}

/// Why one attempt to run a script call has no result. [`Node::call`] turns it into a [`CallError`]: it loads missing
/// scripts and sends the call again, and updates the health of the server.
enum AttemptError {
    /// The server does not have the script.
    NoScript,
    /// The server, or the queue to it, rejected the call without running it.
    Rejected(String),
    Call(CallError),
}

impl Node {
    /// The error of a call, from the text of an error reply.
    fn attempt_error<E: TopologyHandle>(&self, text: &str, topology: &E) -> AttemptError {
        let target = || slots::parse_redirection(text.split(' ').nth(2)?, &self.address);
        AttemptError::Call(match ErrorCode::of(text) {
            ErrorCode::NoScript => return AttemptError::NoScript,
            ErrorCode::Moved | ErrorCode::Ask | ErrorCode::TryAgain if !topology.is_cluster() => {
                self.stats.redirections_refused.add(1);
                return AttemptError::Rejected(format!(
                    "{text} (it is part of a Redis Cluster: {USE_CLUSTER_URL})"
                ));
            }
            ErrorCode::Moved => target().map_or(CallError::NotRun, CallError::Moved),
            ErrorCode::Ask => target().map_or(CallError::NotRun, CallError::Ask),
            ErrorCode::TryAgain => CallError::TryAgain,
            ErrorCode::NoPerm | ErrorCode::Rejected => {
                return AttemptError::Rejected(text.to_owned());
            }
            ErrorCode::Generic | ErrorCode::Other => {
                tracing::debug!(error = text, "a call has no result");
                CallError::Unknown
            }
        })
    }
}
