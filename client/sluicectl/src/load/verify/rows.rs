//! What is found about each limit.

use std::collections::BTreeMap;

use sluicegate_core::Rule;

use super::bound::Micros;

/// What was found about one limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Row {
    /// The path of the rule; `None` for descriptors that no rule is about.
    pub(in super::super) rule: Option<String>,
    /// Where the rule is in the limits files.
    pub(in super::super) place: Option<String>,
    /// The limit in words.
    pub(in super::super) limit: String,
    /// Requests that met the limit.
    pub(in super::super) requests: u64,
    /// Those of them that were allowed.
    pub(in super::super) allowed: u64,
    /// Those that the limit refused.
    pub(in super::super) refused: u64,
    /// Those without an answer.
    pub(in super::super) errors: u64,
    /// Hits that the limit admitted.
    pub(in super::super) admitted: i64,
    /// Hits that were admitted past the limit.
    pub(in super::super) over: i64,
    /// Refused hits that an exact limiter would have admitted.
    pub(in super::super) under: i64,
    /// Refused requests for which the limit cannot have been reached.
    pub(in super::super) unexplained: u64,
    /// Refused requests for which it can have been reached only together with hits of requests without an answer.
    pub(in super::super) explained_by_errors: u64,
    /// Refused requests for which it is not known whether it can have been reached.
    pub(in super::super) not_judged: u64,
    /// Hits that counters had used before the first answer about them, at most.
    pub(in super::super) used_before: i64,
    /// How well it is known where the windows of its counters begin, at worst: `None` where windows are not aligned.
    pub(in super::super) edges: Option<Uncertainty>,
    /// The requests per unit that answers name, if it is another number.
    pub(in super::super) server_requests: Option<u32>,
    /// Why answers about the limit were not verified.
    pub(in super::super) not_verified: Option<&'static str>,
}

impl Row {
    /// Hits that an exact limiter would have admitted.
    pub(in super::super) const fn exact(&self) -> i64 {
        self.admitted - self.over + self.under
    }
}

/// How well it is known where windows begin. The larger is the worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) enum Uncertainty {
    /// Within so many microseconds.
    Within(Micros),
    /// Not at all.
    Unknown,
}

/// The rows, one for each limit.
#[derive(Debug, Default)]
pub(super) struct Rows {
    rows: Vec<Row>,
    /// By rule and limit. Rules come in the order of the files, and what has no rule first.
    by_limit: BTreeMap<(Option<usize>, String), usize>,
}

impl Rows {
    /// The position of the row of this limit.
    pub(super) fn position(&mut self, rule: Option<&Rule>, limit: String) -> usize {
        let Self { rows, by_limit } = self;
        *by_limit.entry((rule.map(|rule| rule.id), limit)).or_insert_with_key(|(_, limit)| {
            rows.push(Row {
                rule: rule.map(|rule| rule.path.to_string()),
                place: rule.map(|rule| format!("{}:{}", rule.location.file, rule.location.line)),
                limit: limit.clone(),
                ..Row::default()
            });
            rows.len() - 1
        })
    }

    /// Changes the row at this position.
    pub(super) fn update(&mut self, position: usize, change: impl FnOnce(&mut Row)) {
        if let Some(row) = self.rows.get_mut(position) {
            change(row);
        }
    }

    /// The rows in the order of the rules.
    pub(super) fn into_ordered(self) -> Vec<Row> {
        let Self { rows, by_limit } = self;
        by_limit.into_values().filter_map(|at| rows.get(at).cloned()).collect()
    }
}
