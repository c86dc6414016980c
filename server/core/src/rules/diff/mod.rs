//! Differences of two rule sets.
//!
//! Rule sets are compared node by node. A node is identified by its domain and its path of keys and values. Its
//! location in the files does not matter, but the order of patterns does.

mod edits;

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
};

pub use edits::Edit;

use super::{
    RuleSet,
    matcher::{Children, Domain, KeyNodes, Node},
};
use crate::{Rule, rule::RuleLimits};

/// The most patterns of one key that are listed when their order changes.
const PATTERNS_SHOWN: usize = 8;

/// One difference between two rule sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The domain.
    pub domain: Box<str>,
    /// The path of keys and values in the domain; empty for the domain itself.
    pub path: Box<str>,
    /// The kind of difference.
    pub kind: ChangeKind,
}

/// Kinds of differences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// The node or domain was added, with limits that the text describes.
    Added(String),
    /// The node or domain was removed, with limits that the text describes.
    Removed(String),
    /// Keys of the node or domain were changed. Never empty.
    Changed(Vec<Edit>),
}

impl Change {
    /// The changed keys; empty if the node or domain was added or removed.
    #[must_use]
    pub fn edits(&self) -> &[Edit] {
        match &self.kind {
            ChangeKind::Changed(edits) => edits,
            ChangeKind::Added(_) | ChangeKind::Removed(_) => &[],
        }
    }

    /// Whether the change resets counters, because they get other keys. Adding or removing a rule resets no counter.
    #[must_use]
    pub fn resets_counters(&self) -> bool {
        self.edits().iter().any(|edit| edit.resets_counters)
    }
}

impl fmt::Display for Change {
    /// One line, or a line for each changed key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, path, kind } = self;
        let colon = if path.is_empty() { "" } else { ": " };
        match kind {
            ChangeKind::Added(limits) => write!(f, "added {domain}{colon}{path}: {limits}"),
            ChangeKind::Removed(limits) => write!(f, "removed {domain}{colon}{path}: {limits}"),
            ChangeKind::Changed(edits) => {
                for (index, edit) in edits.iter().enumerate() {
                    let separator = if index == 0 { "" } else { "\n" };
                    write!(f, "{separator}changed {domain}{colon}{path}: {edit}")?;
                }
                Ok(())
            }
        }
    }
}

/// Number of changes of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeCounts {
    /// Added rules and domains.
    pub added: usize,
    /// Removed rules and domains.
    pub removed: usize,
    /// Changed rules and domains.
    pub changed: usize,
    /// How many of `changed` reset counters.
    pub resetting: usize,
}

impl ChangeCounts {
    /// Counts changes by kind.
    #[must_use]
    pub fn of(changes: &[Change]) -> Self {
        let mut counts = Self::default();
        for change in changes {
            match change.kind {
                ChangeKind::Added(_) => counts.added += 1,
                ChangeKind::Removed(_) => counts.removed += 1,
                ChangeKind::Changed(_) => counts.changed += 1,
            }
            counts.resetting += usize::from(change.resets_counters());
        }
        counts
    }
}

impl fmt::Display for ChangeCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { added, removed, changed, resetting } = self;
        write!(
            f,
            "{added} added, {removed} removed, {changed} changed, {resetting} restart counters"
        )
    }
}

/// The changes from `old` to `new`, sorted by domain and path. Empty if both decide and report every request in the
/// same way.
#[must_use]
pub fn diff(old: &RuleSet, new: &RuleSet) -> Vec<Change> {
    let names: BTreeSet<&str> = old.domains().chain(new.domains()).map(|it| &*it.name).collect();
    let mut changes = Vec::new();
    for name in names {
        let (old, new) = (old.domain(name), new.domain(name));
        let mut comparison = Comparison { domain: name, old, new, changes: &mut changes };
        comparison.compare_settings();
        comparison.compare_children("", old.map(|it| &it.root), new.map(|it| &it.root));
    }
    changes
}

/// Compares the old and the new tree of one domain.
struct Comparison<'r, 'c> {
    domain: &'r str,
    old: Option<&'r Domain>,
    new: Option<&'r Domain>,
    changes: &'c mut Vec<Change>,
}

