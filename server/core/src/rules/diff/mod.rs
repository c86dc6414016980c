//! What a change of limits changes.
//!
//! Two rule sets are compared node by node. A node is known by its domain and the keys and values that lead
//! to it; where it stands in which file does not matter, but the order of patterns does.

mod edits;

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
};

use super::{
    RuleSet,
    matcher::{Domain, Level, Node, Values},
};
use crate::{Rule, rule::Limits};

/// The most patterns of one key that are written out when their order changes.
const PATTERNS_SHOWN: usize = 8;

/// Stands for what is not there.
const NONE: &str = "none";

/// One difference between two rule sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The domain.
    pub domain: Box<str>,
    /// The path of keys and values in it; empty for the domain itself.
    pub path: Box<str>,
    /// What differs there.
    pub what: What,
}

/// What differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// There is more; in words, what it enforces.
    Added(String),
    /// There is less; in words, what it enforced.
    Removed(String),
    /// Something about it. Never empty.
    Changed(Vec<Edit>),
}

/// One key with another value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// The key.
    pub key: String,
    /// What it was, in words.
    pub from: String,
    /// What it is now, in words.
    pub to: String,
    /// Whether counters get other names by it, so that everybody starts as if never seen.
    pub anew: bool,
}

impl Change {
    /// What is edited; nothing where all of it is added or removed.
    #[must_use]
    pub fn edits(&self) -> &[Edit] {
        match &self.what {
            What::Changed(edits) => edits,
            What::Added(_) | What::Removed(_) => &[],
        }
    }

    /// Whether counters start anew by it. Those of rules that are added or removed do not count.
    #[must_use]
    pub fn is_anew(&self) -> bool {
        self.edits().iter().any(|edit| edit.anew)
    }
}

impl fmt::Display for Change {
    /// A line for each edit, or one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, path, what } = self;
        let colon = if path.is_empty() { "" } else { ": " };
        match what {
            What::Added(words) => write!(f, "added {domain}{colon}{path}: {words}"),
            What::Removed(words) => write!(f, "removed {domain}{colon}{path}: {words}"),
            What::Changed(edits) => {
                for (index, edit) in edits.iter().enumerate() {
                    let line = if index == 0 { "" } else { "\n" };
                    write!(f, "{line}changed {domain}{colon}{path}: {edit}")?;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Display for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, from, to, anew } = self;
        let anew = if *anew { "; counters start anew" } else { "" };
        write!(f, "{key} {from} -> {to}{anew}")
    }
}

/// How many changes there are of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Rules and domains that are new.
    pub added: usize,
    /// Rules and domains that are gone.
    pub removed: usize,
    /// Rules and domains that are edited.
    pub changed: usize,
    /// Those of `changed` by which counters start anew.
    pub anew: usize,
}

impl Counts {
    /// Counts changes.
    #[must_use]
    pub fn of(changes: &[Change]) -> Self {
        let mut counts = Self::default();
        for change in changes {
            match change.what {
                What::Added(_) => counts.added += 1,
                What::Removed(_) => counts.removed += 1,
                What::Changed(_) => counts.changed += 1,
            }
            counts.anew += usize::from(change.is_anew());
        }
        counts
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { added, removed, changed, anew } = self;
        write!(f, "{added} added, {removed} removed, {changed} changed, {anew} start counters anew")
    }
}

/// What is different in `new`, by domain and path. Nothing if both decide and report all requests alike.
#[must_use]
pub fn diff(old: &RuleSet, new: &RuleSet) -> Vec<Change> {
    let names: BTreeSet<&str> = old.domains().chain(new.domains()).map(|it| &*it.name).collect();
    let mut changes = Vec::new();
    for name in names {
        let (old, new) = (old.domain(name), new.domain(name));
        let mut walk = Walk { domain: name, old, new, changes: &mut changes };
        walk.domain();
        walk.level("", old.map(|it| &it.root), new.map(|it| &it.root));
    }
    changes
}

/// Walks both trees of a domain side by side.
struct Walk<'r, 'c> {
    domain: &'r str,
    old: Option<&'r Domain>,
    new: Option<&'r Domain>,
    changes: &'c mut Vec<Change>,
}

