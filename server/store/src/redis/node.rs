//! One Redis server: its connections and its circuit breaker.
//!
//! The breaker is here and not around the whole store, so that one dead server does not fail the checks
//! of the others. A connection on which [several calls in a row](super::pooled), over [`SILENCE`], got no
//! answer is dropped. Without any connection calls fail at once; a new one that authenticates and answers a few commands
//! closes the breaker. There is one attempt per connection at a time, with exponential backoff,
//! so that replicas do not rush at a server that comes back.

mod keep;

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

use super::{
    Address, Stats,
    call::Call,
    command::command,
    failure::{Failure, LateReply, NOT_RUN, NoAnswer, Replies, within},
    link::{Link, LinkError, LinkSettings},
    memory_info::MemoryInfo,
    pipeline::{Commands, NoReply, Pending},
    pooled::{Mark, PooledConnection, SILENCE},
    reply::{Reply, ReplyBounds},
    script::Script,
    slots,
    sockets::{NO_DESCRIPTORS, Sockets},
    watched::Watched,
};
use crate::{LogLimit, clock};

/// A server that has not answered for this time may be replaced by one that claims its slots.
const GONE: Duration = Duration::from_secs(10);

/// A server that has rejected no command for this time is usable again.
const CONTENT: Duration = Duration::from_secs(1);

/// What to do about a node of a cluster that was named as a server of its own.
const NAME_IT: &str = "name its nodes with redis-cluster:// or rediss-cluster://";

/// What must hold for a server beside answering.
pub(super) trait Fitness: Send + Sync + 'static {
    /// Checks a connection that was opened just now, before it is used.
    fn check(
        &self,
        address: &Address,
        link: &Link,
    ) -> impl Future<Output = Result<(), LinkError>> + Send;

    /// Whether servers may name others that have what is asked for.
    fn is_cluster(&self) -> bool;

    /// The server has stopped answering, or sent callers elsewhere.
    fn trouble(&self);

    /// The server has become usable or unusable.
    fn changed(&self);
}

/// One server.
pub(super) struct Node {
    pub(super) address: Address,
    lines: Box<[ArcSwapOption<PooledConnection>]>,
    next: AtomicUsize,
    /// Whether any connection is open.
    up: AtomicBool,
    /// Why the server is of no use; empty while it is.
    complaint: Mutex<String>,
    complains: AtomicBool,
    /// When it was last found to be of no use though it answers.
    complained: Mark,
    /// When it last stopped answering.
    lost: Mark,
    /// Counts how often scripts were loaded, so that of many callers who miss one only the first loads it.
    loads: AtomicU64,
    loading: AsyncMutex<()>,
    logged: LogLimit,
    /// Why a reply was last rejected.
    rejected: Mutex<Option<String>>,
    /// Whether a connection has ever stood.
    was_connected: Watched<bool>,
    memory: Mutex<Option<MemoryInfo>>,
    timeout: Duration,
    stats: Arc<Stats>,
    sockets: Arc<Sockets>,
    /// The number of connections that it may have.
    allowed: Watched<usize>,
}

impl Node {
    /// A server that is connected to until `gone`, as soon as it is [allowed](Self::allow) connections.
    pub(super) fn start<F: Fitness>(
        address: Address,
        sockets: &Arc<Sockets>,
        settings: &Arc<LinkSettings>,
        fitness: &Arc<F>,
        stats: &Arc<Stats>,
        gone: &CancellationToken,
    ) -> Arc<Self> {
        let links = sockets.per_server_max();
        let node = Arc::new(Self {
            address,
            lines: (0..links).map(|_| ArcSwapOption::empty()).collect(),
            next: AtomicUsize::new(0),
            up: AtomicBool::new(false),
            complaint: Mutex::new("not connected yet".to_owned()),
            complains: AtomicBool::new(true),
            complained: Mark::now(),
            lost: Mark::now(),
            loads: AtomicU64::new(0),
            loading: AsyncMutex::new(()),
            logged: LogLimit::default(),
            rejected: Mutex::default(),
            was_connected: Watched::new(false),
            memory: Mutex::new(None),
            timeout: settings.connect_timeout,
            stats: Arc::clone(stats),
            sockets: Arc::clone(sockets),
            allowed: Watched::new(0),
        });
        for place in 0..links {
            let keep = Arc::clone(&node).keep(place, Arc::clone(settings), Arc::clone(fitness));
            tokio::spawn(gone.clone().run_until_cancelled_owned(keep));
        }
        node
    }

