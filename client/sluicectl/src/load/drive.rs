//! Sends the requests of a load and counts the answers.

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
    template::{DrawnNumbers, RequestGenerator},
};
use sluicegate_client::{Check, CheckError, Client, Descriptor, Verdict};

/// Refresh interval of the progress bar.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Upper end of the latency histogram, an hour. Longer latencies are recorded as this.
const LATENCY_MAX_MICROS: u64 = 3_600_000_000;

/// Maximum number of different error texts in the report.
const ERROR_TEXTS_MAX: usize = 20;

/// Name of all further errors.
const OTHER_ERRORS: &str = "others";

/// Nanoseconds in a second.
const NANOS: f64 = 1e9;

/// Significant digits of the latency histogram.
const LATENCY_DIGITS: u8 = 3;

/// The requests to send.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) domain: String,
    pub(super) requests: RequestGenerator,
    pub(super) hits: u64,
    /// Requests per second of all callers together. `None`: each caller sends as soon as it has an answer.
    pub(super) rate: Option<f64>,
    pub(super) callers: usize,
    pub(super) until: Until,
    /// Whether to store every answer.
    pub(super) keeps_history: bool,
}

/// When a load ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum Until {
    /// After this number of requests.
    Count(u64),
    /// After this time. Requests that are due by then and not sent are counted as not sent.
    Elapsed(Duration),
}

impl Load {
    /// Number of requests. `None`: as many as the callers can send.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it saturates, and neither a duration nor a rate is negative"
    )]
    fn request_count(&self) -> Option<u64> {
        match (self.until, self.rate) {
            (Until::Count(count), _) => Some(count),
            (Until::Elapsed(end), Some(rate)) => {
                Some((end.as_nanos() as f64 * rate / NANOS).ceil() as u64)
            }
            (Until::Elapsed(_), None) => None,
        }
    }
}

/// The result of a load.
#[derive(Debug)]
pub(super) struct LoadResult {
    pub(super) counts: AnswerCounts,
    pub(super) took: Duration,
    pub(super) ended: EndReason,
    /// Requests that were due before the end and not sent.
    pub(super) not_sent: u64,
    pub(super) requests: RequestGenerator,
    /// Every answer, if answers are stored.
    pub(super) history: History,
}

/// Counts of answers and errors.
#[derive(Clone, Debug)]
pub(super) struct AnswerCounts {
    pub(super) allowed: u64,
    pub(super) refused: u64,
    /// By text.
    pub(super) errors: BTreeMap<String, u64>,
    /// Number of the first refused request, from 1.
    pub(super) first_refused: Option<u64>,
    /// Number of the last request.
    pub(super) last: u64,
    /// Whether the last request was allowed. `None` if it has no answer.
    pub(super) last_allowed: Option<bool>,
    /// Latency of answers in microseconds: from the time when the request was due, or without a rate from sending it.
    pub(super) latency: Histogram<u64>,
}

impl AnswerCounts {
    /// Requests without an answer.
    pub(super) fn failed(&self) -> u64 {
        self.errors.values().sum()
    }

    /// Requests with an answer or an error.
    pub(super) fn sent(&self) -> u64 {
        self.allowed + self.refused + self.failed()
    }

