//! The path of a descriptor through the rules, with the nodes that did not match.
//!
//! Explains the result of the matcher. The node of each level comes from the matcher itself, so the two
//! cannot differ.

use std::cmp::Reverse;

use super::{
    SourceLocation,
    matcher::{Domain, Level, Node, Pattern, SearchBudget, Values},
};
use crate::{Rule, request::Entry};

/// The most nodes of one level that are listed.
pub const CANDIDATES_MAX: usize = 10;

/// The path of a descriptor.
#[derive(Debug)]
pub struct MatchTrace<'r> {
    /// The levels, one for each entry that was looked up.
    pub levels: Vec<LevelTrace<'r>>,
    /// How the path ended.
    pub end: TraceEnd<'r>,
}

/// One level of the tree, compared with one entry.
#[derive(Debug)]
pub struct LevelTrace<'r> {
    /// At most [`CANDIDATES_MAX`] nodes, the most similar to the entry first.
    pub candidates: Vec<Candidate<'r>>,
    /// Number of further nodes.
    pub left_out: usize,
}

/// A node of a level.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'r> {
    /// Its key.
    pub key: &'r [u8],
    /// Its value, or a pattern; `None` matches every value.
    pub value: Option<&'r [u8]>,
    /// Location in the limits files.
    pub location: &'r SourceLocation,
    /// Whether it matched, and why not.
    pub fit: MatchOutcome,
}

/// Whether a node matched an entry, most similar first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MatchOutcome {
    /// The node matched.
    Taken,
    /// The node of exactly this value takes precedence.
    ExactFirst,
    /// An earlier pattern matches too.
    PatternFirst,
    /// The key is equal, and the pattern does not match.
    PatternDoesNotFit,
    /// The key is equal, and the value differs.
    OtherValue,
    /// The key differs.
    OtherKey,
}

/// How a path ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TraceEnd<'r> {
    /// The descriptor has no entries.
    NoEntries,
    /// No node of the last level matches the entry.
    NoMatch,
    /// Entries remain below a node without children.
    TooDeep,
    /// The last entry's node has children and no limit.
    TooShallow,
    /// The last entry's node has neither children nor a limit.
    NoLimit,
    /// The last entry's node has a rule.
    Rule(&'r Rule),
}

impl Domain {
    /// The path of a descriptor of these entries. Looks at every node of each level, so it is for
    /// explanations, not for decisions.
    #[must_use]
    pub fn trace<'r>(&'r self, entries: &[Entry<'_>]) -> MatchTrace<'r> {
        let mut levels = Vec::new();
        let mut level = &self.root;
        let mut last = None;
        let mut search = SearchBudget::new();
        for entry in entries {
            if last.is_some() && level.keys.is_empty() {
                return MatchTrace { levels, end: TraceEnd::TooDeep };
            }
            let taken = level.find(entry, &mut search);
            levels.push(level.trace(entry, taken));
            let Some(node) = taken else { return MatchTrace { levels, end: TraceEnd::NoMatch } };
            level = &node.below;
            last = Some(node);
        }
        let end = match last {
            None => TraceEnd::NoEntries,
            Some(node) => match node.rule.and_then(|index| self.rules.get(index)) {
                Some(rule) => TraceEnd::Rule(rule),
                None if node.below.keys.is_empty() => TraceEnd::NoLimit,
                None => TraceEnd::TooShallow,
            },
        };
        MatchTrace { levels, end }
    }
}

impl Level {
    /// Compares all nodes of a level with the entry. `taken` is the node that the matcher chose, if any. Keeps only
    /// the nodes that are listed.
    fn trace<'r>(&'r self, entry: &Entry<'_>, taken: Option<&Node>) -> LevelTrace<'r> {
        let mut nearest = NearestCandidates::default();
        for (key, values) in &self.keys {
            let of_key = **key == *entry.key;
            for (node, value, pattern) in values.all() {
                let outcome = match (pattern, value) {
                    _ if !of_key => MatchOutcome::OtherKey,
                    _ if taken.is_some_and(|taken| std::ptr::eq(taken, node)) => {
                        MatchOutcome::Taken
                    }
                    (Some(pattern), _) if !pattern.matches(entry.value) => {
                        MatchOutcome::PatternDoesNotFit
                    }
                    (None, Some(_)) => MatchOutcome::OtherValue,
                    _ if values.exact.contains_key(entry.value) => MatchOutcome::ExactFirst,
                    _ => MatchOutcome::PatternFirst,
                };
                let near = match outcome {
                    MatchOutcome::OtherKey => similarity(key, entry.key),
                    MatchOutcome::OtherValue => similarity(value.unwrap_or_default(), entry.value),
                    _ => Reverse((false, 0)),
                };
                nearest.add(near, Candidate { key, value, location: &node.location, fit: outcome });
            }
        }
        nearest.level_trace()
    }
}

/// Order of candidates: match, similarity, location.
type Order<'r> = (MatchOutcome, Similarity, (&'r str, usize, usize));

/// The most similar of all candidates that were added.
#[derive(Default)]
struct NearestCandidates<'r> {
    /// At most [`CANDIDATES_MAX`], in order.
    kept: Vec<(Order<'r>, Candidate<'r>)>,
    added: usize,
}

impl<'r> NearestCandidates<'r> {
    fn add(&mut self, near: Similarity, candidate: Candidate<'r>) {
        self.added += 1;
        let SourceLocation { file, line, column, .. } = candidate.location;
        let order = (candidate.fit, near, (&**file, *line, *column));
        let position = self.kept.partition_point(|(kept, _)| *kept <= order);
        if position < CANDIDATES_MAX {
            self.kept.truncate(CANDIDATES_MAX - 1);
            self.kept.insert(position, (order, candidate));
        }
    }

    fn level_trace(self) -> LevelTrace<'r> {
        let omitted = self.added.saturating_sub(self.kept.len());
        let candidates = self.kept.into_iter().map(|(_, candidate)| candidate).collect();
        LevelTrace { candidates, left_out: omitted }
    }
}

/// Whether two texts differ apart from case, and the length of their common prefix. More similar comes first.
type Similarity = Reverse<(bool, usize)>;

/// Similarity of two texts: equal apart from case, else by common prefix. More similar comes first.
fn similarity(one: &[u8], other: &[u8]) -> Similarity {
    let alike = one.iter().zip(other).take_while(|(a, b)| a.eq_ignore_ascii_case(b)).count();
    Reverse((one.eq_ignore_ascii_case(other), alike))
}

impl Values {
    /// Every node with its value and pattern, if any.
    fn all(&self) -> impl Iterator<Item = (&Node, Option<&[u8]>, Option<&Pattern>)> {
        let mut values = vec![None; self.nodes.len()];
        for (value, &index) in &self.exact {
            if let Some(slot) = values.get_mut(index) {
                *slot = Some(&**value);
            }
        }
        let mut patterns = vec![None; self.nodes.len()];
        for (pattern, index) in &self.patterns {
            if let Some(slot) = patterns.get_mut(*index) {
                *slot = Some(pattern);
            }
        }
        self.nodes
            .iter()
            .zip(values)
            .zip(patterns)
            .map(|((node, value), pattern)| (node, value, pattern))
    }
}
