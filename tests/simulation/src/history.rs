//! What happened in a run.

use std::time::Duration;

use sluicegate_core::Decision;
use sluicegate_store::FallbackStats;

use crate::{scenario::CheckPlan, world::Counter};

/// What a request was answered.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    Decided(Vec<Decision>),
    Deferred,
    /// Its caller had left.
    Left,
}

/// A request, and its answer.
#[derive(Clone, Debug)]
pub(crate) struct RequestRecord {
    /// Which of the scenario's actions it was.
    pub(crate) action: usize,
    pub(crate) process: usize,
    pub(crate) checks: Vec<CheckPlan>,
    pub(crate) deadline: Duration,
    /// Numbers and times of the events.
    pub(crate) began: (u64, Duration),
    pub(crate) ended: (u64, Duration),
    pub(crate) outcome: Outcome,
    /// Whether its process was refunding nothing when it began.
    pub(crate) was_settled: bool,
}

/// An event after which a process must not use what it remembers of a counter's refusals.
#[derive(Clone, Debug)]
pub(crate) struct Invalidation {
    pub(crate) process: usize,
    /// Of all counters, if none.
    pub(crate) counter: Option<usize>,
    pub(crate) is_reset: bool,
    pub(crate) ended: (u64, Duration),
    /// Whether it was the refund of what a refused request had charged.
    pub(crate) is_undo: bool,
}

/// What was left when everything had come to rest.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rest {
    pub(crate) waiting: usize,
    pub(crate) split: usize,
    pub(crate) pending: usize,
    pub(crate) late_kept: usize,
    pub(crate) is_settled: bool,
    pub(crate) hits_unknown: u64,
    pub(crate) give_backs_failed: u64,
    pub(crate) fallback: FallbackStats,
}

/// The end of a process.
#[derive(Clone, Debug)]
pub(crate) struct Drain {
    pub(crate) process: usize,
    pub(crate) took: Duration,
    /// Requests that were not settled, refunds in progress, and hits to be debited.
    pub(crate) left: (usize, usize, u64),
}

/// What happened in a run.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) requests: Vec<RequestRecord>,
    pub(crate) invalidations: Vec<Invalidation>,
    pub(crate) drains: Vec<Drain>,
    /// Of each process.
    pub(crate) rest: Vec<Rest>,
    /// What processes answered after the recovery about every counter.
    pub(crate) recovered: Vec<(usize, Outcome)>,
    /// Hits used of each counter at the end, in a run with memory: by the limit of its rule.
    pub(crate) used: Vec<Option<i64>>,
    pub(crate) counters: Vec<Counter>,
    /// When something failed, from when to when.
    pub(crate) faults: Vec<(Duration, Duration)>,
    /// What servers must not see or do.
    pub(crate) problems: Vec<String>,
    pub(crate) panics: Vec<String>,
    pub(crate) unanswered: usize,
    pub(crate) tasks_left: usize,
    pub(crate) not_connected: bool,
}