    /// Allows it so many connections. Those beyond are closed.
    pub(super) fn allow(&self, connections: usize) {
        if connections == 0 {
            NO_DESCRIPTORS.clone_into(&mut self.complaint.lock());
        }
        self.allowed.set(connections);
    }

    /// The number of connections that it may have.
    pub(super) fn allowed(&self) -> usize {
        self.allowed.get()
    }

    /// Waits until the connection at this place is allowed, or is not.
    async fn until_allowed(&self, place: usize, allowed: bool) {
        self.allowed.wait_for(|it| (place < it) == allowed).await;
    }

    /// Whether the server answers and does what it is asked.
    pub(super) fn is_up(&self) -> bool {
        self.up.load(Ordering::Relaxed) && !self.complains.load(Ordering::Relaxed)
    }

    /// Whether the server answers and does not do what it is asked.
    pub(super) fn refuses(&self) -> bool {
        self.up.load(Ordering::Relaxed) && self.complains.load(Ordering::Relaxed)
    }

    /// Whether a connection has ever stood.
    pub(super) fn was_connected(&self) -> bool {
        self.was_connected.get()
    }

    /// Waits for the first connection to a new server.
    pub(super) async fn connected(&self, deadline: Option<Instant>) {
        if !self.was_connected() {
            let deadline = deadline.unwrap_or_else(|| clock::now() + self.timeout);
            let _late = within(Some(deadline), self.was_connected.wait_for(|it| it)).await;
        }
    }

    /// Whether it has not answered for long.
    pub(super) fn is_gone(&self) -> bool {
        !self.up.load(Ordering::Relaxed) && self.lost.is_older_than(GONE)
    }

    /// Open connections.
    pub(super) fn connections(&self) -> usize {
        self.lines.iter().filter(|line| line.load().is_some()).count()
    }

    /// Its memory and keys, as of the last `INFO`.
    pub(super) fn memory(&self) -> Option<MemoryInfo> {
        *self.memory.lock()
    }

    pub(super) fn set_memory(&self, memory: Option<MemoryInfo>) {
        *self.memory.lock() = memory;
    }

    /// Why not.
    pub(super) fn complaint(&self) -> String {
        self.complaint.lock().clone()
    }

    /// Runs scripts, sent together, and returns the answer of each. `asking` sends ASKING first, after a redirection by
    /// another server; then there is one call.
    pub(super) async fn call<F: Fitness>(
        &self,
        calls: &[Call],
        asking: bool,
        deadline: Option<Instant>,
        fitness: &F,
    ) -> Replies {
        let Some(line) = self.line() else {
            return calls.iter().map(|_| Err(Failure::NotRun)).collect();
        };
        let loads = self.loads.load(Ordering::Acquire);
        let mut sent = self.send(&line, calls, asking, deadline, fitness).await;
        let missed =
            |(_, reply): &(&Call, &Result<Reply, Refused>)| matches!(reply, Err(Refused::NoScript));
        let again: Vec<Call> =
            calls.iter().zip(&sent).filter(missed).map(|(call, _)| call.clone()).collect();
        if let Some(first) = again.first() {
            let loaded = self.load(&line.commands, first.script, loads, deadline, fitness).await;
            let mut replies = match loaded {
                Ok(()) => self.send(&line, &again, asking, deadline, fitness).await,
                Err(_) => SmallVec::new(),
            }
            .into_iter();
            for reply in sent.iter_mut().filter(|it| matches!(it, Err(Refused::NoScript))) {
                *reply = replies.next().unwrap_or(Err(Refused::Failure(Failure::NotRun)));
            }
        }
        sent.into_iter().map(|sent| self.conclude(sent, fitness)).collect()
    }

    /// Takes note of what a reply says about the server.
    fn conclude<F: Fitness>(
        &self,
        sent: Result<Reply, Refused>,
        fitness: &F,
    ) -> Result<Reply, Failure> {
        match sent {
            Ok(value) => {
                // A server that refuses writes still answers those who write nothing.
                if self.complains.load(Ordering::Relaxed) && self.complained.is_older_than(CONTENT)
                {
                    self.content(fitness);
                }
                Ok(value)
            }
            Err(Refused::Failure(failure)) => {
                if matches!(failure, Failure::Unknown | Failure::Late(_)) {
                    fitness.trouble();
                }
                Err(failure)
            }
            Err(Refused::Because(reason)) => {
                self.complain(&reason, fitness);
                fitness.trouble();
                Err(Failure::NotRun)
            }
            Err(Refused::NoScript) => {
                self.complain("scripts are not kept", fitness);
                Err(Failure::NotRun)
            }
        }
    }

