//! One Redis server: its connections, and whether it is worth asking.
//!
//! The breaker lies here and not around the whole store, so that one dead server does not fail the checks
//! of the others. A connection on which [`UNANSWERED_MAX`] calls in a row, over [`SILENCE`], found no
//! answer is dropped, and without any connection calls fail at once; a new one that authenticates and answers a few questions is
//! the probe that closes the breaker again. There is one probe per connection at a time, later and later,
//! so that nobody rushes at a server that comes back.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::{
    sync::{Mutex as AsyncMutex, Notify},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use super::{
    Address, Stats,
    call::Call,
    command::command,
    link::{Link, LinkError, LinkSettings},
    pipeline::{Commands, End, NoReply, Pending},
    reply::{Reply, ReplyBounds},
    script::Script,
    size::Size,
    slots,
    sockets::{NO_DESCRIPTORS, Sockets},
    watched::Watched,
};
use crate::{LogLimit, backoff, clock};

/// Calls in a row without an answer, and for how long there must have been none, after which a connection
/// is no longer used. A short pause under many callers, or one caller in a hurry, is no reason.
const UNANSWERED_MAX: u32 = 5;
const SILENCE: Duration = Duration::from_millis(100);

/// A server that did not answer for so long no longer stands in the way of one that claims its place.
const GONE: Duration = Duration::from_secs(10);

/// A server that has refused nothing for so long is of use again.
const CONTENT: Duration = Duration::from_secs(1);

/// How often a server that said that its cluster is down is asked whether it still is.
const RECHECK: Duration = Duration::from_secs(1);

/// The code of that error.
const CLUSTERDOWN: &str = "CLUSTERDOWN";

/// What to do about a node of a cluster that was named as a server of its own.
const NAME_IT: &str = "name its nodes with redis-cluster:// or rediss-cluster://";

/// The shortest and the longest wait before connecting again.
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(1);

/// A connection that stood as long was a good one: the next wait is short again.
const STEADY: Duration = Duration::from_secs(10);

/// How long a reply is waited for after its deadline, and after its connection was given up for silence. A server that was
/// paused answers then what it was sent before.
pub const LATE_MAX: Duration = Duration::from_secs(5);

/// A reply to each call.
pub(super) type Replies = SmallVec<[Result<Reply, Failure>; 1]>;

/// Why a call has no reply.
pub(super) enum Failure {
    /// Nothing was run: the slot belongs to another server.
    Moved(Address),
    /// Nothing was run: the slot is moving, and its keys are at another server already.
    Ask(Address),
    /// Nothing was run: the slot is moving, and its keys are at both servers.
    TryAgain,
    /// Nothing was run.
    NotRun,
    /// Nobody knows whether the call was run.
    Unknown,
    /// Not known yet: the reply did not come before the deadline.
    Late(LateReply),
}

/// A reply that is still waited for after its deadline.
pub(super) struct LateReply {
    /// The server that was asked.
    pub(super) server: Address,
    pending: Pending,
}

impl LateReply {
    /// The reply, if it comes until then. Else whether the call was run is [`Failure::Unknown`], or it is
    /// [`Failure::NotRun`].
    pub(super) async fn until(mut self, until: Instant) -> Result<Reply, Failure> {
        match within(Some(until), self.pending.reply()).await {
            Some(Ok(Reply::Error(text))) if is_not_run(&text) => Err(Failure::NotRun),
            Some(Err(NoReply::QueueFull | NoReply::NotSent)) => Err(Failure::NotRun),
            Some(Ok(Reply::Error(_)) | Err(NoReply::Broken)) | None => Err(Failure::Unknown),
            Some(Ok(reply)) => Ok(reply),
        }
    }
}

/// Why an operator has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// Nothing was run: the slot is at another server, or on its way.
    Elsewhere(String),
    /// Nothing was run, for another reason.
    Because(String),
    /// Nobody knows whether it was run.
    Unknown(String),
}

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

    /// The server has become of use, or has ceased to be.
    fn changed(&self);
}

/// One connection, as those see it who call.
struct Line {
    commands: Commands,
    /// Calls in a row without an answer.
    unanswered: AtomicU32,
    /// When the first of them was given up.
    silent_since: Mark,
    /// Wakes the task that keeps the connection, to drop it.
    given_up: Notify,
}

impl Line {
    fn new(commands: Commands) -> Self {
        Self {
            commands,
            unanswered: AtomicU32::new(0),
            silent_since: Mark::now(),
            given_up: Notify::new(),
        }
    }

    fn answered(&self) {
        self.unanswered.store(0, Ordering::Relaxed);
    }

