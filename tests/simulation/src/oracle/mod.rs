//! The oracle: verifies the history of a run, with its own arithmetic.
//!
//! The servers record each change of a counter. For every answer of the store, the counter must have had a matching
//! state at some time between the request and its answer. The sum of all changes by the scripts must equal the sum of
//! the answers.

mod answers;
mod failures;
mod memory;
mod span;
mod sums;

use std::fmt;

use sluicegate_core::{Charge, Decision, Limit, store::RefusalScope};
use sluicegate_store::FINISH_TIMEOUT;

use crate::{
    history::{Drain, History, Outcome, RequestRecord},
    scenario::{PlannedCheck, Scenario, StoreKind},
};

/// A rule that a run has violated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule, as in `docs/simulation.md`.
    pub rule: &'static str,
    /// Position of the action in the scenario, if the violation concerns one.
    pub action: Option<usize>,
    what: String,
}

impl Violation {
    fn new(rule: &'static str, action: usize, what: String) -> Self {
        Self { rule, action: Some(action), what }
    }

    fn of_run(rule: &'static str, what: String) -> Self {
        Self { rule, action: None, what }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.rule)?;
        if let Some(action) = self.action {
            write!(f, "action {action}: ")?;
        }
        f.write_str(&self.what)
    }
}

/// Verifies a history, and returns all violations.
pub(crate) fn verify(scenario: &Scenario, history: &History) -> Vec<Violation> {
    let mut oracle = Oracle { scenario, history, found: Vec::new() };
    oracle.of_run("nothing panics", &history.panics);
    if history.end_states.is_empty() {
        // The run itself has panicked.
        return oracle.found;
    }
    oracle.of_run("servers run every command and keep every counter", &history.problems);
    if history.not_connected {
        oracle.of_run("processes connect in time", &["the stack is degraded".to_owned()]);
    }
    if history.unfinished > 0 {
        let what = format!("{} requests, resets or drains have not ended", history.unfinished);
        oracle.of_run("every request is answered", &[what]);
    }
    history.requests.iter().for_each(|request| oracle.verify_answer_time(request));
    history.requests.iter().for_each(|request| oracle.verify_failures(request));
    if scenario.kind == StoreKind::Memory {
        oracle.verify_memory();
    } else {
        history.requests.iter().for_each(|request| oracle.verify_answers(request));
        history.requests.iter().for_each(|request| oracle.verify_local(request));
        oracle.verify_sums();
        oracle.verify_debits();
    }
    oracle.verify_recovery();
    oracle.verify_end_states();
    oracle.verify_drains();
    oracle.found
}

/// Verifies a history and collects violations.
struct Oracle<'r> {
    scenario: &'r Scenario,
    history: &'r History,
    found: Vec<Violation>,
}

/// Hits that must be available for a check to be allowed.
fn needs(charge: Charge) -> u64 {
    match charge {
        Charge::IfAllowed(hits) => hits.max(1),
        Charge::Refund { .. } => 0,
        Charge::Always { needs, .. } => needs,
    }
}

/// Whether a charge is undone if its request is refused.
fn is_conditional(charge: Charge) -> bool {
    matches!(charge, Charge::IfAllowed(_))
}

/// Whether a descriptor is over its limit: one of its checks is not allowed.
fn is_over(checks: &[PlannedCheck], allowed: &[bool], descriptor: usize) -> bool {
    let of_descriptor = checks.iter().zip(allowed).filter(|(it, _)| it.descriptor == descriptor);
    of_descriptor.into_iter().any(|(_, allowed)| !allowed)
}

/// Whether a request is refused: a descriptor that refuses it alone is over its limit, or all quota descriptors are.
fn is_refused(checks: &[PlannedCheck], allowed: &[bool]) -> bool {
    let mut quotas = Vec::new();
    let mut descriptors: Vec<(usize, RefusalScope)> = Vec::new();
    for check in checks {
        if descriptors.last().is_none_or(|(last, _)| *last != check.descriptor) {
            descriptors.push((check.descriptor, check.scope));
        }
    }
    for (descriptor, scope) in descriptors {
        let over = is_over(checks, allowed, descriptor);
        match scope {
            RefusalScope::Request if over => return true,
            RefusalScope::Quota => quotas.push(over),
            RefusalScope::Request | RefusalScope::None => {}
        }
    }
    !quotas.is_empty() && quotas.iter().all(|over| *over)
}

/// The decision on a check; `None` if its request was not decided.
fn decided(request: &RequestRecord, at: usize) -> Option<&Decision> {
    match &request.outcome {
        Outcome::Decided(decisions) => decisions.get(at),
        Outcome::Deferred | Outcome::Disconnected => None,
    }
}

impl Oracle<'_> {
    /// Adds a violation.
    fn add(&mut self, rule: &'static str, action: Option<usize>, what: String) {
        self.found.push(Violation { rule, action, what });
    }

    /// Adds violations that concern no single action.
    fn of_run(&mut self, rule: &'static str, what: &[String]) {
        self.found.extend(what.iter().map(|it| Violation::of_run(rule, it.clone())));
    }

    /// The limit of a check.
    fn limit(&self, check: &PlannedCheck) -> Limit {
        self.scenario.counters[check.counter].limits[check.limit]
    }

    /// Every answer arrives by its deadline.
    fn verify_answer_time(&mut self, request: &RequestRecord) {
        if !matches!(request.outcome, Outcome::Disconnected) && request.ended.1 > request.deadline {
            let (ended, deadline) = (request.ended.1, request.deadline);
            let what = format!("answered at {ended:?}, after its deadline {deadline:?}");
            self.add("answers arrive in time", Some(request.action), what);
        }
    }

    /// Nothing is pending at the end.
    fn verify_end_states(&mut self) {
        for (process, end) in self.history.end_states.iter().enumerate() {
            let counts = [
                end.waiting,
                end.multi_slot,
                end.refunds_and_late_calls,
                end.late_answers_uncollected,
            ];
            if counts != [0; 4] || end.fallback.undebited != 0 || !end.is_debit_list_empty {
                let what = format!("process {process}: {end:?}");
                self.of_run("nothing is pending at the end", &[what]);
            }
            let unknown = (end.hits_unknown, end.refunds_failed);
            if self.scenario.is_fault_free && unknown != (0, 0) {
                let what =
                    format!("process {process}: unknown hits and failed refunds are {unknown:?}");
                self.of_run("failures have a reason", &[what]);
            }
        }
        if self.history.tasks_left > 0 {
            let what = format!("{} tasks", self.history.tasks_left);
            self.of_run("nothing is pending at the end", &[what]);
        }
    }

    /// A process that drains waits until it has settled everything, but not longer than the timeout.
    fn verify_drains(&mut self) {
        for drain in &self.history.drains {
            let (multi_slot, refunds_and_late_calls, debits) = drain.pending;
            let is_done = multi_slot == 0
                && debits == 0
                && (refunds_and_late_calls == 0 || !self.scenario.is_fault_free);
            if drain.duration > FINISH_TIMEOUT || drain.duration < FINISH_TIMEOUT && !is_done {
                let Drain { process, duration, pending } = drain;
                let what = format!("process {process} took {duration:?}, {pending:?} are pending");
                self.of_run("a drain ends in time and settles first", &[what]);
            }
        }
    }
}
