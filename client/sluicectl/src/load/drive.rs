//! Sends the requests of a load and counts their answers.

use std::{
    collections::BTreeMap,
    mem,
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::{sync::watch, task::JoinSet, time::Instant};

use super::{
    history::History,
    template::{Draw, Requests},
};
use sluicegate_client::{CallError, Check, Client, Descriptor, Verdict};

/// How often the progress is shown anew.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// The longest latency that is told apart from longer ones.
const LATENCY_MAX_MICROS: u64 = 3_600_000_000;

/// The most errors that are told apart.
const ERRORS_TOLD: usize = 20;

/// What others are called.
const OTHERS: &str = "others";

/// Nanoseconds in a second.
const NANOS: f64 = 1e9;

/// Digits of latencies.
const LATENCY_DIGITS: u8 = 3;

/// What to send.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) domain: String,
    pub(super) requests: Requests,
    pub(super) hits: u64,
    /// Requests a second; `None`: as many as the callers can.
    pub(super) rate: Option<f64>,
    pub(super) callers: usize,
    pub(super) until: Until,
    /// Whether to keep every answer.
    pub(super) keeps_history: bool,
}

/// When to end.
#[derive(Clone, Copy, Debug)]
pub(super) enum Until {
    /// After so many requests.
    Count(u64),
    /// After this time. Requests that are due by then and not sent are left out.
    Elapsed(Duration),
}

impl Load {
    /// How many requests there are; `None`: as many as the callers can send.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it saturates, and neither a duration nor a rate is negative"
    )]
    fn requests(&self) -> Option<u64> {
        match (self.until, self.rate) {
            (Until::Count(count), _) => Some(count),
            (Until::Elapsed(end), Some(rate)) => {
                Some((end.as_nanos() as f64 * rate / NANOS).ceil() as u64)
            }
            (Until::Elapsed(_), None) => None,
        }
    }
}

/// What came of it.
#[derive(Debug)]
pub(super) struct LoadResult {
    pub(super) tally: Tally,
    pub(super) took: Duration,
    pub(super) ended: EndReason,
    /// Requests that were due and not sent before the end.
    pub(super) not_sent: u64,
    pub(super) requests: Requests,
    /// Every answer, if they were kept.
    pub(super) history: History,
}

/// Numbers of answers by kind.
#[derive(Clone, Debug)]
pub(super) struct Tally {
    pub(super) allowed: u64,
    pub(super) refused: u64,
    /// By what they say.
    pub(super) errors: BTreeMap<String, u64>,
    /// The number of the first request that was refused.
    pub(super) first_refused: Option<u64>,
    /// The number of the last request.
    pub(super) last: u64,
    /// Whether it was allowed, if it was answered.
    pub(super) last_allowed: Option<bool>,
    /// Of answers, in microseconds: from when the request was due, or sent where no rate is given.
    pub(super) latency: Histogram<u64>,
}

impl Tally {
    /// Requests without an answer.
    pub(super) fn failed(&self) -> u64 {
        self.errors.values().sum()
    }

    /// Requests that have ended.
    pub(super) fn sent(&self) -> u64 {
        self.allowed + self.refused + self.failed()
    }

    fn note(&mut self, number: u64, took: u64, answer: &Result<Verdict, CallError>) {
        let allowed = answer.as_ref().ok().map(|verdict| verdict.allowed);
        if let Err(error) = answer {
            let mut why = error.to_string();
            if self.errors.len() >= ERRORS_TOLD && !self.errors.contains_key(&why) {
                OTHERS.clone_into(&mut why);
            }
            *self.errors.entry(why).or_default() += 1;
        } else {
            self.latency.saturating_record(took);
        }
        match allowed {
            Some(true) => self.allowed += 1,
            Some(false) => {
                self.refused += 1;
                let first = self.first_refused.get_or_insert(number);
                *first = number.min(*first);
            }
            None => {}
        }
        if number > self.last {
            (self.last, self.last_allowed) = (number, allowed);
        }
    }
}

/// Why it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndReason {
    /// It was done.
    Done,
    /// It was interrupted.
    Interrupted,
    /// No more answers can be kept.
    Full,
}

/// What the callers share.
#[derive(Debug)]
struct Shared {
    load: Load,
    started: Instant,
    /// How many requests have been begun.
    numbers: u64,
    ends: Option<EndReason>,
    tally: Tally,
    history: History,
}

/// The next request.
struct Next {
    number: u64,
    due: Option<Instant>,
    draw: Draw,
    check: Check,
}

