//! Traces of matching: how a descriptor went through the tree of rules, with the nodes that did not match.
//!
//! The matched node of each level comes from the matcher itself, so that a trace cannot differ from a decision.

use std::cmp::Reverse;

use super::{
    SourceLocation,
    matcher::{Children, Domain, KeyNodes, Node, Pattern, SubstringSearchBudget},
};
use crate::{Rule, request::Entry};

/// The most nodes of one level that a trace lists.
pub const CANDIDATES_MAX: usize = 10;

/// Trace of matching one descriptor.
#[derive(Debug)]
pub struct MatchTrace<'r> {
    /// The levels, one for each entry that was looked up.
    pub levels: Vec<LevelTrace<'r>>,
    /// How matching ended.
    pub end: TraceEnd<'r>,
}

/// One level of the tree, compared with one entry.
#[derive(Debug)]
pub struct LevelTrace<'r> {
    /// At most [`CANDIDATES_MAX`] nodes, the most similar to the entry first.
    pub candidates: Vec<Candidate<'r>>,
    /// Number of nodes that are not listed.
    pub left_out: usize,
}

/// A node of a level that was compared with an entry.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'r> {
    /// Key of the node.
    pub key: &'r [u8],
    /// Value of the node, or a pattern; `None` matches every value.
    pub value: Option<&'r [u8]>,
    /// Location in the limits files.
    pub location: &'r SourceLocation,
    /// Whether the node matched the entry, or why not.
    pub outcome: CandidateOutcome,
}

/// Whether a node matched an entry, or why not. Ordered by similarity of the node to the entry, most similar first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CandidateOutcome {
    /// The node matched.
    Matched,
    /// A node with exactly this value takes precedence.
    ExactFirst,
    /// Another pattern matches first: an earlier one or, for a node without a value, any pattern of the key.
    PatternFirst,
    /// The key is equal, and the pattern does not match the value.
    PatternMismatch,
    /// The key is equal, and the value differs.
    OtherValue,
    /// The key differs.
    OtherKey,
}

/// How the matching of a descriptor ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TraceEnd<'r> {
    /// The descriptor has no entries.
    NoEntries,
    /// At the last level of the trace, no node matches the descriptor's entry.
    NoMatch,
    /// The descriptor has more entries than the tree has levels here.
    TooDeep,
    /// The last entry's node has children and no limit.
    TooShallow,
    /// The last entry's node has neither children nor a limit.
    NoLimit,
    /// The last entry's node has a rule.
    Rule(&'r Rule),
}

impl Domain {
    /// Traces the matching of a descriptor with these entries. Compares every node of each level, so it is meant for
    /// explanations and not for decisions.
    #[must_use]
    pub fn trace<'r>(&'r self, entries: &[Entry<'_>]) -> MatchTrace<'r> {
        let mut levels = Vec::new();
        let mut children = &self.root;
        let mut last = None;
        let mut search = SubstringSearchBudget::new();
        for entry in entries {
            if last.is_some() && children.by_key.is_empty() {
                return MatchTrace { levels, end: TraceEnd::TooDeep };
            }
            let matched = children.find(entry, &mut search);
            levels.push(children.trace(entry, matched));
            let Some(node) = matched else { return MatchTrace { levels, end: TraceEnd::NoMatch } };
            children = &node.children;
            last = Some(node);
        }
        let end = match last {
            None => TraceEnd::NoEntries,
            Some(node) => match node.rule.and_then(|index| self.rules.get(index)) {
                Some(rule) => TraceEnd::Rule(rule),
                None if node.children.by_key.is_empty() => TraceEnd::NoLimit,
                None => TraceEnd::TooShallow,
            },
        };
        MatchTrace { levels, end }
    }
}

impl Children {
    /// Compares all children with the entry. `matched` is the node that the matcher has found, if any.
    fn trace<'r>(&'r self, entry: &Entry<'_>, matched: Option<&Node>) -> LevelTrace<'r> {
        let mut nearest = NearestCandidates::default();
        for (key, key_nodes) in &self.by_key {
            let of_key = **key == *entry.key;
            for (node, value, pattern) in key_nodes.nodes_with_values() {
                let outcome = match (pattern, value) {
                    _ if !of_key => CandidateOutcome::OtherKey,
                    _ if matched.is_some_and(|it| std::ptr::eq(it, node)) => {
                        CandidateOutcome::Matched
                    }
                    (Some(pattern), _) if !pattern.matches(entry.value) => {
                        CandidateOutcome::PatternMismatch
                    }
                    (None, Some(_)) => CandidateOutcome::OtherValue,
                    _ if key_nodes.exact.contains_key(entry.value) => CandidateOutcome::ExactFirst,
                    _ => CandidateOutcome::PatternFirst,
                };
                let similarity = match outcome {
                    CandidateOutcome::OtherKey => similarity(key, entry.key),
                    CandidateOutcome::OtherValue => {
                        similarity(value.unwrap_or_default(), entry.value)
                    }
                    _ => Reverse((false, 0)),
                };
                nearest
                    .add(similarity, Candidate { key, value, location: &node.location, outcome });
            }
        }
        nearest.level_trace()
    }
}

/// Order of candidates: outcome, similarity, location.
type Order<'r> = (CandidateOutcome, Similarity, (&'r str, usize, usize));

/// Collects candidates, and retains only the most similar.
#[derive(Default)]
struct NearestCandidates<'r> {
    /// At most [`CANDIDATES_MAX`], in order.
    retained: Vec<(Order<'r>, Candidate<'r>)>,
    /// Number of all candidates that were added.
    added: usize,
}

impl<'r> NearestCandidates<'r> {
    fn add(&mut self, similarity: Similarity, candidate: Candidate<'r>) {
        self.added += 1;
        let SourceLocation { file, line, column, .. } = candidate.location;
        let order = (candidate.outcome, similarity, (&**file, *line, *column));
        let position = self.retained.partition_point(|(retained, _)| *retained <= order);
        if position < CANDIDATES_MAX {
            self.retained.truncate(CANDIDATES_MAX - 1);
            self.retained.insert(position, (order, candidate));
        }
    }

    fn level_trace(self) -> LevelTrace<'r> {
        let left_out = self.added.saturating_sub(self.retained.len());
        let candidates = self.retained.into_iter().map(|(_, candidate)| candidate).collect();
        LevelTrace { candidates, left_out }
    }
}

/// Whether two texts are equal apart from case, and the length of their common prefix. More similar comes first.
type Similarity = Reverse<(bool, usize)>;

/// Compares two texts, apart from case.
fn similarity(one: &[u8], other: &[u8]) -> Similarity {
    let common = one.iter().zip(other).take_while(|(a, b)| a.eq_ignore_ascii_case(b)).count();
    Reverse((one.eq_ignore_ascii_case(other), common))
}

impl KeyNodes {
    /// Every node with its value and pattern, if any.
    fn nodes_with_values(&self) -> impl Iterator<Item = (&Node, Option<&[u8]>, Option<&Pattern>)> {
        let mut values = vec![None; self.nodes.len()];
        for (value, &index) in &self.exact {
            if let Some(of_node) = values.get_mut(index) {
                *of_node = Some(&**value);
            }
        }
        let mut patterns = vec![None; self.nodes.len()];
        for (pattern, index) in &self.patterns {
            if let Some(of_node) = patterns.get_mut(*index) {
                *of_node = Some(pattern);
            }
        }
        self.nodes
            .iter()
            .zip(values)
            .zip(patterns)
            .map(|((node, value), pattern)| (node, value, pattern))
    }
}
