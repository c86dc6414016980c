//! The way of a descriptor through the rules, with all that was passed by.
//!
//! The matcher finds; this tells why. What is taken at each level is what the matcher takes there, so the two
//! cannot differ.

use std::cmp::Reverse;

use super::{
    Place,
    matcher::{Domain, Level, Node, Pattern, Search, Values},
};
use crate::{Rule, request::Entry};

/// The most nodes of one level that are told about.
pub const CANDIDATES_MAX: usize = 10;

/// The way of a descriptor.
#[derive(Debug)]
pub struct Walk<'r> {
    /// One for each entry that was looked up.
    pub levels: Vec<Looked<'r>>,
    /// Where it ended.
    pub end: WalkEnd<'r>,
}

/// One level of the tree, as one entry saw it.
#[derive(Debug)]
pub struct Looked<'r> {
    /// At most [`CANDIDATES_MAX`] nodes, the nearest to the entry first.
    pub candidates: Vec<Candidate<'r>>,
    /// How many more there are.
    pub left_out: usize,
}

/// A node that an entry could have gone to.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'r> {
    /// Its key.
    pub key: &'r [u8],
    /// Its value, or a pattern; `None` takes every value.
    pub value: Option<&'r [u8]>,
    /// Where it stands.
    pub place: &'r Place,
    /// Whether it was taken, and why not.
    pub fit: Fit,
}

/// Whether a node took an entry. In the order of nearness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fit {
    /// It did.
    Taken,
    /// It fits, but the node of exactly this value goes before.
    ExactFirst,
    /// It fits, but a pattern before it fits too.
    PatternFirst,
    /// It is of the key, and its pattern does not fit.
    PatternDoesNotFit,
    /// It is of the key, and of another value.
    OtherValue,
    /// It is of another key.
    OtherKey,
}

/// Where a walk ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WalkEnd<'r> {
    /// At once: there are no entries.
    NoEntries,
    /// At a level of which no node takes the entry: the last one looked at.
    NoNode,
    /// At a node with nothing below, though entries are left.
    TooDeep,
    /// With the last entry, at a node that has no limit but nodes below.
    TooShallow,
    /// With the last entry, at a node that has neither limit nor nodes below.
    NoLimit,
    /// With the last entry, at a rule.
    Rule(&'r Rule),
}

impl Domain {
    /// The way of a descriptor of these entries. Looks at every node of each level it comes to, so it is for
    /// explaining, not for deciding.
    #[must_use]
    pub fn walk<'r>(&'r self, entries: &[Entry<'_>]) -> Walk<'r> {
        let mut levels = Vec::new();
        let mut level = &self.root;
        let mut last = None;
        let mut search = Search::new();
        for entry in entries {
            if last.is_some() && level.keys.is_empty() {
                return Walk { levels, end: WalkEnd::TooDeep };
            }
            let taken = level.find(entry, &mut search);
            levels.push(level.look(entry, taken));
            let Some(node) = taken else { return Walk { levels, end: WalkEnd::NoNode } };
            level = &node.below;
            last = Some(node);
        }
        let end = match last {
            None => WalkEnd::NoEntries,
            Some(node) => match node.rule.and_then(|index| self.rules.get(index)) {
                Some(rule) => WalkEnd::Rule(rule),
                None if node.below.keys.is_empty() => WalkEnd::NoLimit,
                None => WalkEnd::TooShallow,
            },
        };
        Walk { levels, end }
    }
}

impl Level {
    /// All nodes as the entry sees them, of which the matcher took one, or none. Keeps no more of them than it
    /// tells about, however many there are.
    fn look<'r>(&'r self, entry: &Entry<'_>, taken: Option<&Node>) -> Looked<'r> {
        let mut nearest = Nearest::default();
        for (key, values) in &self.keys {
            let of_key = **key == *entry.key;
            for (node, value, pattern) in values.all() {
                let fit = match (pattern, value) {
                    _ if !of_key => Fit::OtherKey,
                    _ if taken.is_some_and(|taken| std::ptr::eq(taken, node)) => Fit::Taken,
                    (Some(pattern), _) if !pattern.fits(entry.value) => Fit::PatternDoesNotFit,
                    (None, Some(_)) => Fit::OtherValue,
                    _ if values.exact.contains_key(entry.value) => Fit::ExactFirst,
                    _ => Fit::PatternFirst,
                };
                let near = match fit {
                    Fit::OtherKey => nearness(key, entry.key),
                    Fit::OtherValue => nearness(value.unwrap_or_default(), entry.value),
                    _ => Reverse((false, 0)),
                };
                nearest.add(near, Candidate { key, value, place: &node.place, fit });
            }
        }
        nearest.looked()
    }
}

/// What candidates are ordered by: fit, nearness, place in the files.
type Order<'r> = (Fit, Nearness, (&'r str, usize, usize));

/// The nearest of all candidates that were added.
#[derive(Default)]
struct Nearest<'r> {
    /// At most [`CANDIDATES_MAX`], in order.
    kept: Vec<(Order<'r>, Candidate<'r>)>,
    added: usize,
}

impl<'r> Nearest<'r> {
    fn add(&mut self, near: Nearness, candidate: Candidate<'r>) {
        self.added += 1;
        let Place { file, line, column, .. } = candidate.place;
        let order = (candidate.fit, near, (&**file, *line, *column));
        let position = self.kept.partition_point(|(kept, _)| *kept <= order);
        if position < CANDIDATES_MAX {
            self.kept.truncate(CANDIDATES_MAX - 1);
            self.kept.insert(position, (order, candidate));
        }
    }

    fn looked(self) -> Looked<'r> {
        let left_out = self.added.saturating_sub(self.kept.len());
        let candidates = self.kept.into_iter().map(|(_, candidate)| candidate).collect();
        Looked { candidates, left_out }
    }
}

/// Whether two texts differ but for case, and how much they begin alike. More alike comes first.
type Nearness = Reverse<(bool, usize)>;

/// How alike two texts are: but for case, else by how much they begin alike. More alike comes first.
fn nearness(one: &[u8], other: &[u8]) -> Nearness {
    let alike = one.iter().zip(other).take_while(|(a, b)| a.eq_ignore_ascii_case(b)).count();
    Reverse((one.eq_ignore_ascii_case(other), alike))
}

impl Values {
    /// Every node with its value and its pattern, if it has them.
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
