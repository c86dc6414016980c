//! Finds the rule that a descriptor matches.
//!
//! At each level an entry matches, in this order: the node of its exact value, the first node in file
//! order whose pattern matches, the node of its key alone. There is no backtracking: a branch without
//! a match below matches nothing. Only the node of the last entry counts.
//!
//! Nodes are found by key and then by value, both borrowed from the request; nothing is joined, so `a_b`
//! cannot be taken for `a` with the value `b`.

use std::{collections::HashMap, fmt, ptr};

use foldhash::fast::RandomState;
use indexmap::IndexMap;

use super::{CompileWarning, Findings, SourceLocation};
use crate::{Algorithm, Counting, OnFailure, Rule, key::PART_MAX, request::Entry};

type Map<T> = HashMap<Box<[u8]>, T, RandomState>;

/// All rules, compiled. Immutable.
#[derive(Debug, Default)]
pub struct RuleSet {
    pub(super) domains: Vec<Domain>,
    pub(super) by_name: IndexMap<Box<str>, usize, RandomState>,
    pub(super) warnings: Findings<CompileWarning>,
    /// The most patterns of one key and level with a part that is searched for anywhere in a value.
    pub(super) searches_max: usize,
    /// Modes of all rules.
    pub modes: Modes,
}

/// Modes of all rules, in addition to the modes of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Modes {
    /// Whether all rules are in shadow mode: statuses report what they would do, and every request passes.
    pub shadow_mode: bool,
    /// Whether every rule is a quota rule. A descriptor without a rule then counts as a quota descriptor below its limit.
    pub quota_mode: bool,
}

impl RuleSet {
    /// The domain of that name.
    #[must_use]
    pub fn domain(&self, name: &str) -> Option<&Domain> {
        self.domains.get(*self.by_name.get(name)?)
    }

    /// Every domain, in the order of the files.
    pub fn domains(&self) -> impl Iterator<Item = &Domain> {
        self.domains.iter()
    }

    /// Every rule with its domain, in the order of the files; the position is the rule's id.
    pub fn rules(&self) -> impl Iterator<Item = (&Domain, &Rule)> {
        self.domains.iter().flat_map(|domain| domain.rules.iter().map(move |rule| (domain, rule)))
    }

    /// The most searches of one value at a level: the patterns there with a part between two `*`.
    #[must_use]
    pub const fn searches_max(&self) -> usize {
        self.searches_max
    }

    /// Warnings: valid but probably unintended.
    #[must_use]
    pub const fn warnings(&self) -> &Findings<CompileWarning> {
        &self.warnings
    }
}

/// Defaults of a domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Defaults {
    /// Algorithm of limits.
    pub algorithm: Algorithm,
    /// Counting of rules.
    pub counting: Counting,
    /// Failure policy of rules.
    pub on_failure: OnFailure,
}

/// The rules of one domain.
#[derive(Debug)]
pub struct Domain {
    /// The name.
    pub name: Box<str>,
    /// Key of the entry whose value is the tenant.
    pub tenant: Option<Box<[u8]>>,
    /// Defaults of its rules.
    pub defaults: Defaults,
    /// Whether any limit replaces others.
    pub(crate) replaces: bool,
    pub(super) rules: Vec<Rule>,
    pub(super) root: Level,
}

/// The match of a descriptor.
#[derive(Debug)]
pub struct Match<'r> {
    /// The rule at the node of the last entry.
    pub rule: Option<&'r Rule>,
    /// By position, the pattern that stands in for the entry's value in the counter's key. Shorter than
    /// the entries where nothing more is shared.
    pub shared: Vec<Option<&'r [u8]>>,
}

impl<'r> Match<'r> {
    #[cold]
    fn share(&mut self, position: usize, pattern: &'r [u8]) {
        self.shared.resize(position, None);
        self.shared.push(Some(pattern));
    }
}

