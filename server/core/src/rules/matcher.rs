//! Finds the rule that a descriptor meets.
//!
//! At each level an entry goes, in this order, to the node of its exact value, to the first node in file
//! order whose pattern fits, or to the node of its key alone. There is no way back: a branch that was
//! taken and leads nowhere matches nothing. Only the node of the last entry counts.
//!
//! Nodes are found by key and then by value, both borrowed from the request; nothing is joined, so `a_b`
//! cannot be taken for `a` with the value `b`.

use std::{collections::HashMap, fmt, ptr};

use foldhash::fast::RandomState;
use indexmap::IndexMap;

use super::{CompileWarning, Findings, Place};
use crate::{Algorithm, Counting, OnFailure, Rule, key::PART_MAX, request::Entry};

type Map<T> = HashMap<Box<[u8]>, T, RandomState>;

/// All rules, compiled. Immutable.
#[derive(Debug, Default)]
pub struct RuleSet {
    pub(super) domains: Vec<Domain>,
    pub(super) by_name: IndexMap<Box<str>, usize, RandomState>,
    pub(super) warnings: Findings<CompileWarning>,
    /// The most patterns of one key and level whose parts are searched for anywhere in a value.
    pub(super) searches_max: usize,
    /// What holds for all rules.
    pub modes: Modes,
}

/// What holds for all rules, whatever they say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Modes {
    /// Whether all rules only simulate: statuses tell what they would do, and every request may pass.
    pub shadow_mode: bool,
    /// Whether every rule is a quota rule, and a descriptor that meets none one that has room.
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

    /// The most times that one value may be searched at a level: the patterns there with a part between two `*`.
    #[must_use]
    pub const fn searches_max(&self) -> usize {
        self.searches_max
    }

    /// What can be served but is probably not what was meant.
    #[must_use]
    pub const fn warnings(&self) -> &Findings<CompileWarning> {
        &self.warnings
    }
}

/// What applies where nothing else is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Defaults {
    /// How hits are counted.
    pub algorithm: Algorithm,
    /// Who is charged.
    pub counting: Counting,
    /// What answers where the store cannot.
    pub on_failure: OnFailure,
}

/// The rules of one domain.
#[derive(Debug)]
pub struct Domain {
    /// The name that requests ask for.
    pub name: Box<str>,
    /// Key of the entry whose value is the tenant.
    pub tenant: Option<Box<[u8]>>,
    /// What applies where a rule does not say.
    pub defaults: Defaults,
    /// Whether any limit replaces others.
    pub(crate) replaces: bool,
    pub(super) rules: Vec<Rule>,
    pub(super) root: Level,
}

/// What a descriptor met.
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

    /// The rule that a descriptor of these entries meets, alone in its request.
    #[must_use]
    pub fn find<'r>(&'r self, entries: &[Entry<'_>]) -> Match<'r> {
        self.find_in(entries, &mut Search::new())
    }

    /// The rule that a descriptor of these entries meets. `search` is that of the request.
    pub(crate) fn find_in<'v, 'r>(
        &'r self,
        entries: &[Entry<'v>],
        search: &mut Search<'v, 'r>,
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
    /// With a single key, as most levels have, nothing is hashed.
    pub(super) keys: IndexMap<Box<[u8]>, Values, RandomState>,
}

/// The nodes of one key.
#[derive(Debug, Default)]
pub(super) struct Values {
    /// Also holds patterns under their literal text: a value that is one goes there before any pattern.
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
    /// Where it stands.
    pub(super) place: Place,
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
        search: &mut Search<'v, 'r>,
    ) -> Option<&'r Node> {
        let values = self.keys.get(entry.key)?;
        let exact = values.exact.get(entry.value).copied();
        let node = exact.or_else(|| values.pattern(entry.value, search)).or(values.any)?;
        values.nodes.get(node)
    }
}

impl Values {
    /// The node of the first pattern that the value fits.
    #[inline]
    fn pattern<'v, 'r>(&'r self, value: &'v [u8], search: &mut Search<'v, 'r>) -> Option<usize> {
        if self.patterns.is_empty() {
            return None;
        }
        self.fitting(value, search)
    }

    /// The same where there are patterns. Kept out of the way of exact values, which is instruction-counted.
    #[inline(never)]
    fn fitting<'v, 'r>(&'r self, value: &'v [u8], search: &mut Search<'v, 'r>) -> Option<usize> {
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

    fn first_pattern(&self, value: &[u8], search: &mut Search<'_, '_>) -> Option<usize> {
        let fits = |(pattern, _): &&(Pattern, usize)| {
            pattern.between(value).is_some_and(|between| {
                pattern.middle.is_empty()
                    || (search.allows(between.len()) && pattern.has_middle(between))
            })
        };
        self.patterns.iter().find(fits).map(|(_, node)| *node)
    }

    /// How often a value is searched here at most.
    pub(super) fn searches(&self) -> usize {
        self.patterns.iter().filter(|(pattern, _)| !pattern.middle.is_empty()).count()
    }
}

/// The most bytes of values, pattern by pattern, that are searched for one request: so many that it is decided before
/// Envoy gives up, which would let it pass.
pub const SEARCHED_MAX: usize = 16 << 20;

/// Results of searches that are remembered.
const REMEMBERED: usize = 4;

/// The searches in the values of one request. Their sum is bounded, and a long value that comes again is not searched
/// again.
#[derive(Debug)]
pub(crate) struct Search<'v, 'r> {
    searched: usize,
    known: Vec<(&'r Values, &'v [u8], Option<usize>)>,
}

impl<'v, 'r> Search<'v, 'r> {
    pub(crate) const fn new() -> Self {
        Self { searched: 0, known: Vec::new() }
    }

    /// Whether more than [`SEARCHED_MAX`] bytes would have been searched. If so, the match is incomplete and must not be used.
    pub(crate) const fn is_exceeded(&self) -> bool {
        self.searched > SEARCHED_MAX
    }

    /// Whether so many bytes may still be searched.
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

/// A text with `*` for any bytes, also none.
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

    /// Whether every value fits, also the empty one.
    pub(super) fn fits_all(&self) -> bool {
        self.head.is_empty() && self.middle.is_empty() && self.tail.is_empty()
    }

    /// Whether the value begins and ends as the pattern does, without overlap, and has the middle parts
    /// in order between.
    pub(super) fn fits(&self, value: &[u8]) -> bool {
        self.between(value).is_some_and(|between| self.has_middle(between))
    }

    /// What is between the beginning and the end of the pattern, if the value has both, without overlap.
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
