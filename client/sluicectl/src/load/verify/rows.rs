//! The rows of the report, one for each limit.

use std::collections::BTreeMap;

use sluicegate_core::Rule;

use super::bound::Micros;

/// The result for one limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct LimitRow {
    /// Path of the rule; `None` for descriptors that match no rule.
    pub(in super::super) rule: Option<String>,
    /// File and line of the rule.
    pub(in super::super) location: Option<String>,
    /// Text of the limit.
    pub(in super::super) limit: String,
    /// Requests that the limit applies to.
    pub(in super::super) requests: u64,
    /// Allowed requests among them.
    pub(in super::super) allowed: u64,
    /// Requests among them that the limit refused.
    pub(in super::super) refused: u64,
    /// Requests among them without an answer.
    pub(in super::super) errors: u64,
    /// Hits that the limit admitted.
    pub(in super::super) admitted: i64,
    /// Hits that were admitted past the limit.
    pub(in super::super) over: i64,
    /// Refused hits that an exact limiter would have admitted.
    pub(in super::super) under: i64,
    /// Refusals although the limit cannot have been reached.
    pub(in super::super) unexplained: u64,
    /// Refusals that are correct only if requests without an answer were charged.
    pub(in super::super) explained_by_errors: u64,
    /// Refusals that cannot be judged.
    pub(in super::super) not_judged: u64,
    /// Maximum of the hits that counters had used before the first answer about them.
    pub(in super::super) used_before: i64,
    /// Largest uncertainty of where windows of its counters begin; `None` if windows are not aligned.
    pub(in super::super) window_start_uncertainty: Option<Uncertainty>,
    /// Requests per unit in the answers, if it differs from the files.
    pub(in super::super) server_requests_per_unit: Option<u32>,
    /// Why answers about the limit were not verified.
    pub(in super::super) not_verified: Option<&'static str>,
}

impl LimitRow {
    /// Hits that an exact limiter would have admitted.
    pub(in super::super) const fn exact(&self) -> i64 {
        self.admitted - self.over + self.under
    }
}

/// Uncertainty of where windows begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) enum Uncertainty {
    /// A span of this many microseconds.
    Within(Micros),
    /// Unknown.
    Unknown,
}

/// The rows, one for each limit.
#[derive(Debug, Default)]
pub(super) struct LimitRows {
    rows: Vec<LimitRow>,
    /// By rule and limit: rows without a rule first, then in the order of the files.
    by_limit: BTreeMap<(Option<usize>, String), usize>,
}

impl LimitRows {
    /// The index of the row of this limit, which is added if it is new.
    pub(super) fn position(&mut self, rule: Option<&Rule>, limit: String) -> usize {
        let Self { rows, by_limit } = self;
        *by_limit.entry((rule.map(|rule| rule.id), limit)).or_insert_with_key(|(_, limit)| {
            rows.push(LimitRow {
                rule: rule.map(|rule| rule.path.to_string()),
                location: rule.map(|rule| format!("{}:{}", rule.location.file, rule.location.line)),
                limit: limit.clone(),
                ..LimitRow::default()
            });
            rows.len() - 1
        })
    }

    /// Changes the row at this index.
    pub(super) fn update(&mut self, position: usize, change: impl FnOnce(&mut LimitRow)) {
        if let Some(row) = self.rows.get_mut(position) {
            change(row);
        }
    }

    /// The rows in the order of the rules.
    pub(super) fn into_ordered(self) -> Vec<LimitRow> {
        let Self { rows, by_limit } = self;
        by_limit.into_values().filter_map(|at| rows.get(at).cloned()).collect()
    }
}
