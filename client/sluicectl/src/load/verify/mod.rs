//! Compares the answers of a run with what an exact limiter would have answered.
//!
//! The server's own rules say which limits a request meets (`planned`). What limits admit (`bound`) and refuse (`usage`) is
//! worked out here from their documentation.

mod answers;
mod bound;
mod counter;
mod edges;
mod planned;
mod refusals;
mod rows;
#[cfg(test)]
mod tests;
mod tree;
mod usage;

use std::collections::HashMap;

use sluicegate_core::{CounterKey, rules::RuleSet};

use self::{
    bound::Micros, counter::Counter, planned::MatchedDescriptor, refusals::Refusal, rows::Rows,
};
pub(super) use self::{
    planned::meets_rules,
    rows::{Row, Uncertainty},
};
use super::{history::History, template::Requests};

/// Rules, and the requests whose answers are compared with them.
#[derive(Debug)]
pub(super) struct Verifier<'r> {
    pub(super) rules: &'r RuleSet,
    pub(super) domain: &'r str,
    pub(super) requests: &'r Requests,
    pub(super) hits: u64,
    /// How far the servers' clocks may run away from this one during the run.
    pub(super) tolerance: Micros,
}

/// What was found.
#[derive(Debug)]
pub(super) struct Verified {
    /// One for each limit that was met, in the order of the rules.
    pub(super) rows: Vec<Row>,
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

    /// Refused requests of this kind.
    pub(super) fn sum(&self, of: impl Fn(&Row) -> u64) -> u64 {
        self.rows.iter().map(of).sum()
    }
}

impl Verifier<'_> {
    /// Compares every answer with the rules.
    pub(super) fn verify(&self, history: &History) -> Verified {
        let mut findings = Findings::default();
        let shapes: Vec<_> = history.draws().map(|draw| findings.plan(self, draw)).collect();
        for record in history.records() {
            if let Some(shape) = shapes.get(record.draw) {
                findings.add(self, record, history, shape);
            }
        }
        findings.judge(self, &shapes)
    }

    fn hits(&self) -> i64 {
        i64::try_from(self.hits).unwrap_or(i64::MAX)
    }
}

/// Rows and counters while answers are taken in.
#[derive(Default)]
struct Findings {
    rows: Rows,
    counters: Vec<Counter>,
    by_key: HashMap<CounterKey, usize>,
    refusals: Vec<Refusal>,
}

impl Findings {
    /// Counts a request in the rows of a descriptor's limits.
    fn count(&mut self, met: &MatchedDescriptor, change: impl Fn(&mut Row)) {
        let mut count = |row| {
            self.rows.update(row, |row| {
                row.requests += 1;
                change(row);
            });
        };
        match &met.limits[..] {
            [] => count(met.row),
            limits => limits.iter().for_each(|limit| count(limit.row)),
        }
    }
}
