//! Compares the answers of a run with what an exact limiter would have answered.
//!
//! `planned` uses the server's matcher to find the limits of a request. `bound` (what limits may admit) and `usage`
//! (what they may refuse) are written from the documentation of the algorithms, independently of the server.

mod answers;
mod bound;
mod counter;
mod planned;
mod refusals;
mod rows;
#[cfg(test)]
mod tests;
mod tree;
mod usage;
mod window_starts;

use std::collections::HashMap;

use sluicegate_core::{CounterKey, rules::RuleSet};

use self::{
    bound::Micros, counter::Counter, planned::MatchedDescriptor, refusals::Refusal, rows::LimitRows,
};
pub(super) use self::{
    planned::match_rules,
    rows::{LimitRow, Uncertainty},
};
use super::{history::History, template::RequestGenerator};

/// The rules, and the requests whose answers are compared with them.
#[derive(Debug)]
pub(super) struct Verifier<'r> {
    pub(super) rules: &'r RuleSet,
    pub(super) domain: &'r str,
    pub(super) requests: &'r RequestGenerator,
    pub(super) hits: u64,
    /// Maximum drift of the servers' clocks from this machine's clock during the run.
    pub(super) tolerance: Micros,
}

/// The result of the verification.
#[derive(Debug)]
pub(super) struct Verified {
    /// A row for each limit of the requests, in the order of the rules.
    pub(super) rows: Vec<LimitRow>,
}

impl Verified {
    /// Hits admitted past limits.
    pub(super) fn over(&self) -> i64 {
        self.rows.iter().map(|row| row.over).sum()
    }

    /// Refused hits that an exact limiter would have admitted.
    pub(super) fn under(&self) -> i64 {
        self.rows.iter().map(|row| row.under).sum()
    }

    /// The sum of a column.
    pub(super) fn sum(&self, of: impl Fn(&LimitRow) -> u64) -> u64 {
        self.rows.iter().map(of).sum()
    }
}

impl Verifier<'_> {
    /// Compares every answer with the rules.
    pub(super) fn verify(&self, history: &History) -> Verified {
        let mut verification = VerificationState::default();
        let planned: Vec<_> = history.draws().map(|draw| verification.plan(self, draw)).collect();
        for record in history.records() {
            if let Some(planned) = planned.get(record.draw) {
                verification.add(self, record, history, planned);
            }
        }
        verification.judge(self, &planned)
    }

    fn hits(&self) -> i64 {
        i64::try_from(self.hits).unwrap_or(i64::MAX)
    }
}

/// The rows, counters and refusals of the answers so far.
#[derive(Default)]
struct VerificationState {
    rows: LimitRows,
    counters: Vec<Counter>,
    by_key: HashMap<CounterKey, usize>,
    refusals: Vec<Refusal>,
}

impl VerificationState {
    /// Counts a request in the rows of a descriptor's limits.
    fn count(&mut self, descriptor: &MatchedDescriptor, change: impl Fn(&mut LimitRow)) {
        let mut count = |row| {
            self.rows.update(row, |row| {
                row.requests += 1;
                change(row);
            });
        };
        match &descriptor.limits[..] {
            [] => count(descriptor.row),
            limits => limits.iter().for_each(|limit| count(limit.row)),
        }
    }
}