impl<'r> Walk<'r, '_> {
    fn push(&mut self, path: &str, what: What) {
        self.changes.push(Change { domain: self.domain.into(), path: path.into(), what });
    }

    fn changed(&mut self, path: &str, edits: Vec<Edit>) {
        if !edits.is_empty() {
            self.push(path, What::Changed(edits));
        }
    }

    fn domain(&mut self) {
        let rules = |domain: &Domain| format!("a domain of {} rules", domain.rules.len());
        match (self.old, self.new) {
            (None, Some(new)) => self.push("", What::Added(rules(new))),
            (Some(old), None) => self.push("", What::Removed(rules(old))),
            (Some(old), Some(new)) => self.changed("", edits::of_domain(old, new)),
            (None, None) => {}
        }
    }

    fn level(&mut self, path: &str, old: Option<&'r Level>, new: Option<&'r Level>) {
        let keys = |level: Option<&'r Level>| level.into_iter().flat_map(|level| level.keys.keys());
        let all: BTreeSet<&[u8]> = keys(old).chain(keys(new)).map(|key| &**key).collect();
        for key in all {
            let of_key = |level: Option<&'r Level>| level.and_then(|level| level.keys.get(key));
            self.values(path, key, of_key(old), of_key(new));
        }
    }

    /// The nodes of one key.
    fn values(
        &mut self,
        above: &str,
        key: &[u8],
        old: Option<&'r Values>,
        new: Option<&'r Values>,
    ) {
        let of_key = join(above, key, None);
        if let Some(edit) = old.zip(new).and_then(|(old, new)| order(old, new)) {
            self.changed(&of_key, vec![edit]);
        }
        let values = |values: Option<&'r Values>| {
            values.into_iter().flat_map(|values| {
                let any = values.any.map(|_| None);
                values.exact.keys().map(|value| Some(&**value)).chain(any)
            })
        };
        let all: BTreeSet<Option<&[u8]>> = values(old).chain(values(new)).collect();
        let alone = all.len() == 1;
        for value in all {
            let (old, new) =
                (old.and_then(|it| node(it, value)), new.and_then(|it| node(it, value)));
            self.node(&join(above, key, value), alone, old, new);
        }
    }

    /// One node; `alone` if no other has its key.
    fn node(&mut self, path: &str, alone: bool, old: Option<&'r Node>, new: Option<&'r Node>) {
        // A step on the way to others, which takes no request from its neighbours.
        let is_step = |node: &Node| alone && node.rule.is_none() && !node.below.keys.is_empty();
        match (old, new) {
            (None, Some(new)) if !is_step(new) => {
                let words = words(rule(self.new, new));
                self.push(path, What::Added(words));
            }
            (Some(old), None) if !is_step(old) => {
                let words = words(rule(self.old, old));
                self.push(path, What::Removed(words));
            }
            (Some(old), Some(new)) => {
                let mut edits = edits::of_rule(rule(self.old, old), rule(self.new, new));
                edits.extend(self.sharing(old, new));
                self.changed(path, edits);
            }
            _ => {}
        }
        self.level(path, old.map(|it| &it.below), new.map(|it| &it.below));
    }

    /// Whether values share a counter is in the counters' names.
    fn sharing(&self, old: &Node, new: &Node) -> Option<Edit> {
        let (from, to) = (old.shared.is_some(), new.shared.is_some());
        let anew = || counts(self.old, old) && counts(self.new, new);
        (from != to).then(|| Edit {
            key: "share_threshold".to_owned(),
            from: from.to_string(),
            to: to.to_string(),
            anew: anew(),
        })
    }
}

fn join(path: &str, key: &[u8], value: Option<&[u8]>) -> String {
    let text = String::from_utf8_lossy;
    let dot = if path.is_empty() { "" } else { "." };
    match value {
        Some(value) => format!("{path}{dot}{}={}", text(key), text(value)),
        None => format!("{path}{dot}{}", text(key)),
    }
}

fn node<'r>(values: &'r Values, value: Option<&[u8]>) -> Option<&'r Node> {
    let index = match value {
        Some(value) => values.exact.get(value),
        None => values.any.as_ref(),
    };
    values.nodes.get(*index?)
}

fn rule<'r>(domain: Option<&'r Domain>, node: &Node) -> Option<&'r Rule> {
    domain?.rules.get(node.rule?)
}

/// Whether any limit of the node, or below it, keeps a counter.
fn counts(domain: Option<&Domain>, node: &Node) -> bool {
    let here = rule(domain, node).is_some_and(|rule| matches!(rule.limits, Limits::Each(_)));
    let mut below = node.below.keys.values().flat_map(|values| &values.nodes);
    here || below.any(|node| counts(domain, node))
}

/// Whether patterns that are in both stand in another order: the first that fits is taken.
fn order(old: &Values, new: &Values) -> Option<Edit> {
    if old.patterns.is_empty() || new.patterns.is_empty() {
        return None;
    }
    let (mut from, mut to) = (patterns(old), patterns(new));
    if from == to {
        return None;
    }
    let [of_old, of_new] = [&from, &to].map(|texts| texts.iter().cloned().collect::<BTreeSet<_>>());
    from.retain(|text| of_new.contains(text));
    to.retain(|text| of_old.contains(text));
    let at = from.iter().zip(&to).position(|(from, to)| from != to)?;
    let shown = |texts: &[String]| {
        let some: Vec<_> = texts.iter().skip(at).take(PATTERNS_SHOWN).cloned().collect();
        let more = if texts.len() > at + PATTERNS_SHOWN { ", ..." } else { "" };
        format!("{}{more}", some.join(", "))
    };
    let key = "order of patterns".to_owned();
    Some(Edit { key, from: shown(&from), to: shown(&to), anew: false })
}

/// The patterns of a key as they are written, in the order in which they are tried.
fn patterns(values: &Values) -> Vec<String> {
    let written: HashMap<usize, &[u8]> =
        values.exact.iter().map(|(value, node)| (*node, &**value)).collect();
    let text = |node| String::from_utf8_lossy(written.get(node).copied().unwrap_or_default());
    values.patterns.iter().map(|(_, node)| text(node).into_owned()).collect()
}

/// What a node enforces.
fn words(rule: Option<&Rule>) -> String {
    let Some(rule) = rule else { return "no limit".to_owned() };
    let modes = [(", shadow_mode", rule.shadow_mode), (", quota_mode", rule.quota_mode)];
    let modes = modes.into_iter().filter(|(_, is_set)| *is_set).map(|(mode, _)| mode);
    edits::limits_in_words(&rule.limits) + &modes.collect::<String>()
}
