//! The record of a run: every request with its outcome, every kill and every event.

use std::{
    fmt,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use tonic::Code;

use crate::traffic::{Counter, Request};

/// A replica is killed at most so long after it had nothing to settle. What it was asked, or has answered, since then may
/// be charged and counted nowhere.
pub(crate) const SETTLING: Duration = Duration::from_secs(1);

/// A replica from its start to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Life {
    pub(crate) replica: usize,
    /// How many there were before.
    pub(crate) number: usize,
}

/// The end of a life.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Killed {
    /// The last time at which all requests that had ended were settled, and all unknown hits counted.
    pub(crate) settled: Duration,
    /// The time of the end.
    pub(crate) at: Duration,
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Admitted,
    Refused,
    /// Its caller left before the answer.
    Left,
    /// An error in the place of an answer.
    Failed(Code),
}

/// A request and its outcome. Times are since the start of the run.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) life: Life,
    pub(crate) request: Request,
    pub(crate) sent: Duration,
    /// The time of the answer, or of the caller's leaving.
    pub(crate) ended: Duration,
    pub(crate) outcome: Outcome,
}

impl Asked {
    /// The hits that it asked of a counter.
    pub(crate) fn hits_on(&self, counter: &Counter) -> u64 {
        if self.request.counters.contains(counter) { self.request.hits } else { 0 }
    }
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { life, request, sent, ended, outcome } = self;
        let counters: Vec<_> = request.counters.iter().map(|it| format!("[{it}]")).collect();
        write!(
            f,
            "{:9.4} {:9.4} replica {}.{} {outcome:?} {} hits on {}",
            sent.as_secs_f64(),
            ended.as_secs_f64(),
            life.replica,
            life.number,
            request.hits,
            counters.join(" "),
        )
    }
}

/// The record, which callers and faults add to.
#[derive(Debug)]
pub(crate) struct Record {
    started: Instant,
    entries: Mutex<Entries>,
}

/// The entries of a record.
#[derive(Clone, Debug, Default)]
pub(crate) struct Entries {
    pub(crate) asked: Vec<Asked>,
    /// Lives that were killed.
    pub(crate) killed: Vec<(Life, Killed)>,
    /// Start, end and description of each event.
    pub(crate) events: Vec<(Duration, Duration, String)>,
}

impl Record {
    /// The run begins now.
    pub(crate) fn start() -> Self {
        Self { started: Instant::now(), entries: Mutex::default() }
    }

    /// The time since the run began.
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Waits until that time of the run.
    pub(crate) async fn until(&self, at: Duration) {
        tokio::time::sleep_until((self.started + at).into()).await;
    }

    /// Adds to it.
    pub(crate) fn note(&self, note: impl FnOnce(&mut Entries)) {
        note(&mut self.entries.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// All of it, in the order in which requests were sent.
    pub(crate) fn entries(&self) -> Entries {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner).clone();
        entries.asked.sort_by_key(|asked| asked.sent);
        entries.events.sort();
        entries
    }
}
