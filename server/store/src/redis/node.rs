//! One Redis server: its connections, and whether it is worth asking.
//!
//! The breaker lies here and not around the whole store, so that one dead server does not fail the checks
//! of the others. A connection on which [`UNANSWERED_MAX`] calls in a row, over [`SILENCE`], found no
//! answer is dropped, and without any connection calls fail at once; a new one that authenticates and answers a few questions is
//! the probe that closes the breaker again. There is one probe per connection at a time, later and later,
//! so that nobody rushes at a server that comes back.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use arc_swap::ArcSwapOption;
use backon::{BackoffBuilder, ExponentialBuilder};
use fred::{
    clients::Client,
    error::{Error as FredError, ErrorKind},
    interfaces::ClientLike,
    types::Value,
};
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::{Mutex as AsyncMutex, Notify};
use tokio_util::sync::CancellationToken;

use super::{
    Address, Stats,
    call::Call,
    link::{Link, LinkError, LinkSettings, plain},
    said::said,
    script::Script,
    size::Size,
    slots,
};

/// Calls in a row without an answer, and for how long there must have been none, after which a connection
/// is no longer used. A short pause under many callers, or one caller in a hurry, is no reason.
const UNANSWERED_MAX: u32 = 5;
const SILENCE: Duration = Duration::from_millis(100);

/// A server that did not answer for so long no longer stands in the way of one that claims its place.
const GONE: Duration = Duration::from_secs(10);

/// A server that has refused nothing for so long is of use again.
const CONTENT: Duration = Duration::from_secs(1);

/// Waits before connecting again: doubled each time, up to the longest, and spread by chance.
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(1);

/// A connection that stood as long was a good one: the next wait is short again.
const STEADY: Duration = Duration::from_secs(10);

/// A reply to each call.
pub(super) type Replies = SmallVec<[Result<Value, Failure>; 1]>;

/// Why a call has no reply.
#[derive(Clone, Debug, PartialEq, Eq)]
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

    /// The server has stopped answering, or sent callers elsewhere.
    fn trouble(&self);

    /// The server has become of use, or has ceased to be.
    fn changed(&self);
}

/// One connection, as those see it who call.
struct Line {
    client: Client,
    /// Calls in a row without an answer.
    unanswered: AtomicU32,
    /// When the first of them was given up.
    silent_since: Mark,
    /// Wakes the task that keeps the connection, to drop it.
    given_up: Notify,
}

impl Line {
    fn new(client: Client) -> Self {
        Self {
            client,
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
        Self { began: Instant::now(), after: AtomicU64::new(0) }
    }

    fn set(&self) {
        self.after.store(self.elapsed(), Ordering::Relaxed);
    }

    fn is_older_than(&self, span: Duration) -> bool {
        let age = self.elapsed().saturating_sub(self.after.load(Ordering::Relaxed));
        Duration::from_millis(age) >= span
    }

    fn elapsed(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
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
    size: Mutex<Option<Size>>,
    timeout: Duration,
    stats: Arc<Stats>,
}

impl Node {
    /// A server that is being connected to until `gone`.
    pub(super) fn start<F: Fitness>(
        address: Address,
        links: usize,
        settings: &Arc<LinkSettings>,
        fitness: &Arc<F>,
        stats: &Arc<Stats>,
        gone: &CancellationToken,
    ) -> Arc<Self> {
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
            size: Mutex::new(None),
            timeout: settings.connect_timeout,
            stats: Arc::clone(stats),
        });
        for place in 0..links {
            let keep = Arc::clone(&node).keep(place, Arc::clone(settings), Arc::clone(fitness));
            tokio::spawn(gone.clone().run_until_cancelled_owned(keep));
        }
        node
    }

