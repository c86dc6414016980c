//! Matching: finds the rule that applies to a descriptor.
//!
//! At each level an entry matches one node of its key: the node with exactly its value; else the first node in the
//! order of the file whose pattern matches; else the node without a value. There is no backtracking: if no node below
//! the matched one matches the next entry, the descriptor matches no rule. The rule that applies is the one of the last
//! entry's node.
//!
//! Nodes are looked up by key and then by value. Unlike envoyproxy/ratelimit, nothing joins key and value, so that the
//! key `a_b` cannot be confused with the key `a` and the value `b`.

use std::{collections::HashMap, fmt, ptr, sync::Arc};

use foldhash::fast::RandomState;
use indexmap::IndexMap;

use super::{Findings, LocatedWarning, SourceLocation};
use crate::{
    Algorithm, Counting, OnFailure, ResponseBody, Rule, key::KEY_PART_BYTES_MAX, request::Entry,
};

type Map<T> = HashMap<Box<[u8]>, T, RandomState>;

/// All rules of all limits files, compiled and immutable.
#[derive(Debug, Default)]
pub struct RuleSet {
    pub(super) domains: Vec<Domain>,
    pub(super) by_name: IndexMap<Box<str>, usize, RandomState>,
    pub(super) warnings: Findings<LocatedWarning>,
    /// Maximum number of patterns of one key and level that search the value: those with text between two `*`.
    pub(super) substring_patterns_max: usize,
    /// Modes of all rules.
    pub modes: Modes,
}

/// Modes of all rules, in addition to the modes of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Modes {
    /// Whether all rules are in shadow mode: statuses report what they would do, and every request passes.
    pub shadow_mode: bool,
    /// Whether every rule is a quota rule. A descriptor without a rule then counts as a quota descriptor below its
    /// limit.
    pub quota_mode: bool,
}

impl RuleSet {
    /// The domain with this name, if it is configured.
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

    /// Maximum number of patterns of one key and level that search the value: those with text between two `*`.
    #[must_use]
    pub const fn substring_patterns_max(&self) -> usize {
        self.substring_patterns_max
    }

    /// Warnings about what is valid but probably unintended.
    #[must_use]
    pub const fn warnings(&self) -> &Findings<LocatedWarning> {
        &self.warnings
    }
}

/// Defaults of a domain, for its rules and their limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Defaults {
    /// Algorithm of limits without one.
    pub algorithm: Algorithm,
    /// Counting of rules without one.
    pub counting: Counting,
    /// Failure policy of rules without one.
    pub on_failure: OnFailure,
}

/// The rules of one domain.
#[derive(Debug)]
pub struct Domain {
    /// The name.
    pub name: Box<str>,
    /// Key of the entry whose value is the tenant, if the domain has tenants.
    pub tenant: Option<Box<[u8]>>,
    /// Defaults of its rules.
    pub defaults: Defaults,
    /// Body of responses to refused requests for which no rule of the domain matched.
    pub response_body: Option<Arc<ResponseBody>>,
    /// Whether the domain or any of its rules has a response body.
    pub has_response_bodies: bool,
    /// Whether any limit of the domain replaces others.
    pub(crate) has_replacing_limits: bool,
    pub(super) rules: Vec<Rule>,
    pub(super) root: Children,
}

/// Result of matching a descriptor.
#[derive(Debug)]
pub struct Match<'r> {
    /// The rule of the last entry's node, if any.
    pub rule: Option<&'r Rule>,
    /// By position of the entry, the pattern that replaces its value in counter keys, because all values that match it
    /// share one counter. Ends with the last such pattern, and so may be shorter than the entries.
    pub shared_patterns: Vec<Option<&'r [u8]>>,
}

impl<'r> Match<'r> {
    #[cold]
    fn set_shared_pattern(&mut self, position: usize, pattern: &'r [u8]) {
        self.shared_patterns.resize(position, None);
        self.shared_patterns.push(Some(pattern));
    }
}

