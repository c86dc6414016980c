//! The record of a run: every request with its outcome, every kill and every event.

use std::{
    fmt,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use tonic::Code;

use crate::traffic::{Counter, Request};

/// Maximum time from the last moment at which a killed replica had nothing to settle to its kill. Its requests since
/// then may be charged without being counted as unknown.
pub(crate) const SETTLING: Duration = Duration::from_secs(1);

/// One process of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Life {
    pub(crate) replica: usize,
    /// Number of earlier processes of the replica.
    pub(crate) number: usize,
}

/// The kill of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Killed {
    /// The last time at which all ended requests were settled and all unknown hits were counted.
    pub(crate) settled: Duration,
    /// Time of the kill.
    pub(crate) at: Duration,
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Admitted,
    Refused,
    /// The caller disconnected before the answer.
    Left,
    /// An error.
    Failed(Code),
}

/// A request and its outcome. Times are relative to the start of the run.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) life: Life,
    pub(crate) request: Request,
    pub(crate) sent: Duration,
    /// Time of the answer, or of the disconnect.
    pub(crate) ended: Duration,
    pub(crate) outcome: Outcome,
}

impl Asked {
    /// The requested hits on a counter.
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

/// The record of a run. Callers and faults add to it.
#[derive(Debug)]
pub(crate) struct Record {
    started: Instant,
    entries: Mutex<Entries>,
}

/// The entries of a record.
#[derive(Clone, Debug, Default)]
pub(crate) struct Entries {
    pub(crate) asked: Vec<Asked>,
    /// Killed processes.
    pub(crate) killed: Vec<(Life, Killed)>,
    /// Start, end and description of each event.
    pub(crate) events: Vec<(Duration, Duration, String)>,
}

impl Record {
    /// Starts a run.
    pub(crate) fn start() -> Self {
        Self { started: Instant::now(), entries: Mutex::default() }
    }

    /// Time since the start of the run.
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Waits until this time of the run.
    pub(crate) async fn until(&self, at: Duration) {
        tokio::time::sleep_until((self.started + at).into()).await;
    }

    /// Adds entries.
    pub(crate) fn note(&self, note: impl FnOnce(&mut Entries)) {
        note(&mut self.entries.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// All entries, in the order in which requests were sent.
    pub(crate) fn entries(&self) -> Entries {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner).clone();
        entries.asked.sort_by_key(|asked| asked.sent);
        entries.events.sort();
        entries
    }
}