impl<'r> Comparison<'r, '_> {
    fn push(&mut self, path: &str, kind: ChangeKind) {
        self.changes.push(Change { domain: self.domain.into(), path: path.into(), kind });
    }

    fn push_edits(&mut self, path: &str, edits: Vec<Edit>) {
        if !edits.is_empty() {
            self.push(path, ChangeKind::Changed(edits));
        }
    }

    fn compare_settings(&mut self) {
        let describe = |domain: &Domain| format!("a domain of {} rules", domain.rules.len());
        match (self.old, self.new) {
            (None, Some(new)) => self.push("", ChangeKind::Added(describe(new))),
            (Some(old), None) => self.push("", ChangeKind::Removed(describe(old))),
            (Some(old), Some(new)) => self.push_edits("", edits::domain_edits(old, new)),
            (None, None) => {}
        }
    }

    fn compare_children(
        &mut self,
        path: &str,
        old: Option<&'r Children>,
        new: Option<&'r Children>,
    ) {
        let keys =
            |children: Option<&'r Children>| children.into_iter().flat_map(|it| it.by_key.keys());
        let all: BTreeSet<&[u8]> = keys(old).chain(keys(new)).map(|key| &**key).collect();
        for key in all {
            let of_key =
                |children: Option<&'r Children>| children.and_then(|it| it.by_key.get(key));
            self.compare_key_nodes(path, key, of_key(old), of_key(new));
        }
    }

    /// Compares the nodes of one key.
    fn compare_key_nodes(
        &mut self,
        parent: &str,
        key: &[u8],
        old: Option<&'r KeyNodes>,
        new: Option<&'r KeyNodes>,
    ) {
        let of_key = join(parent, key, None);
        if let Some(edit) = old.zip(new).and_then(|(old, new)| pattern_order_edit(old, new)) {
            self.push_edits(&of_key, vec![edit]);
        }
        let values = |key_nodes: Option<&'r KeyNodes>| {
            key_nodes.into_iter().flat_map(|it| {
                let any = it.any.map(|_| None);
                it.exact.keys().map(|value| Some(&**value)).chain(any)
            })
        };
        let all: BTreeSet<Option<&[u8]>> = values(old).chain(values(new)).collect();
        let is_only = all.len() == 1;
        for value in all {
            let (old, new) = (
                old.and_then(|it| node_with_value(it, value)),
                new.and_then(|it| node_with_value(it, value)),
            );
            self.compare_node(&join(parent, key, value), is_only, old, new);
        }
    }

    /// Compares one node. `is_only`: whether no other node of its level has its key.
    fn compare_node(
        &mut self,
        path: &str,
        is_only: bool,
        old: Option<&'r Node>,
        new: Option<&'r Node>,
    ) {
        // Adding or removing a node that only leads to others is no change, unless its key has further nodes: then
        // requests may match another node than before.
        let only_leads =
            |node: &Node| is_only && node.rule.is_none() && !node.children.by_key.is_empty();
        match (old, new) {
            (None, Some(new)) if !only_leads(new) => {
                let limits = describe_rule(rule_of(self.new, new));
                self.push(path, ChangeKind::Added(limits));
            }
            (Some(old), None) if !only_leads(old) => {
                let limits = describe_rule(rule_of(self.old, old));
                self.push(path, ChangeKind::Removed(limits));
            }
            (Some(old), Some(new)) => {
                let mut edits = edits::rule_edits(rule_of(self.old, old), rule_of(self.new, new));
                edits.extend(self.share_threshold_edit(old, new));
                self.push_edits(path, edits);
            }
            _ => {}
        }
        self.compare_children(path, old.map(|it| &it.children), new.map(|it| &it.children));
    }

    /// The change of `share_threshold`, if any. It resets counters, because their keys have the pattern or the value.
    fn share_threshold_edit(&self, old: &Node, new: &Node) -> Option<Edit> {
        let (from, to) = (old.shared_pattern.is_some(), new.shared_pattern.is_some());
        let both_have_counters = || has_counters(self.old, old) && has_counters(self.new, new);
        (from != to).then(|| Edit {
            key: "share_threshold".to_owned(),
            from: from.to_string(),
            to: to.to_string(),
            resets_counters: both_have_counters(),
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

fn node_with_value<'r>(key_nodes: &'r KeyNodes, value: Option<&[u8]>) -> Option<&'r Node> {
    let index = match value {
        Some(value) => key_nodes.exact.get(value),
        None => key_nodes.any.as_ref(),
    };
    key_nodes.nodes.get(*index?)
}

fn rule_of<'r>(domain: Option<&'r Domain>, node: &Node) -> Option<&'r Rule> {
    domain?.rules.get(node.rule?)
}

/// Whether any limit of the node, or below it, has a counter.
fn has_counters(domain: Option<&Domain>, node: &Node) -> bool {
    let here =
        rule_of(domain, node).is_some_and(|rule| matches!(rule.limits, RuleLimits::Limited(_)));
    let mut below = node.children.by_key.values().flat_map(|it| &it.nodes);
    here || below.any(|node| has_counters(domain, node))
}

/// The change of the order of the patterns that both have, if any. Order matters, because the first that matches
/// applies.
fn pattern_order_edit(old: &KeyNodes, new: &KeyNodes) -> Option<Edit> {
    if old.patterns.is_empty() || new.patterns.is_empty() {
        return None;
    }
    let (mut from, mut to) = (patterns(old), patterns(new));
    if from == to {
        return None;
    }
    let [old_texts, new_texts] =
        [&from, &to].map(|texts| texts.iter().cloned().collect::<BTreeSet<_>>());
    from.retain(|text| new_texts.contains(text));
    to.retain(|text| old_texts.contains(text));
    let first = from.iter().zip(&to).position(|(from, to)| from != to)?;
    let describe = |texts: &[String]| {
        let shown: Vec<_> = texts.iter().skip(first).take(PATTERNS_SHOWN).cloned().collect();
        let more = if texts.len() > first + PATTERNS_SHOWN { ", ..." } else { "" };
        format!("{}{more}", shown.join(", "))
    };
    let key = "order of patterns".to_owned();
    Some(Edit { key, from: describe(&from), to: describe(&to), resets_counters: false })
}

/// The texts of the patterns of a key, in the order in which they are compared.
fn patterns(key_nodes: &KeyNodes) -> Vec<String> {
    let texts: HashMap<usize, &[u8]> =
        key_nodes.exact.iter().map(|(value, node)| (*node, &**value)).collect();
    let text = |node| String::from_utf8_lossy(texts.get(node).copied().unwrap_or_default());
    key_nodes.patterns.iter().map(|(_, node)| text(node).into_owned()).collect()
}

/// The limits and modes of a rule, as text.
fn describe_rule(rule: Option<&Rule>) -> String {
    let Some(rule) = rule else { return "no limit".to_owned() };
    let modes = [(", shadow_mode", rule.shadow_mode), (", quota_mode", rule.quota_mode)];
    let modes = modes.into_iter().filter(|(_, is_set)| *is_set).map(|(mode, _)| mode);
    edits::describe_limits(&rule.limits) + &modes.collect::<String>()
}