impl Domain {
    /// Whether the domain has no rule.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Matches a descriptor with these entries, as if it were the only one of its request.
    #[must_use]
    pub fn find<'r>(&'r self, entries: &[Entry<'_>]) -> Match<'r> {
        self.find_with_budget(entries, &mut SubstringSearchBudget::new())
    }

    /// Matches a descriptor with these entries. `search` is the budget of the whole request.
    pub(crate) fn find_with_budget<'v, 'r>(
        &'r self,
        entries: &[Entry<'v>],
        search: &mut SubstringSearchBudget<'v, 'r>,
    ) -> Match<'r> {
        let mut found = Match { rule: None, shared_patterns: Vec::new() };
        let mut children = &self.root;
        let mut rule = None;
        for (position, entry) in entries.iter().enumerate() {
            let Some(node) = children.find(entry, search) else { return found };
            if let Some(pattern) = node.shared_pattern.as_deref() {
                found.set_shared_pattern(position, pattern);
            }
            rule = node.rule;
            children = &node.children;
        }
        found.rule = rule.and_then(|index| self.rules.get(index));
        found
    }
}

/// The nodes below one node of the tree, or the first level of the tree.
#[derive(Debug, Default)]
pub(super) struct Children {
    /// An `IndexMap` does not hash if it has a single key, as most levels have.
    pub(super) by_key: IndexMap<Box<[u8]>, KeyNodes, RandomState>,
}

/// The nodes with one key among the children of a node.
#[derive(Debug, Default)]
pub(super) struct KeyNodes {
    /// Nodes by value, also those with patterns: a value that equals the text of a pattern matches that node first.
    pub(super) exact: Map<usize>,
    /// Nodes with patterns, in the order of the file.
    pub(super) patterns: Vec<(Pattern, usize)>,
    /// The node without a value, which matches every value.
    pub(super) any: Option<usize>,
    pub(super) nodes: Vec<Node>,
}

/// A node of the tree.
#[derive(Debug)]
pub(super) struct Node {
    /// Location in the limits files.
    pub(super) location: SourceLocation,
    /// Position of its rule among those of the domain, if it has one.
    pub(super) rule: Option<usize>,
    /// The pattern that replaces the entry's value in counter keys, with `share_threshold`.
    pub(super) shared_pattern: Option<Box<[u8]>>,
    pub(super) children: Children,
}

impl Children {
    /// The node that matches an entry, if any.
    pub(super) fn find<'v, 'r>(
        &'r self,
        entry: &Entry<'v>,
        search: &mut SubstringSearchBudget<'v, 'r>,
    ) -> Option<&'r Node> {
        let key_nodes = self.by_key.get(entry.key)?;
        let exact = key_nodes.exact.get(entry.value).copied();
        let node =
            exact.or_else(|| key_nodes.match_pattern(entry.value, search)).or(key_nodes.any)?;
        key_nodes.nodes.get(node)
    }
}

impl KeyNodes {
    /// The node of the first pattern that matches the value, if any.
    #[inline]
    fn match_pattern<'v, 'r>(
        &'r self,
        value: &'v [u8],
        search: &mut SubstringSearchBudget<'v, 'r>,
    ) -> Option<usize> {
        if self.patterns.is_empty() {
            return None;
        }
        self.match_pattern_cached(value, search)
    }

    /// As [`match_pattern`](Self::match_pattern), for a key that has patterns. Not inlined, so that keys without
    /// patterns match in fewer instructions. Caches the results for long values.
    #[inline(never)]
    fn match_pattern_cached<'v, 'r>(
        &'r self,
        value: &'v [u8],
        search: &mut SubstringSearchBudget<'v, 'r>,
    ) -> Option<usize> {
        if value.len() <= KEY_PART_BYTES_MAX {
            return self.first_pattern(value, search);
        }
        if let Some(cached) = search.cached(self, value) {
            return cached;
        }
        let found = self.first_pattern(value, search);
        search.cache(self, value, found);
        found
    }

    fn first_pattern(
        &self,
        value: &[u8],
        search: &mut SubstringSearchBudget<'_, '_>,
    ) -> Option<usize> {
        let matches = |(pattern, _): &&(Pattern, usize)| {
            pattern.between(value).is_some_and(|between| {
                pattern.middle.is_empty()
                    || (search.spend(between.len()) && pattern.has_middle(between))
            })
        };
        self.patterns.iter().find(matches).map(|(_, node)| *node)
    }