    /// Asks something that is not on the way of a request.
    pub(super) async fn ask(&self, arguments: &[&[u8]]) -> Option<Reply> {
        let line = self.line()?;
        let mut pending = line.commands.send(command(arguments.iter().copied()), ReplyBounds::LIST);
        let reply = tokio::time::timeout(self.timeout, pending.reply()).await.ok()?.ok()?;
        (!matches!(reply, Reply::Error(_))).then_some(reply)
    }

    /// Asks for an operator: with a reason, if there is no answer.
    pub(super) async fn command<F: Fitness>(
        &self,
        name: &'static str,
        arguments: &[Vec<u8>],
        fitness: &F,
    ) -> Result<Reply, NoAnswer> {
        let Some(line) = self.line() else { return Err(NoAnswer::Because(self.complaint())) };
        let words = [name.as_bytes()].into_iter().chain(arguments.iter().map(Vec::as_slice));
        let mut pending = line.commands.send(command(words), ReplyBounds::LIST);
        let Ok(reply) = tokio::time::timeout(self.timeout, pending.reply()).await else {
            return Err(NoAnswer::Unknown("no answer in time".to_owned()));
        };
        match reply {
            Ok(Reply::Error(text)) => Err(match self.refused(&text, fitness) {
                Refused::Failure(Failure::Moved(_) | Failure::Ask(_) | Failure::TryAgain) => {
                    NoAnswer::Elsewhere(text)
                }
                // Whatever else the server says to one command, it has not run it.
                Refused::Failure(Failure::Unknown) if !text.starts_with("ERR ") => {
                    NoAnswer::Unknown(text)
                }
                _ => NoAnswer::Because(text),
            }),
            Ok(reply) => Ok(reply),
            Err(error @ NoReply::Broken) => Err(NoAnswer::Unknown(error.to_string())),
            Err(error @ (NoReply::QueueFull | NoReply::NotSent)) => {
                Err(NoAnswer::Because(error.to_string()))
            }
        }
    }

    /// Connections that there should be.
    pub(super) fn connections_wanted(&self) -> usize {
        self.lines.len()
    }

    /// An open connection, in rotation.
    fn line(&self) -> Option<Arc<PooledConnection>> {
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let count = self.lines.len();
        (0..count).find_map(|step| self.lines.get(first.wrapping_add(step) % count)?.load_full())
    }

    async fn send<F: Fitness>(
        &self,
        line: &PooledConnection,
        calls: &[Call],
        asking: bool,
        deadline: Option<Instant>,
        fitness: &F,
    ) -> SmallVec<[Result<Reply, Refused>; 1]> {
        let began = clock::now();
        if deadline.is_some_and(|deadline| deadline <= began) {
            // What would not be waited for is not charged either: a future that is given no time is still polled
            // once, and that would send the calls.
            return calls.iter().map(|_| Err(Refused::Failure(Failure::NotRun))).collect();
        }
        self.stats.calls.add(u64::try_from(calls.len()).unwrap_or(0));
        // All are sent before the first is waited for.
        let sent = calls.iter().map(|call| send_call(&line.commands, call, asking, deadline));
        let sent: SmallVec<[Pending; 1]> = sent.collect();
        let mut replies = SmallVec::with_capacity(calls.len());
        let (mut answered, mut timed_out) = (false, false);
        for mut pending in sent {
            let reply = within(deadline, pending.reply()).await;
            answered |= matches!(reply, Some(Ok(_)));
            timed_out |= reply.is_none();
            replies.push(match reply {
                Some(Ok(Reply::Error(text))) => Err(self.refused(&text, fitness)),
                Some(Ok(reply)) => Ok(reply),
                Some(Err(error @ NoReply::QueueFull)) => Err(Refused::Because(error.to_string())),
                Some(Err(NoReply::NotSent)) => Err(Refused::Failure(Failure::NotRun)),
                Some(Err(NoReply::Broken)) => Err(Refused::Failure(Failure::Unknown)),
                None => {
                    let server = self.address.clone();
                    Err(Refused::Failure(Failure::Late(LateReply { server, pending })))
                }
            });
        }
        let took = clock::now() - began;
        self.stats.call_durations.note(took);
        // Calls that have seconds say nothing about a server that is too slow for requests.
        if answered && took < SILENCE {
            line.answered();
        } else if timed_out {
            line.not_answered();
        }
        replies
    }

