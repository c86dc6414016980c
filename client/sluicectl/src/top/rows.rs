//! The counters of one or more servers, added up.

use std::{cmp::Ordering, collections::HashMap, time::Duration};

use sluicegate_proto::{
    sluicegate::admin::v1::{TopCounter, TopRequest, TopResponse},
    text::{duration_from_proto, format_span},
};
use tokio::task::JoinSet;

use super::{Kind, TopSettings, escape};
use crate::Failure;
use sluicegate_client::AdminClient;

/// Headings of the columns.
pub(super) const HEADINGS: [&str; 7] =
    ["RATE/S", "TOTAL", "USED", "LAST", "DOMAIN", "RULE", "COUNTER"];

/// The counters of all servers that replied.
#[derive(Clone, Debug, Default)]
pub(super) struct CounterRows {
    /// The counters, in the order of the table.
    pub(super) rows: Vec<CounterRow>,
    /// Time span of the rates.
    pub(super) window: Duration,
    /// Whether `key` has hashes instead of keys.
    pub(super) hashed: bool,
    /// Whether servers use different salts, so that counts of one counter cannot be added up.
    pub(super) hashes_differ: bool,
    /// Number of servers that replied.
    pub(super) servers: usize,
    /// Events that servers did not record.
    pub(super) missed: u64,
}

/// One counter, with the fields of `TopCounter`.
#[derive(Clone, Debug)]
pub(super) struct CounterRow {
    pub(super) domain: String,
    pub(super) rule: String,
    pub(super) key: String,
    pub(super) rate: f64,
    pub(super) count: u64,
    pub(super) error: u64,
    pub(super) total: u64,
    pub(super) last_seen: Duration,
    pub(super) used_permille: u32,
}

/// Counters of the servers that replied, and failures of the others.
pub(super) struct TopResults {
    pub(super) rows: CounterRows,
    pub(super) failures: Vec<Failure>,
}

/// Calls all servers concurrently.
pub(super) async fn fetch(
    clients: &[AdminClient],
    settings: &TopSettings,
    kind: Kind,
) -> TopResults {
    let mut calls = JoinSet::new();
    for client in clients {
        let client = client.clone();
        let (kind, domain) = (kind.to_wire().into(), settings.domain.clone());
        // A counter may be rare on each server and frequent in total.
        let count =
            if clients.len() > 1 { COUNT_PER_SERVER.max(settings.count) } else { settings.count };
        calls.spawn(async move {
            let answer = client.top(TopRequest { kind, count, domain }).await;
            answer.map_err(|source| Failure::Call { endpoint: client.endpoint().clone(), source })
        });
    }
    let (mut answers, mut failures) = (Vec::new(), Vec::new());
    for answer in calls.join_all().await {
        match answer {
            Ok(answer) => answers.push(answer),
            Err(failure) => failures.push(failure),
        }
    }
    let mut rows = CounterRows::add_up(answers);
    rows.sort(if kind == Kind::Near { Column::Used } else { Column::Rate }, false);
    rows.rows.truncate(usize::try_from(settings.count).unwrap_or(usize::MAX));
    TopResults { rows, failures }
}

/// Number of counters requested from each of several servers.
const COUNT_PER_SERVER: u32 = 1000;

impl CounterRows {
    fn add_up(responses: Vec<TopResponse>) -> Self {
        let mut rows = Self { servers: responses.len(), ..Self::default() };
        let mut known: HashMap<(String, String, String), usize> = HashMap::new();
        let mut hash_id: Option<String> = None;
        for response in responses {
            rows.window =
                rows.window.max(response.window.map(duration_from_proto).unwrap_or_default());
            rows.hashed |= response.hashed;
            rows.missed += response.missed;
            let id = hash_id.get_or_insert_with(|| response.hash_id.clone());
            rows.hashes_differ |= *id != response.hash_id;
            for counter in response.counters {
                let row = CounterRow::of(&counter);
                let name = (row.domain.clone(), row.rule.clone(), row.key.clone());
                let at = *known.entry(name).or_insert(rows.rows.len());
                match rows.rows.get_mut(at) {
                    Some(same) => same.add(&row),
                    None => rows.rows.push(row),
                }
            }
        }
        rows
    }