impl Domain {
    /// Whether the domain has no rule.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The rule that a descriptor of these entries matches, alone in its request.
    #[must_use]
    pub fn find<'r>(&'r self, entries: &[Entry<'_>]) -> Match<'r> {
        self.find_within(entries, &mut SearchBudget::new())
    }

    /// The rule that a descriptor of these entries matches. `search` belongs to the request.
    pub(crate) fn find_within<'v, 'r>(
        &'r self,
        entries: &[Entry<'v>],
        search: &mut SearchBudget<'v, 'r>,
    ) -> Match<'r> {
        let mut found = Match { rule: None, shared: Vec::new() };
        let mut level = &self.root;
        let mut rule = None;
        for (position, entry) in entries.iter().enumerate() {
            let Some(node) = level.find(entry, search) else { return found };
            if let Some(pattern) = node.shared.as_deref() {
                found.share(position, pattern);
            }
            rule = node.rule;
            level = &node.below;
        }
        found.rule = rule.and_then(|index| self.rules.get(index));
        found
    }
}

/// The nodes below one node, by key.
#[derive(Debug, Default)]
pub(super) struct Level {
    /// For a single key, which most levels have, nothing is hashed.
    pub(super) keys: IndexMap<Box<[u8]>, Values, RandomState>,
}

/// The nodes of one key.
#[derive(Debug, Default)]
pub(super) struct Values {
    /// Also holds patterns under their literal text: a value that equals one matches it before any pattern.
    pub(super) exact: Map<usize>,
    /// In file order.
    pub(super) patterns: Vec<(Pattern, usize)>,
    /// Matches every value.
    pub(super) any: Option<usize>,
    pub(super) nodes: Vec<Node>,
}

/// One node of the tree.
#[derive(Debug)]
pub(super) struct Node {
    /// Location in the limits files.
    pub(super) location: SourceLocation,
    /// Position among the domain's rules.
    pub(super) rule: Option<usize>,
    /// The pattern that stands in for the entry's value in the counter's key.
    pub(super) shared: Option<Box<[u8]>>,
    pub(super) below: Level,
}

impl Level {
    pub(super) fn find<'v, 'r>(
        &'r self,
        entry: &Entry<'v>,
        search: &mut SearchBudget<'v, 'r>,
    ) -> Option<&'r Node> {
        let values = self.keys.get(entry.key)?;
        let exact = values.exact.get(entry.value).copied();
        let node = exact.or_else(|| values.pattern(entry.value, search)).or(values.any)?;
        values.nodes.get(node)
    }
}

impl Values {
    /// The node of the first pattern that matches the value.
    #[inline]
    fn pattern<'v, 'r>(
        &'r self,
        value: &'v [u8],
        search: &mut SearchBudget<'v, 'r>,
    ) -> Option<usize> {
        if self.patterns.is_empty() {
            return None;
        }
        self.pattern_of_long(value, search)
    }

    /// The same for keys with patterns. A separate function, because exact matching is instruction-counted.
    #[inline(never)]
    fn pattern_of_long<'v, 'r>(
        &'r self,
        value: &'v [u8],
        search: &mut SearchBudget<'v, 'r>,
    ) -> Option<usize> {
        if value.len() <= PART_MAX {
            return self.first_pattern(value, search);
        }
        if let Some(known) = search.known(self, value) {
            return known;
        }
        let found = self.first_pattern(value, search);
        search.remember(self, value, found);
        found
    }

    fn first_pattern(&self, value: &[u8], search: &mut SearchBudget<'_, '_>) -> Option<usize> {
        let matches = |(pattern, _): &&(Pattern, usize)| {
            pattern.between(value).is_some_and(|between| {
                pattern.middle.is_empty()
                    || (search.allows(between.len()) && pattern.has_middle(between))
            })
        };
        self.patterns.iter().find(matches).map(|(_, node)| *node)
    }