    fn not_answered(&self) {
        let before = self.unanswered.fetch_add(1, Ordering::Relaxed);
        if before == 0 {
            self.silent_since.set();
        }
        if before + 1 >= UNANSWERED_MAX && self.silent_since.is_older_than(SILENCE) {
            self.given_up.notify_one();
        }
    }
}

/// A moment that many threads may look at and move.
struct Mark {
    began: Instant,
    /// Milliseconds since then.
    after: AtomicU64,
}

impl Mark {
    fn now() -> Self {
        Self { began: clock::now(), after: AtomicU64::new(0) }
    }

    fn set(&self) {
        self.after.store(self.elapsed(), Ordering::Relaxed);
    }

    fn is_older_than(&self, span: Duration) -> bool {
        let age = self.elapsed().saturating_sub(self.after.load(Ordering::Relaxed));
        Duration::from_millis(age) >= span
    }

    fn elapsed(&self) -> u64 {
        u64::try_from((clock::now() - self.began).as_millis()).unwrap_or(u64::MAX)
    }
}

/// One server.
pub(super) struct Node {
    pub(super) address: Address,
    lines: Box<[ArcSwapOption<Line>]>,
    next: AtomicUsize,
    /// Whether any link stands.
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
    size: Mutex<Option<Size>>,
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
            size: Mutex::new(None),
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

    /// Connections that stand.
    pub(super) fn connections(&self) -> usize {
        self.lines.iter().filter(|line| line.load().is_some()).count()
    }

    /// How much it holds, as last asked.
    pub(super) fn size(&self) -> Option<Size> {
        *self.size.lock()
    }

    pub(super) fn set_size(&self, size: Option<Size>) {
        *self.size.lock() = size;
    }

    /// Why not.
    pub(super) fn complaint(&self) -> String {
        self.complaint.lock().clone()
    }

    /// Runs scripts, sent together, and answers each. `asking` tells the server that it was named by another
    /// one; then there is one call.
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

    /// A connection that stands, each in turn.
    fn line(&self) -> Option<Arc<Line>> {
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let count = self.lines.len();
        (0..count).find_map(|step| self.lines.get(first.wrapping_add(step) % count)?.load_full())
    }