    /// Whether the server answers and does what it is asked.
    pub(super) fn is_up(&self) -> bool {
        self.up.load(Ordering::Relaxed) && !self.complains.load(Ordering::Relaxed)
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
        let mut sent = self.send(&line, calls, asking, deadline).await;
        let missed =
            |(_, reply): &(&Call, &Result<Value, Refused>)| matches!(reply, Err(Refused::NoScript));
        let again: Vec<Call> =
            calls.iter().zip(&sent).filter(missed).map(|(call, _)| call.clone()).collect();
        if let Some(first) = again.first() {
            let loaded = self.load(&line.client, first.script, loads, deadline, fitness).await;
            let mut replies = match loaded {
                Ok(()) => self.send(&line, &again, asking, deadline).await,
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
        sent: Result<Value, Refused>,
        fitness: &F,
    ) -> Result<Value, Failure> {
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
                if failure == Failure::Unknown {
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
    pub(super) async fn ask(&self, command: &'static str, args: Vec<Value>) -> Option<Value> {
        let line = self.line()?;
        let answer = line.client.custom(plain(command), args);
        tokio::time::timeout(self.timeout, answer).await.ok()?.ok()
    }

    /// Asks for an operator: with a reason, if there is no answer.
    pub(super) async fn command(
        &self,
        command: &'static str,
        args: Vec<Value>,
    ) -> Result<Value, NoAnswer> {
        let Some(line) = self.line() else { return Err(NoAnswer::Because(self.complaint())) };
        let answer = line.client.custom(plain(command), args);
        match tokio::time::timeout(self.timeout, answer).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(error)) => Err(match self.refused(&error) {
                Refused::Failure(Failure::Moved(_) | Failure::Ask(_) | Failure::TryAgain) => {
                    NoAnswer::Elsewhere(said(&error))
                }
                // Whatever else the server says to one command, it has not run it.
                Refused::Failure(Failure::Unknown) if !error.details().starts_with("ERR ") => {
                    NoAnswer::Unknown(said(&error))
                }
                _ => NoAnswer::Because(said(&error)),
            }),
            Err(_) => Err(NoAnswer::Unknown("no answer in time".to_owned())),
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

    async fn send(
        &self,
        line: &Line,
        calls: &[Call],
        asking: bool,
        deadline: Option<Instant>,
    ) -> SmallVec<[Result<Value, Refused>; 1]> {
        let began = Instant::now();
        if deadline.is_some_and(|deadline| deadline <= began) {
            // What would not be waited for is not charged either: a future that is given no time is still polled
            // once, and that would send the calls.
            return calls.iter().map(|_| Err(Refused::Failure(Failure::NotRun))).collect();
        }
        self.stats.calls.add(u64::try_from(calls.len()).unwrap_or(0));
        let replies = within(deadline, exchange(&line.client, calls, asking)).await;
        self.stats.call_durations.note(began.elapsed());
        let Some(replies) = replies else {
            line.not_answered();
            return calls.iter().map(|_| Err(Refused::Failure(Failure::Unknown))).collect();
        };
        if replies.iter().any(Result::is_ok) {
            line.answered();
        }
        let reply = |reply: Result<Value, FredError>| reply.map_err(|error| self.refused(&error));
        replies.into_iter().map(reply).collect()
    }

    /// Loads every script, `first` of all the one that is missed, unless somebody else has since `loads` was
    /// read.
    async fn load<F: Fitness>(
        &self,
        client: &Client,
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
                let args =
                    vec![Value::from_static_str("LOAD"), Value::from_static_str(&script.text)];
                let _hash: Value = client.custom(plain("SCRIPT"), args).await?;
            }
            self.loads.fetch_add(1, Ordering::Release);
            self.stats.script_loads.add(1);
            Ok::<_, FredError>(())
        });
        match loaded.await {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => {
                self.complain(&said(&error), fitness);
                Err(Failure::NotRun)
            }
            None => Err(Failure::NotRun),
        }
    }

    /// Keeps one connection.
    async fn keep<F: Fitness>(
        self: Arc<Self>,
        place: usize,
        settings: Arc<LinkSettings>,
        fitness: Arc<F>,
    ) {
        let Some(place) = self.lines.get(place) else { return };
        let mut waits = waits();
        let mut stood = false;
        loop {
            match self.open(&settings, fitness.as_ref()).await {
                Ok(mut link) => {
                    let began = Instant::now();
                    let line = Arc::new(Line::new(link.client.clone()));
                    place.store(Some(Arc::clone(&line)));
                    if std::mem::replace(&mut stood, true) {
                        self.stats.reconnects.add(1);
                    }
                    self.found(fitness.as_ref());
                    let why = tokio::select! {
                        () = link.broken() => "the connection broke",
                        () = line.given_up.notified() => "no answer in time",
                    };
                    place.store(None);
                    self.lost(why, fitness.as_ref());
                    fitness.trouble();
                    if began.elapsed() >= STEADY {
                        waits = self::waits();
                    }
                }
                Err(error) => self.complain(&error.to_string(), fitness.as_ref()),
            }
            tokio::time::sleep(waits.next().unwrap_or(RETRY_MAX)).await;
        }
    }

    async fn open<F: Fitness>(
        &self,
        settings: &LinkSettings,
        fitness: &F,
    ) -> Result<Link, LinkError> {
        let link = Link::open(&self.address, settings).await?;
        fitness.check(&self.address, &link).await?;
        for script in Script::all() {
            let args = vec![Value::from_static_str("LOAD"), Value::from_static_str(&script.text)];
            link.ask(self.timeout, "SCRIPT", args).await?;
        }
        Ok(link)
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
    fn complain<F: Fitness>(&self, what: &str, fitness: &F) {
        self.complained.set();
        let mut complaint = self.complaint.lock();
        // A text may name script and line; its first word says what it is.
        let code = |text: &str| text.split(' ').next().map(str::to_owned);
        let complains = self.complains.swap(true, Ordering::Relaxed);
        if !complains {
            fitness.changed();
        }
        let known = complains && code(&complaint) == code(what);
        if !known {
            tracing::warn!(redis = %self.address, what, "Redis is of no use, rules' on_failure decides");
            what.clone_into(&mut complaint);
        }
    }

    fn content<F: Fitness>(&self, fitness: &F) {
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

/// Sends scripts to run, and waits for the reply to each.
async fn exchange(client: &Client, calls: &[Call], asking: bool) -> Exchanged {
    if let ([call], false) = (calls, asking) {
        return SmallVec::from_iter([client.custom(plain("EVALSHA"), call.arguments()).await]);
    }
    let queued = async {
        let pipeline = client.pipeline();
        if asking {
            let _queued: () = pipeline.custom(plain("ASKING"), Vec::<Value>::new()).await?;
        }
        for call in calls {
            let _queued: () = pipeline.custom(plain("EVALSHA"), call.arguments()).await?;
        }
        Ok(pipeline)
    };
    let replies = match queued.await {
        Ok(pipeline) => pipeline.try_all().await,
        Err(error) => vec![Err(error)],
    };
    let skipped = usize::from(asking);
    if let ([Err(error)], 2..) = (replies.as_slice(), skipped + calls.len()) {
        // One error for all of them.
        return calls.iter().map(|_| Err(error.clone())).collect();
    }
    replies.into_iter().skip(skipped).collect()
}

/// A reply to each call, or why there is none.
type Exchanged = SmallVec<[Result<Value, FredError>; 1]>;

fn waits() -> impl Iterator<Item = Duration> {
    let builder = ExponentialBuilder::default().with_jitter();
    builder.with_min_delay(RETRY_MIN).with_max_delay(RETRY_MAX).without_max_times().build()
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
const NOT_RUN: [&str; 11] = [
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

impl Node {
    fn refused(&self, error: &FredError) -> Refused {
        let details = error.details();
        // Refused before it was handed to the connection.
        if matches!(error.kind(), ErrorKind::Backpressure | ErrorKind::Routing) {
            return Refused::Because(details.to_owned());
        }
        let mut words = details.split(' ');
        let code = words.next().unwrap_or_default();
        let mut target = || slots::redirected(words.nth(1)?, &self.address);
        Refused::Failure(match code {
            "NOSCRIPT" => return Refused::NoScript,
            "MOVED" => target().map_or(Failure::NotRun, Failure::Moved),
            "ASK" => target().map_or(Failure::NotRun, Failure::Ask),
            "TRYAGAIN" => Failure::TryAgain,
            code if NOT_RUN.contains(&code) => return Refused::Because(details.to_owned()),
            _ => {
                tracing::debug!(%error, "a call has no reply");
                Failure::Unknown
            }
        })
    }
}