    /// Number of patterns that search a value: those with text between two `*`.
    pub(super) fn substring_patterns(&self) -> usize {
        self.patterns.iter().filter(|(pattern, _)| !pattern.middle.is_empty()).count()
    }
}

/// The most bytes of values that are searched for one request. A pattern with text between two `*` searches the part of
/// a value between the pattern's head and tail; the lengths of all searched parts are added.
/// Chosen so that a request is decided before Envoy's timeout, after which Envoy lets it pass.
pub const SEARCHED_BYTES_MAX: usize = 16 << 20;

/// The most long values for which one request caches the node that a search has found.
const CACHED_SEARCHES_MAX: usize = 4;

/// The budget of one request for searches in its values, at most [`SEARCHED_BYTES_MAX`] bytes. Caches results, so that
/// a repeated long value is searched once.
#[derive(Debug)]
pub(crate) struct SubstringSearchBudget<'v, 'r> {
    /// Bytes that were searched.
    searched: usize,
    /// For some nodes and values, the node that a search has found.
    cache: Vec<(&'r KeyNodes, &'v [u8], Option<usize>)>,
}

impl<'v, 'r> SubstringSearchBudget<'v, 'r> {
    pub(crate) const fn new() -> Self {
        Self { searched: 0, cache: Vec::new() }
    }

    /// Whether more than [`SEARCHED_BYTES_MAX`] bytes would have been searched. If so, the match is incomplete and must
    /// not be used.
    pub(crate) const fn is_exceeded(&self) -> bool {
        self.searched > SEARCHED_BYTES_MAX
    }

    /// Counts bytes against the budget. Returns whether they may be searched.
    const fn spend(&mut self, bytes: usize) -> bool {
        self.searched = self.searched.saturating_add(bytes);
        !self.is_exceeded()
    }

    fn cached(&self, key_nodes: &KeyNodes, value: &[u8]) -> Option<Option<usize>> {
        let same =
            |(of, cached, _): &&(&KeyNodes, &[u8], _)| ptr::eq(*of, key_nodes) && *cached == value;
        self.cache.iter().find(same).map(|(.., found)| *found)
    }

    fn cache(&mut self, key_nodes: &'r KeyNodes, value: &'v [u8], found: Option<usize>) {
        if self.cache.len() == CACHED_SEARCHES_MAX {
            self.cache.remove(0);
        }
        self.cache.push((key_nodes, value, found));
    }
}

/// A pattern: a text in which each `*` matches any bytes, or none.
#[derive(Clone, Debug)]
pub(super) struct Pattern {
    /// The part before the first `*`.
    head: Box<[u8]>,
    /// The parts between two `*`, without empty ones.
    middle: Box<[Box<[u8]>]>,
    /// The part after the last `*`.
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
    /// The pattern with this text; `None` if it has no `*`.
    pub(super) fn new(text: &[u8]) -> Option<Self> {
        let mut parts = text.split(|&byte| byte == b'*').map(Box::from);
        let head = parts.next()?;
        let mut middle: Vec<Box<[u8]>> = parts.collect();
        let tail = middle.pop()?;
        middle.retain(|part| !part.is_empty());
        Some(Self { head, middle: middle.into(), tail })
    }

    /// Whether the pattern matches every value, also the empty one.
    pub(super) fn matches_all(&self) -> bool {
        self.head.is_empty() && self.middle.is_empty() && self.tail.is_empty()
    }

    /// Whether the pattern matches the value: the value begins and ends as the pattern does, without overlap, and has
    /// the middle parts between, in order.
    pub(super) fn matches(&self, value: &[u8]) -> bool {
        self.between(value).is_some_and(|between| self.has_middle(between))
    }

    /// The part of the value between the pattern's head and tail; `None` if the value does not have both, without
    /// overlap.
    fn between<'v>(&self, value: &'v [u8]) -> Option<&'v [u8]> {
        value.strip_prefix(&*self.head)?.strip_suffix(&*self.tail)
    }

    /// Whether the middle parts occur in order. Using the first occurrence of each part leaves most bytes for the
    /// others.
    fn has_middle(&self, mut rest: &[u8]) -> bool {
        for part in &self.middle {
            let Some(at) = memchr::memmem::find(rest, part) else { return false };
            rest = rest.get(at + part.len()..).unwrap_or_default();
        }
        true
    }
}