    async fn send<F: Fitness>(
        &self,
        line: &Line,
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

    /// Loads every script, `first` of all the one that is missed, unless somebody else has since `loads` was
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

    /// Keeps one connection while it is allowed.
    async fn keep<F: Fitness>(
        self: Arc<Self>,
        number: usize,
        settings: Arc<LinkSettings>,
        fitness: Arc<F>,
    ) {
        let Some(place) = self.lines.get(number) else { return };
        let mut waits = backoff::waits(RETRY_MIN, RETRY_MAX);
        let mut stood = false;
        // The connection that was given up last, while replies are read from it.
        let mut given_up: Option<JoinSet<()>> = None;
        loop {
            self.until_allowed(number, true).await;
            // In a box: a task that waits to be allowed is small, and there may be thousands.
            let connection = Box::pin(self.connect(place, &mut stood, &settings, &*fitness));
            let lasted = tokio::select! {
                biased;
                (lasted, finishing) = connection => {
                    given_up = finishing.or(given_up);
                    lasted
                }
                () = self.until_allowed(number, false) => {
                    place.store(None);
                    self.lost(NO_DESCRIPTORS, &*fitness);
                    continue;
                }
            };
            if lasted >= STEADY {
                waits = backoff::waits(RETRY_MIN, RETRY_MAX);
            }
            tokio::time::sleep(waits.next().unwrap_or(RETRY_MAX)).await;
        }
    }

    /// Connects once, and serves until the connection ends. Returns how long it lasted, and the task that still reads from
    /// it if it was given up.
    async fn connect<F: Fitness>(
        &self,
        place: &ArcSwapOption<Line>,
        stood: &mut bool,
        settings: &LinkSettings,
        fitness: &F,
    ) -> (Duration, Option<JoinSet<()>>) {
        let _permit = self.sockets.acquire().await;
        let link = match self.open(settings, fitness).await {
            Ok(link) => link,
            Err(error) => {
                self.complain(&error.to_string(), fitness);
                return (Duration::ZERO, None);
            }
        };
        let began = clock::now();
        let line = Arc::new(Line::new(link.commands.clone()));
        place.store(Some(Arc::clone(&line)));
        if std::mem::replace(stood, true) {
            self.stats.reconnects.add(1);
        }
        self.found(fitness);
        if !self.was_connected.set(true) {
            // It may be asked from now on.
            fitness.trouble();
        }
        let (why, is_given_up) = tokio::select! {
            biased;
            end = link.broken() => {
                let is_rejected = matches!(end, Some(End::Reply(_)));
                let why = end.map_or_else(|| "the connection broke".to_owned(), End::to_string);
                if is_rejected {
                    self.rejected(&why);
                }
                (why, false)
            }
            () = line.given_up.notified() => ("no answer in time".to_owned(), true),
            never = self.recheck(&link, fitness) => match never {},
        };
        place.store(None);
        self.lost(&why, fitness);
        fitness.trouble();
        // Not at the expense of the connection that takes its place.
        let spare = is_given_up.then(|| self.sockets.try_acquire()).flatten();
        let finishing = spare.map(|spare| {
            let mut task = JoinSet::new();
            task.spawn(async move {
                link.finish(LATE_MAX).await;
                drop(spare);
            });
            task
        });
        (clock::now() - began, finishing)
    }

    async fn open<F: Fitness>(
        &self,
        settings: &LinkSettings,
        fitness: &F,
    ) -> Result<Link, LinkError> {
        let link = Link::open(&self.address, settings).await?;
        fitness.check(&self.address, &link).await?;
        for script in Script::all() {
            link.ask(self.timeout, &["SCRIPT", "LOAD", &script.text]).await?;
        }
        Ok(link)
    }

    /// Asks a server whose cluster was down whether it still is.
    async fn recheck<F: Fitness>(&self, link: &Link, fitness: &F) -> Infallible {
        loop {
            tokio::time::sleep(RECHECK).await;
            let is_down = self.complains.load(Ordering::Relaxed)
                && self.complaint.lock().starts_with(CLUSTERDOWN);
            if is_down && fitness.check(&self.address, link).await.is_ok() {
                self.content(fitness);
            }
        }
    }

    /// A connection stands.
    fn found<F: Fitness>(&self, fitness: &F) {
        self.stats.connections.add(1);
        if !self.up.swap(true, Ordering::Relaxed) {
            self.complains.store(false, Ordering::Relaxed);
            self.complaint.lock().clear();
            fitness.changed();
            tracing::info!(redis = %self.address, "Redis answers");
        }
    }

    /// A connection was dropped for what the server replied. Said for each reason that is new, and else once in a while:
    /// other connections may stand.
    fn rejected(&self, why: &str) {
        self.stats.replies_rejected.add(1);
        let is_new = self.rejected.lock().replace(why.to_owned()).as_deref() != Some(why);
        if is_new || self.logged.allows() {
            tracing::warn!(redis = %self.address, why, "a reply is rejected, its connection dropped");
        }
    }

    /// A connection is gone.
    fn lost<F: Fitness>(&self, why: &str, fitness: &F) {
        let none_left = self.lines.iter().all(|line| line.load().is_none());
        if none_left && self.up.swap(false, Ordering::Relaxed) {
            self.lost.set();
            *self.complaint.lock() = why.to_owned();
            fitness.changed();
            tracing::warn!(redis = %self.address, why, "Redis does not answer, rules' on_failure decides");
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
            tracing::warn!(redis = %self.address, what, "Redis is of no use, rules' on_failure decides");
            what.clone_into(&mut complaint);
        }
    }

    /// Takes note that the server does what it is asked.
    pub(super) fn content<F: Fitness>(&self, fitness: &F) {
        self.complaint.lock().clear();
        if self.complains.swap(false, Ordering::Relaxed) {
            fitness.changed();
            tracing::info!(redis = %self.address, "Redis is of use again");
        }
    }
}

/// What the future says before the deadline.
pub(super) async fn within<T>(
    deadline: Option<Instant>,
    future: impl Future<Output = T>,
) -> Option<T> {
    match deadline {
        Some(deadline) => tokio::time::timeout_at(deadline.into(), future).await.ok(),
        None => Some(future.await),
    }
}

/// Sends a script to run, unless the deadline passes before. `asking` tells the server that it was named by another one.
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

/// Replies that mean that nothing was run: a script is refused as a whole, or by its first write.
const NOT_RUN: [&str; 12] = [
    CLUSTERDOWN,
    "OOM",
    "READONLY",
    "LOADING",
    "BUSY",
    "MISCONF",
    "NOREPLICAS",
    "MASTERDOWN",
    "NOAUTH",
    "NOPERM",
    "WRONGPASS",
    "CROSSSLOT",
];

/// Whether an error reply means that the script was not run.
fn is_not_run(text: &str) -> bool {
    let code = text.split(' ').next().unwrap_or_default();
    NOT_RUN.contains(&code) || ["NOSCRIPT", "MOVED", "ASK", "TRYAGAIN"].contains(&code)
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