    /// Loads every script, `first` the missing one, unless another task has done so since `loads` was
    /// read.
    async fn load<F: Fitness>(
        &self,
        commands: &Commands,
        first: &'static Script,
        loads: u64,
        deadline: Option<Instant>,
        fitness: &F,
    ) -> Result<(), Failure> {
        let loaded = within(deadline, async {
            let _one = self.loading.lock().await;
            if self.loads.load(Ordering::Acquire) != loads {
                return Ok(());
            }
            let others = Script::all().filter(|script| !std::ptr::eq(*script, first));
            for script in [first].into_iter().chain(others) {
                let load = command([b"SCRIPT".as_slice(), b"LOAD", script.text.as_bytes()]);
                match commands.send(load, ReplyBounds::LIST).reply().await {
                    Ok(Reply::Error(text)) => return Err(text),
                    Ok(_hash) => {}
                    Err(error) => return Err(error.to_string()),
                }
            }
            self.loads.fetch_add(1, Ordering::Release);
            self.stats.script_loads.add(1);
            Ok(())
        });
        match loaded.await {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => {
                self.complain(&error, fitness);
                Err(Failure::NotRun)
            }
            None => Err(Failure::NotRun),
        }
    }

    /// Says once what is wrong, until it is something else.
    pub(super) fn complain<F: Fitness>(&self, what: &str, fitness: &F) {
        self.complained.set();
        let mut complaint = self.complaint.lock();
        // A text may name script and line; its first word says what it is.
        let code = |text: &str| text.split(' ').next().map(str::to_owned);
        let complains = self.complains.swap(true, Ordering::Relaxed);
        if !complains {
            fitness.changed();
        }
        let known = complains && code(&complaint) == code(what);
        // A server may complain of something else with every reply.
        if !known && (!complains || self.logged.allows()) {
            tracing::warn!(redis = %self.address, what, "Redis rejects commands, applying on_failure");
            what.clone_into(&mut complaint);
        }
    }

    /// Takes note that the server does what it is asked.
    pub(super) fn content<F: Fitness>(&self, fitness: &F) {
        self.complaint.lock().clear();
        if self.complains.swap(false, Ordering::Relaxed) {
            fitness.changed();
            tracing::info!(redis = %self.address, "Redis accepts commands again");
        }
    }
}

/// Sends a script to run, unless the deadline passes before. `asking` sends ASKING first, after a redirection.
fn send_call(commands: &Commands, call: &Call, asking: bool, deadline: Option<Instant>) -> Pending {
    if asking {
        let both = [&command([b"ASKING".as_slice()])[..], &call.command()].concat();
        return commands.send_after(1, both.into(), call.reply_bounds(), deadline);
    }
    commands.send_after(0, call.command(), call.reply_bounds(), deadline)
}

/// Why a script was not run.
enum Refused {
    /// The server does not have it.
    NoScript,
    /// The server says no.
    Because(String),
    Failure(Failure),
}

impl Node {
    fn refused<F: Fitness>(&self, text: &str, fitness: &F) -> Refused {
        let mut words = text.split(' ');
        let code = words.next().unwrap_or_default();
        let mut target = || slots::redirected(words.nth(1)?, &self.address);
        Refused::Failure(match code {
            "NOSCRIPT" => return Refused::NoScript,
            "MOVED" | "ASK" | "TRYAGAIN" if !fitness.is_cluster() => {
                self.stats.redirections_refused.add(1);
                return Refused::Because(format!(
                    "{text} (it is part of a Redis Cluster: {NAME_IT})"
                ));
            }
            "MOVED" => target().map_or(Failure::NotRun, Failure::Moved),
            "ASK" => target().map_or(Failure::NotRun, Failure::Ask),
            "TRYAGAIN" => Failure::TryAgain,
            code if NOT_RUN.contains(&code) => return Refused::Because(text.to_owned()),
            _ => {
                tracing::debug!(error = text, "a call has no reply");
                Failure::Unknown
            }
        })
    }
}