    /// The most searches of a value here.
    pub(super) fn searches(&self) -> usize {
        self.patterns.iter().filter(|(pattern, _)| !pattern.middle.is_empty()).count()
    }
}

/// The most bytes of values, pattern by pattern, that are searched for one request. Chosen so that it is
/// decided before Envoy's timeout, after which Envoy lets it pass.
pub const SEARCHED_MAX: usize = 16 << 20;

/// The most search results that are cached.
const REMEMBERED: usize = 4;

/// The searches in the values of one request. Their sum is bounded, and a repeated long value is searched
/// once.
#[derive(Debug)]
pub(crate) struct SearchBudget<'v, 'r> {
    searched: usize,
    known: Vec<(&'r Values, &'v [u8], Option<usize>)>,
}

impl<'v, 'r> SearchBudget<'v, 'r> {
    pub(crate) const fn new() -> Self {
        Self { searched: 0, known: Vec::new() }
    }

    /// Whether more than [`SEARCHED_MAX`] bytes would have been searched. If so, the match is incomplete and must not be used.
    pub(crate) const fn is_exceeded(&self) -> bool {
        self.searched > SEARCHED_MAX
    }

    /// Whether this number of bytes may still be searched.
    const fn allows(&mut self, bytes: usize) -> bool {
        self.searched = self.searched.saturating_add(bytes);
        !self.is_exceeded()
    }

    fn known(&self, values: &Values, value: &[u8]) -> Option<Option<usize>> {
        let same = |(at, known, _): &&(&Values, &[u8], _)| ptr::eq(*at, values) && *known == value;
        self.known.iter().find(same).map(|(.., found)| *found)
    }

    fn remember(&mut self, values: &'r Values, value: &'v [u8], found: Option<usize>) {
        if self.known.len() == REMEMBERED {
            self.known.remove(0);
        }
        self.known.push((values, value, found));
    }
}

/// A text in which `*` matches any bytes, also none.
#[derive(Clone, Debug)]
pub(super) struct Pattern {
    head: Box<[u8]>,
    middle: Box<[Box<[u8]>]>,
    tail: Box<[u8]>,
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |part: &[u8]| String::from_utf8_lossy(part).into_owned();
        write!(f, "{}*", text(&self.head))?;
        for part in &self.middle {
            write!(f, "{}*", text(part))?;
        }
        f.write_str(&text(&self.tail))
    }
}

impl Pattern {
    /// The pattern of that text; `None` if it has no `*`.
    pub(super) fn new(text: &[u8]) -> Option<Self> {
        let mut parts = text.split(|&byte| byte == b'*').map(Box::from);
        let head = parts.next()?;
        let mut middle: Vec<Box<[u8]>> = parts.collect();
        let tail = middle.pop()?;
        middle.retain(|part| !part.is_empty());
        Some(Self { head, middle: middle.into(), tail })
    }

    /// Whether it matches every value, also the empty one.
    pub(super) fn matches_all(&self) -> bool {
        self.head.is_empty() && self.middle.is_empty() && self.tail.is_empty()
    }

    /// Whether the value begins and ends as the pattern does, without overlap, and has the middle parts
    /// in order between.
    pub(super) fn matches(&self, value: &[u8]) -> bool {
        self.between(value).is_some_and(|between| self.has_middle(between))
    }

    /// The part of the value between the pattern's beginning and end, if the value has both, without overlap.
    fn between<'v>(&self, value: &'v [u8]) -> Option<&'v [u8]> {
        value.strip_prefix(&*self.head)?.strip_suffix(&*self.tail)
    }

    /// Whether the middle parts are there in order. Taking each part where it first occurs leaves most room for the rest.
    fn has_middle(&self, mut rest: &[u8]) -> bool {
        for part in &self.middle {
            let Some(at) = memchr::memmem::find(rest, part) else { return false };
            rest = rest.get(at + part.len()..).unwrap_or_default();
        }
        true
    }
}