/// Sends requests, to each of the servers in turn, until all are sent and answered.
pub(super) async fn drive(
    clients: Arc<[Client]>,
    load: Load,
) -> Result<LoadResult, hdrhistogram::CreationError> {
    let latency = Histogram::new_with_bounds(1, LATENCY_MAX_MICROS, LATENCY_DIGITS)?;
    let callers = load.callers;
    let bar = progress(load.until);
    let shared = Arc::new(Mutex::new(Shared::new(load, latency)));
    let (stop, stopped) = watch::channel(false);
    let mut tasks = JoinSet::new();
    for _ in 0..callers {
        tasks.spawn(call(Arc::clone(&clients), Arc::clone(&shared), stopped.clone()));
    }
    let mut ticks = tokio::time::interval(PROGRESS_INTERVAL);
    let mut interrupt = pin!(tokio::signal::ctrl_c());
    let mut is_interrupted = false;
    loop {
        tokio::select! {
            ended = tasks.join_next() => if ended.is_none() { break },
            _ = ticks.tick() => with(&shared, |shared| shared.show(&bar)),
            heard = &mut interrupt, if !is_interrupted => {
                is_interrupted = true;
                if heard.is_ok() {
                    with(&shared, |shared| shared.ends = Some(EndReason::Interrupted));
                    stop.send_replace(true);
                }
            }
        }
    }
    bar.finish_and_clear();
    Ok(with(&shared, Shared::finish))
}

/// Sends one request after the other.
async fn call(
    clients: Arc<[Client]>,
    shared: Arc<Mutex<Shared>>,
    mut stopped: watch::Receiver<bool>,
) {
    let started = with(&shared, |shared| shared.started);
    while let Some(Next { number, due, draw, check }) = with(&shared, Shared::next) {
        if let Some(due) = due {
            tokio::select! {
                () = tokio::time::sleep_until(due) => {}
                _ = stopped.wait_for(|stopped| *stopped) => return,
            }
        }
        let server = usize::try_from(number - 1).unwrap_or(usize::MAX) % clients.len().max(1);
        let Some(client) = clients.get(server) else { return };
        let sent = started.elapsed();
        let answer = client.check(check).await;
        let answered = started.elapsed();
        // Requests that wait for a caller wait for the server.
        let latency = answered.saturating_sub(due.map_or(sent, |due| due - started));
        with(&shared, |shared| shared.note(number, draw, latency, [sent, answered], &answer));
    }
}

fn with<T>(shared: &Mutex<Shared>, look: impl FnOnce(&mut Shared) -> T) -> T {
    look(&mut shared.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Shared {
    fn new(load: Load, latency: Histogram<u64>) -> Self {
        let tally = Tally {
            allowed: 0,
            refused: 0,
            errors: BTreeMap::new(),
            first_refused: None,
            last: 0,
            last_allowed: None,
            latency,
        };
        let (started, history) = (Instant::now(), History::default());
        Self { load, started, numbers: 0, ends: None, tally, history }
    }

    /// The next request, unless there is none.
    fn next(&mut self) -> Option<Next> {
        if self.history.is_full() {
            self.ends = self.ends.or(Some(EndReason::Full));
        }
        if self.ends.is_some() {
            return None;
        }
        if self.load.requests().is_some_and(|requests| self.numbers >= requests) {
            return None;
        }
        if let Until::Elapsed(end) = self.load.until
            && self.started.elapsed() >= end
        {
            return None;
        }
        let after = self.load.rate.map(|rate| self.numbers as f64 / rate);
        // A time that no clock can tell never comes.
        let after = after.map(|after| Duration::try_from_secs_f64(after).unwrap_or(Duration::MAX));
        let due = match after {
            Some(after) => Some(self.started.checked_add(after)?),
            None => None,
        };
        self.numbers += 1;
        let draw = self.load.requests.draw();
        let descriptors = self.load.requests.descriptors(&draw);
        let check = Check::new(&self.load.domain)
            .descriptors(descriptors.into_iter().map(Descriptor::from))
            .hits(self.load.hits);
        Some(Next { number: self.numbers, due, draw, check })
    }

    fn note(
        &mut self,
        number: u64,
        draw: Draw,
        latency: Duration,
        times: [Duration; 2],
        answer: &Result<Verdict, CallError>,
    ) {
        let [sent, answered] = times.map(|it| i64::try_from(it.as_micros()).unwrap_or(i64::MAX));
        self.tally.note(number, u64::try_from(latency.as_micros()).unwrap_or(u64::MAX), answer);
        if self.load.keeps_history {
            self.history.add(draw, [sent, answered], answer);
        }
    }

    fn show(&self, bar: &ProgressBar) {
        let Tally { allowed, refused, .. } = &self.tally;
        let errors = self.tally.failed();
        bar.set_position(match self.load.until {
            Until::Count(_) => self.tally.sent(),
            Until::Elapsed(_) => millis(self.started.elapsed()),
        });
        bar.set_message(format!("{allowed} allowed, {refused} refused, {errors} errors"));
    }

    fn finish(&mut self) -> LoadResult {
        let ended = self.ends.unwrap_or(EndReason::Done);
        let due = self.load.requests().filter(|_| ended == EndReason::Done);
        LoadResult {
            tally: self.tally.clone(),
            took: self.started.elapsed(),
            ended,
            not_sent: due.map_or(0, |due| due.saturating_sub(self.numbers)),
            requests: mem::take(&mut self.load.requests),
            history: mem::take(&mut self.history),
        }
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// A bar on the standard error, if that is a terminal.
fn progress(until: Until) -> ProgressBar {
    let bar = ProgressBar::new(match until {
        Until::Count(count) => count,
        Until::Elapsed(end) => millis(end),
    });
    match ProgressStyle::with_template("[{elapsed}] {wide_bar} {percent}% {msg}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