    fn record(&mut self, number: u64, took: u64, answer: &Result<Verdict, CheckError>) {
        let allowed = answer.as_ref().ok().map(|verdict| verdict.allowed);
        if let Err(error) = answer {
            let mut why = error.to_string();
            if self.errors.len() >= ERROR_TEXTS_MAX && !self.errors.contains_key(&why) {
                OTHER_ERRORS.clone_into(&mut why);
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

/// Why a load ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndReason {
    /// All requests were sent, or the time was over.
    Done,
    /// Ctrl-C.
    Interrupted,
    /// The history is full.
    Full,
}

/// State that all callers share.
#[derive(Debug)]
struct LoadState {
    load: Load,
    started: Instant,
    /// Number of requests that callers have started.
    started_requests: u64,
    end_reason: Option<EndReason>,
    counts: AnswerCounts,
    history: History,
}

/// A request for a caller. `due` is `None` without a rate.
struct DueRequest {
    number: u64,
    due: Option<Instant>,
    draw: DrawnNumbers,
    check: Check,
}

/// Sends the requests, to each server in turn, until all are sent and answered.
pub(super) async fn drive(
    clients: Arc<[Client]>,
    load: Load,
) -> Result<LoadResult, hdrhistogram::CreationError> {
    let latency = Histogram::new_with_bounds(1, LATENCY_MAX_MICROS, LATENCY_DIGITS)?;
    let callers = load.callers;
    let bar = progress(load.until);
    let state = Arc::new(Mutex::new(LoadState::new(load, latency)));
    let (stop, stopped) = watch::channel(false);
    let mut tasks = JoinSet::new();
    for _ in 0..callers {
        tasks.spawn(run_caller(Arc::clone(&clients), Arc::clone(&state), stopped.clone()));
    }
    let mut ticks = tokio::time::interval(PROGRESS_INTERVAL);
    let mut interrupt = pin!(tokio::signal::ctrl_c());
    let mut is_interrupted = false;
    loop {
        tokio::select! {
            ended = tasks.join_next() => if ended.is_none() { break },
            _ = ticks.tick() => lock(&state, |state| state.show(&bar)),
            signal = &mut interrupt, if !is_interrupted => {
                is_interrupted = true;
                if signal.is_ok() {
                    lock(&state, |state| state.end_reason = Some(EndReason::Interrupted));
                    stop.send_replace(true);
                }
            }
        }
    }
    bar.finish_and_clear();
    Ok(lock(&state, LoadState::finish))
}

/// A caller: sends one request after the other.
async fn run_caller(
    clients: Arc<[Client]>,
    state: Arc<Mutex<LoadState>>,
    mut stopped: watch::Receiver<bool>,
) {
    let started = lock(&state, |state| state.started);
    while let Some(DueRequest { number, due, draw, check }) = lock(&state, LoadState::next) {
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
        // A request that is due waits only while all callers wait for the server, so that wait is latency too.
        let latency = answered.saturating_sub(due.map_or(sent, |due| due - started));
        lock(&state, |state| state.record(number, draw, latency, [sent, answered], &answer));
    }
}

fn lock<T>(state: &Mutex<LoadState>, access: impl FnOnce(&mut LoadState) -> T) -> T {
    access(&mut state.lock().unwrap_or_else(PoisonError::into_inner))
}

impl LoadState {
    fn new(load: Load, latency: Histogram<u64>) -> Self {
        let counts = AnswerCounts {
            allowed: 0,
            refused: 0,
            errors: BTreeMap::new(),
            first_refused: None,
            last: 0,
            last_allowed: None,
            latency,
        };
        let (started, history) = (Instant::now(), History::default());
        Self { load, started, started_requests: 0, end_reason: None, counts, history }
    }

    /// The next request. `None` at the end of the load.
    fn next(&mut self) -> Option<DueRequest> {
        if self.history.is_full() {
            self.end_reason = self.end_reason.or(Some(EndReason::Full));
        }
        if self.end_reason.is_some() {
            return None;
        }
        if self.load.request_count().is_some_and(|requests| self.started_requests >= requests) {
            return None;
        }
        if let Until::Elapsed(end) = self.load.until
            && self.started.elapsed() >= end
        {
            return None;
        }
        let after = self.load.rate.map(|rate| self.started_requests as f64 / rate);
        // A time beyond the range of the clock is never reached.
        let after = after.map(|after| Duration::try_from_secs_f64(after).unwrap_or(Duration::MAX));
        let due = match after {
            Some(after) => Some(self.started.checked_add(after)?),
            None => None,
        };
        self.started_requests += 1;
        let draw = self.load.requests.draw();
        let descriptors = self.load.requests.descriptors(&draw);
        let check = Check::new(&self.load.domain)
            .descriptors(descriptors.into_iter().map(Descriptor::from))
            .hits(self.load.hits);
        Some(DueRequest { number: self.started_requests, due, draw, check })
    }

    fn record(
        &mut self,
        number: u64,
        draw: DrawnNumbers,
        latency: Duration,
        times: [Duration; 2],
        answer: &Result<Verdict, CheckError>,
    ) {
        let [sent, answered] = times.map(|it| i64::try_from(it.as_micros()).unwrap_or(i64::MAX));
        self.counts.record(number, u64::try_from(latency.as_micros()).unwrap_or(u64::MAX), answer);
        if self.load.keeps_history {
            self.history.add(draw, [sent, answered], answer);
        }
    }

    fn show(&self, bar: &ProgressBar) {
        let AnswerCounts { allowed, refused, .. } = &self.counts;
        let errors = self.counts.failed();
        bar.set_position(match self.load.until {
            Until::Count(_) => self.counts.sent(),
            Until::Elapsed(_) => millis(self.started.elapsed()),
        });
        bar.set_message(format!("{allowed} allowed, {refused} refused, {errors} errors"));
    }

    fn finish(&mut self) -> LoadResult {
        let ended = self.end_reason.unwrap_or(EndReason::Done);
        let due = self.load.request_count().filter(|_| ended == EndReason::Done);
        LoadResult {
            counts: self.counts.clone(),
            took: self.started.elapsed(),
            ended,
            not_sent: due.map_or(0, |due| due.saturating_sub(self.started_requests)),
            requests: mem::take(&mut self.load.requests),
            history: mem::take(&mut self.history),
        }
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// A progress bar on standard error. Hidden if that is not a terminal.
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