    /// Sorts the rows: numbers from high to low, names from a to z.
    pub(super) fn sort(&mut self, column: Column, reversed: bool) {
        self.rows.sort_by(|a, b| {
            let order = column.compare(a, b);
            let order = if reversed { order.reverse() } else { order };
            order.then(b.rate.total_cmp(&a.rate)).then_with(|| a.key.cmp(&b.key))
        });
    }

    /// Title of the table.
    pub(super) fn title(&self, kind: Kind) -> String {
        let what = match (kind, self.rows.is_empty()) {
            (Kind::Denied, false) => "refused",
            (Kind::Denied, true) => "no refusals",
            (Kind::Near, false) => "near their limits",
            (Kind::Near, true) => "no counters near their limits",
        };
        let s = if self.servers == 1 { "" } else { "s" };
        format!("{what} in the last {}, {} server{s}", format_span(self.window), self.servers)
    }

    /// Warnings about the table.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.hashes_differ {
            let note = "servers have different hash salts, so counters are not added up; give all the same --key-hash-salt-file";
            notes.push(note.to_owned());
        }
        if self.missed > 0 {
            notes.push(format!(
                "{} events were not recorded since the servers started",
                self.missed
            ));
        }
        notes
    }
}

impl CounterRow {
    fn of(counter: &TopCounter) -> Self {
        Self {
            domain: escape(&counter.domain),
            rule: escape(&counter.rule),
            key: escape(&counter.key),
            rate: counter.rate,
            count: counter.count,
            error: counter.error,
            total: counter.total,
            last_seen: counter.last_seen.map(duration_from_proto).unwrap_or_default(),
            used_permille: counter.used_permille,
        }
    }

    /// Adds the counts of the same counter on another server.
    fn add(&mut self, other: &Self) {
        self.rate += other.rate;
        self.count += other.count;
        self.error += other.error;
        self.total += other.total;
        self.used_permille =
            if other.last_seen < self.last_seen { other.used_permille } else { self.used_permille };
        self.last_seen = self.last_seen.min(other.last_seen);
    }

    /// The cells of a table.
    pub(super) fn cells(&self) -> [String; 7] {
        [
            format!("{:.1}", self.rate),
            self.total.to_string(),
            format!("{}%", self.used_permille / 10),
            format!("{}s", self.last_seen.as_secs()),
            self.domain.clone(),
            self.rule.clone(),
            self.key.clone(),
        ]
    }
}

/// The column that rows are sorted by, in the order of the columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    Rate,
    Total,
    Used,
    Last,
    Domain,
    Rule,
    Counter,
}

impl Column {
    const ALL: [Self; HEADINGS.len()] =
        [Self::Rate, Self::Total, Self::Used, Self::Last, Self::Domain, Self::Rule, Self::Counter];

    /// Position, from 0.
    pub(super) fn index(self) -> usize {
        Self::ALL.iter().position(|it| *it == self).unwrap_or_default()
    }

    /// The column `by` positions to the right, wrapping around.
    pub(super) fn right(self, by: usize) -> Self {
        let at = (self.index() + by) % Self::ALL.len();
        Self::ALL.get(at).copied().unwrap_or(self)
    }

    /// The next column to the left, wrapping around.
    pub(super) fn left(self) -> Self {
        self.right(Self::ALL.len() - 1)
    }

    fn compare(self, a: &CounterRow, b: &CounterRow) -> Ordering {
        match self {
            Self::Rate => b.rate.total_cmp(&a.rate),
            Self::Total => b.total.cmp(&a.total),
            Self::Used => b.used_permille.cmp(&a.used_permille),
            Self::Last => a.last_seen.cmp(&b.last_seen),
            Self::Domain => a.domain.cmp(&b.domain),
            Self::Rule => a.rule.cmp(&b.rule),
            Self::Counter => a.key.cmp(&b.key),
        }
    }
}
