//! What several servers say, added up.

use std::{cmp::Ordering, collections::HashMap, time::Duration};

use sluicegate_proto::{
    sluicegate::admin::v1::{TopCounter, TopRequest, TopResponse},
    text::{format_span, from_wire},
};
use tokio::task::JoinSet;

use super::{Kind, TopSettings, safe};
use crate::Failure;
use sluicegate_client::AdminClient;

/// Heads of the columns.
pub(super) const HEADS: [&str; 7] =
    ["RATE/S", "TOTAL", "USED", "LAST", "DOMAIN", "RULE", "COUNTER"];

/// Who is being limited.
#[derive(Clone, Debug, Default)]
pub(super) struct Rows {
    /// The counters, as they are sorted.
    pub(super) rows: Vec<Row>,
    /// How long what happens counts.
    pub(super) window: Duration,
    /// Whether hashes stand for the counters' names.
    pub(super) hashed: bool,
    /// Whether servers hash differently, so that what they say of one counter cannot be added up.
    pub(super) hashes_differ: bool,
    /// Servers that have answered.
    pub(super) servers: usize,
    /// Descriptors that were not looked at.
    pub(super) missed: u64,
}

/// One counter.
#[derive(Clone, Debug)]
pub(super) struct Row {
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

/// What the servers say, and why some say nothing.
pub(super) struct Asked {
    pub(super) rows: Rows,
    pub(super) failures: Vec<Failure>,
}

/// Asks every server at the same time.
pub(super) async fn ask(clients: &[AdminClient], settings: &TopSettings, kind: Kind) -> Asked {
    let mut asking = JoinSet::new();
    for client in clients {
        let client = client.clone();
        let (kind, domain) = (kind.to_wire().into(), settings.domain.clone());
        // What is seldom at each of them may be often at all.
        let count =
            if clients.len() > 1 { COUNT_OF_MANY.max(settings.count) } else { settings.count };
        asking.spawn(async move {
            let answer = client.top(TopRequest { kind, count, domain }).await;
            answer.map_err(|source| Failure::Call { endpoint: client.endpoint().clone(), source })
        });
    }
    let (mut answers, mut failures) = (Vec::new(), Vec::new());
    for answer in asking.join_all().await {
        match answer {
            Ok(answer) => answers.push(answer),
            Err(failure) => failures.push(failure),
        }
    }
    let mut rows = Rows::of(answers);
    rows.sort(if kind == Kind::Near { Column::Used } else { Column::Rate }, false);
    rows.rows.truncate(usize::try_from(settings.count).unwrap_or(usize::MAX));
    Asked { rows, failures }
}

/// Counters to ask each of several servers for.
const COUNT_OF_MANY: u32 = 1000;

impl Rows {
    fn of(answers: Vec<TopResponse>) -> Self {
        let mut rows = Self { servers: answers.len(), ..Self::default() };
        let mut known: HashMap<(String, String, String), usize> = HashMap::new();
        let mut hash_id: Option<String> = None;
        for answer in answers {
            rows.window = rows.window.max(answer.window.map(from_wire).unwrap_or_default());
            rows.hashed |= answer.hashed;
            rows.missed += answer.missed;
            let id = hash_id.get_or_insert_with(|| answer.hash_id.clone());
            rows.hashes_differ |= *id != answer.hash_id;
            for counter in answer.counters {
                let row = Row::of(&counter);
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

    /// Puts the rows in order: the most first, names from a to z.
    pub(super) fn sort(&mut self, column: Column, reversed: bool) {
        self.rows.sort_by(|a, b| {
            let order = column.compare(a, b);
            let order = if reversed { order.reverse() } else { order };
            order.then(b.rate.total_cmp(&a.rate)).then_with(|| a.key.cmp(&b.key))
        });
    }

    /// What the table is about.
    pub(super) fn head(&self, kind: Kind) -> String {
        let what = match kind {
            Kind::Denied => "refused",
            Kind::Near => "near their limits",
        };
        let s = if self.servers == 1 { "" } else { "s" };
        let none = if self.rows.is_empty() { "nobody is " } else { "" };
        format!("{none}{what} in the last {}, {} server{s}", format_span(self.window), self.servers)
    }

    /// What must be known to read it.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.hashes_differ {
            let note = "servers hash differently and cannot be added up; give them one --key-hash-salt-file";
            notes.push(note.to_owned());
        }
        if self.missed > 0 {
            notes.push(format!("{} were not looked at since the start", self.missed));
        }
        notes
    }
}

impl Row {
    fn of(counter: &TopCounter) -> Self {
        Self {
            domain: safe(&counter.domain),
            rule: safe(&counter.rule),
            key: safe(&counter.key),
            rate: counter.rate,
            count: counter.count,
            error: counter.error,
            total: counter.total,
            last_seen: counter.last_seen.map(from_wire).unwrap_or_default(),
            used_permille: counter.used_permille,
        }
    }

    /// Adds what another server says.
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

/// What rows are sorted by, in the order of the columns.
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
    const ALL: [Self; HEADS.len()] =
        [Self::Rate, Self::Total, Self::Used, Self::Last, Self::Domain, Self::Rule, Self::Counter];

    /// Its place.
    pub(super) fn place(self) -> usize {
        Self::ALL.iter().position(|it| *it == self).unwrap_or_default()
    }

    /// The one so many places to the right, past the end from the beginning.
    pub(super) fn moved(self, by: usize) -> Self {
        let at = (self.place() + by) % Self::ALL.len();
        Self::ALL.get(at).copied().unwrap_or(self)
    }

    /// The one to the left.
    pub(super) fn left(self) -> Self {
        self.moved(Self::ALL.len() - 1)
    }

    fn compare(self, a: &Row, b: &Row) -> Ordering {
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
