//! Judges what happened in a run, by arithmetic of its own.
//!
//! The servers record each change of a counter. A check that the store answered must be explained by the counter at some
//! moment between question and answer; and what the scripts have changed of a counter, all calls together, must be the sum
//! of what callers were told.

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
    scenario::{CheckPlan, Kind, Scenario},
};

/// Something that must not happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule that is broken.
    pub rule: &'static str,
    /// The action of the scenario that it is about, if it is about one.
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

/// Everything in a run that must not happen.
pub(crate) fn judge(scenario: &Scenario, history: &History) -> Vec<Violation> {
    let mut judge = Judge { scenario, history, found: Vec::new() };
    judge.of_run("nothing panics", &history.panics);
    if history.rest.is_empty() {
        // The run itself has panicked.
        return judge.found;
    }
    judge.of_run("servers run every command and keep every counter", &history.problems);
    if history.not_connected {
        judge.of_run("connected in time", &["the stack is degraded".to_owned()]);
    }
    if history.unanswered > 0 {
        let what = format!("{} requests, resets or drains have no end", history.unanswered);
        judge.of_run("every request is answered", &[what]);
    }
    history.requests.iter().for_each(|request| judge.answer_in_time(request));
    history.requests.iter().for_each(|request| judge.failures(request));
    if scenario.kind == Kind::Memory {
        judge.memory();
    } else {
        history.requests.iter().for_each(|request| judge.answers(request));
        history.requests.iter().for_each(|request| judge.local(request));
        judge.sums();
        judge.debits();
    }
    judge.recovery();
    judge.rest();
    judge.drains();
    judge.found
}

struct Judge<'r> {
    scenario: &'r Scenario,
    history: &'r History,
    found: Vec<Violation>,
}

/// Hits that must be left for a check to be allowed.
fn needs(take: Charge) -> u64 {
    match take {
        Charge::Exactly(hits) => hits.max(1),
        Charge::Refund { .. } => 0,
        Charge::Always { needs, .. } => needs,
    }
}

fn is_conditional(take: Charge) -> bool {
    matches!(take, Charge::Exactly(_))
}

/// Whether the descriptor of a check has a check that is not allowed.
fn is_over(checks: &[CheckPlan], allowed: &[bool], descriptor: usize) -> bool {
    let of_descriptor = checks.iter().zip(allowed).filter(|(it, _)| it.descriptor == descriptor);
    of_descriptor.into_iter().any(|(_, allowed)| !allowed)
}

/// Whether the request is refused: one descriptor that may refuse alone is over, or all those with a quota.
fn is_refused(checks: &[CheckPlan], allowed: &[bool]) -> bool {
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

/// What a check was answered.
fn decided(request: &RequestRecord, at: usize) -> Option<&Decision> {
    match &request.outcome {
        Outcome::Decided(decisions) => decisions.get(at),
        Outcome::Deferred | Outcome::Left => None,
    }
}

impl Judge<'_> {
    fn add(&mut self, rule: &'static str, action: Option<usize>, what: String) {
        self.found.push(Violation { rule, action, what });
    }

    fn of_run(&mut self, rule: &'static str, what: &[String]) {
        self.found.extend(what.iter().map(|it| Violation::of_run(rule, it.clone())));
    }

    fn limit(&self, check: &CheckPlan) -> Limit {
        self.scenario.counters[check.counter].limits[check.limit]
    }

    fn answer_in_time(&mut self, request: &RequestRecord) {
        if !matches!(request.outcome, Outcome::Left) && request.ended.1 > request.deadline {
            let (ended, deadline) = (request.ended.1, request.deadline);
            let what = format!("answered at {ended:?}, after its deadline {deadline:?}");
            self.add("answers come in time", Some(request.action), what);
        }
    }

    /// Nothing is left at the end.
    fn rest(&mut self) {
        for (process, rest) in self.history.rest.iter().enumerate() {
            let counts = [rest.waiting, rest.split, rest.pending, rest.late_kept];
            if counts != [0; 4] || rest.fallback.owed != 0 || !rest.is_settled {
                self.of_run("nothing is left", &[format!("process {process}: {rest:?}")]);
            }
            let unknown = (rest.hits_unknown, rest.give_backs_failed);
            if self.scenario.is_calm && unknown != (0, 0) {
                let what =
                    format!("process {process}: unknown hits and failed refunds are {unknown:?}");
                self.of_run("failures have a reason", &[what]);
            }
        }
        if self.history.tasks_left > 0 {
            let what = format!("{} tasks", self.history.tasks_left);
            self.of_run("nothing is left", &[what]);
        }
    }

    /// A process that ends waits for what it is settling, but not longer than it may.
    fn drains(&mut self) {
        for drain in &self.history.drains {
            let (split, refunds, owed) = drain.left;
            let is_done = split == 0 && owed == 0 && (refunds == 0 || !self.scenario.is_calm);
            if drain.took > FINISH_TIMEOUT || drain.took < FINISH_TIMEOUT && !is_done {
                let Drain { process, took, .. } = drain;
                let what = format!("process {process} took {took:?}, {:?} are left", drain.left);
                self.of_run("a process ends in time and settles before", &[what]);
            }
        }
    }
}
