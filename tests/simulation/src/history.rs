//! The history of a run: what happened, for the oracle.

use std::time::Duration;

use sluicegate_core::Decision;
use sluicegate_store::FallbackStats;

use crate::{scenario::PlannedCheck, world::CounterHistory};

/// How a request ended.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    Decided(Vec<Decision>),
    Deferred,
    /// The caller disconnected before the answer.
    Disconnected,
}

/// A request and how it ended.
#[derive(Clone, Debug)]
pub(crate) struct RequestRecord {
    /// Position of the action in the scenario.
    pub(crate) action: usize,
    pub(crate) process: usize,
    pub(crate) checks: Vec<PlannedCheck>,
    pub(crate) deadline: Duration,
    /// Event number and time of the start and of the end.
    pub(crate) began: (u64, Duration),
    pub(crate) ended: (u64, Duration),
    pub(crate) outcome: Outcome,
    /// Whether its process had no pending refunds, and awaited no late replies, when it began.
    pub(crate) had_no_refunds_or_late_calls: bool,
}

/// An event after which a process must not use cached refusals of a counter.
#[derive(Clone, Debug)]
pub(crate) struct Invalidation {
    pub(crate) process: usize,
    /// The counter; `None` for all counters.
    pub(crate) counter: Option<usize>,
    pub(crate) is_reset: bool,
    pub(crate) ended: (u64, Duration),
    /// Whether charges of a refused request were undone.
    pub(crate) is_undo: bool,
}

/// What a process has pending, and has counted, when the run has come to rest.
#[derive(Clone, Debug, Default)]
pub(crate) struct EndState {
    pub(crate) waiting: usize,
    pub(crate) multi_slot: usize,
    pub(crate) refunds_and_late_calls: usize,
    pub(crate) late_answers_uncollected: usize,
    pub(crate) is_debit_list_empty: bool,
    pub(crate) hits_unknown: u64,
    pub(crate) refunds_failed: u64,
    pub(crate) fallback: FallbackStats,
}

/// The drain of a process.
#[derive(Clone, Debug)]
pub(crate) struct Drain {
    pub(crate) process: usize,
    pub(crate) duration: Duration,
    /// At its end: multi-slot requests that were not settled, pending refunds and calls with late replies, and hits to
    /// be debited.
    pub(crate) pending: (usize, usize, u64),
}

/// The history of a run.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) requests: Vec<RequestRecord>,
    pub(crate) invalidations: Vec<Invalidation>,
    pub(crate) drains: Vec<Drain>,
    /// The end state of each process.
    pub(crate) end_states: Vec<EndState>,
    /// The process, and its answer about every counter after the recovery.
    pub(crate) recovered: Vec<(usize, Outcome)>,
    /// Hits used of each counter at the end, by the limit of its rule. Only in a run with a store in memory.
    pub(crate) used: Vec<Option<i64>>,
    pub(crate) counters: Vec<CounterHistory>,
    /// Start and end of each fault.
    pub(crate) faults: Vec<(Duration, Duration)>,
    /// Errors that the simulated servers noticed, such as unknown commands, lost counters and failed scripts.
    pub(crate) problems: Vec<String>,
    pub(crate) panics: Vec<String>,
    /// Number of requests, resets and drains that have not ended.
    pub(crate) unfinished: usize,
    pub(crate) tasks_left: usize,
    pub(crate) not_connected: bool,
}
