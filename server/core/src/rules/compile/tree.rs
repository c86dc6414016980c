//! The tree of rules of one domain.

use std::collections::{HashMap, hash_map::Entry};

use super::Compiler;
use crate::{
    Rule,
    rule::RuleLimits,
    rules::{
        Mistake, Warning,
        file::{DescriptorNode, LimitsFile, SourceLocation},
        findings::quoted,
        matcher::{Level, Node, Pattern, Values},
        mistake::{LEVELS_MAX, PATH_BYTES_MAX},
        stats_key::StatsKey,
    },
};

/// The most patterns of one key that a later one is compared with, to warn that they hide it. Comparing all
/// would be quadratic.
const HIDERS_MAX: usize = 1_000;

/// The most `_` of one key at which it is split, to warn that envoyproxy/ratelimit confuses it with another.
const JOINTS_MAX: usize = 16;

/// The path to a level.
#[derive(Clone, Copy)]
struct PathContext {
    depth: usize,
    /// Whether every value on the path is exact, so that all requests here share them.
    constant: bool,
}

/// A level and the depths, as bits, at which there are limits that count.
type WithDepths<T> = (T, u64);

/// The nodes of a level by key and value.
type Seen<'f> = HashMap<(&'f str, Option<&'f str>), &'f SourceLocation>;

impl<'f> Compiler<'f> {
    /// The first level, of all files of the domain.
    pub(super) fn root(&mut self, files: &[&'f LimitsFile]) -> Level {
        let nodes: Vec<_> = files.iter().flat_map(|file| &file.descriptors).collect();
        self.level(&nodes, PathContext { depth: 0, constant: true }).0
    }

    fn level(&mut self, nodes: &[&'f DescriptorNode], way: PathContext) -> WithDepths<Level> {
        let mut level = Level::default();
        let mut limited = 0;
        let mut seen = Seen::new();
        for node in nodes {
            if self.report.mistakes.unlisted() > 0 {
                break;
            }
            if way.depth >= LEVELS_MAX {
                self.mistake(&node.location, Mistake::TooDeep);
                break;
            }
            let value = value(node);
            let above = self.path.len();
            self.descend(&node.key, value);
            if node.key.is_empty() {
                self.mistake(&node.location, Mistake::Missing("key"));
            } else {
                match seen.entry((&node.key, value)) {
                    Entry::Occupied(first) => {
                        let first = first.get().relative_to(&node.location.file);
                        let mistake =
                            Mistake::DuplicateDescriptor { what: quoted(&self.path), first };
                        self.mistake(&node.location, mistake);
                    }
                    Entry::Vacant(entry) => _ = entry.insert(&node.location),
                }
            }
            self.trail.push(node);
            let (compiled, below) = self.node(node, value, way);
            self.trail.pop();
            self.path.truncate(above);
            limited |= below;
            self.insert(&mut level, node, value, compiled);
        }
        let searches = level.keys.values().map(Values::searches).max();
        self.searches_max = self.searches_max.max(searches.unwrap_or_default());
        self.warn_of_level(nodes, &level, &seen);
        (level, limited)
    }

    /// Adds a node to the path.
    fn descend(&mut self, key: &str, value: Option<&str>) {
        if !self.path.is_empty() {
            self.path.push('.');
        }
        self.path.push_str(key);
        if let Some(value) = value {
            self.path.push('=');
            self.path.push_str(value);
        }
    }

    fn node(
        &mut self,
        node: &'f DescriptorNode,
        value: Option<&str>,
        way: PathContext,
    ) -> WithDepths<Node> {
        let pattern = value.filter(|value| value.contains('*'));
        if node.share_threshold && pattern.is_none() {
            self.mistake(&node.location, Mistake::ShareWithoutPattern);
        }
        let rules = self.rules.len();
        let (rule, counts) = self.rule(node);
        let shared = pattern.filter(|_| node.share_threshold).map(|it| it.as_bytes().into());
        let open = value.is_none() || (pattern.is_some() && shared.is_none());
        let below: Vec<_> = node.descriptors.iter().collect();
        let constant = way.constant && !open;
        let (below, mut limited) =
            self.level(&below, PathContext { depth: way.depth + 1, constant });
        limited |= u64::from(counts) << way.depth;
        self.warn_of_node(node, limited > 0, self.rules.len() > rules);
        if way.constant
            && open
            && limited.count_ones() > 1
            && !self.has_tenant
            && !self.tenant_suggested
        {
            self.tenant_suggested = true;
            self.warn(&node.location, Warning::TenantSuggested { key: quoted(&node.key) });
        }
        (Node { location: node.location.clone(), rule, shared, below }, limited)
    }

    /// The rule of a node that has limits: its position among the domain's rules, and whether it counts.
    fn rule(&mut self, node: &'f DescriptorNode) -> (Option<usize>, bool) {
        let counting = node.counting.as_ref().map_or(self.defaults.counting, |it| it.value);
        let Some(limits) = self.limits(node, counting) else { return (None, false) };
        // Metrics identify the rule by its domain and path.
        let before = self.path_bytes;
        self.path_bytes += self.domain_bytes + self.path.len();
        if self.path_bytes > PATH_BYTES_MAX {
            if before <= PATH_BYTES_MAX {
                self.mistake(&node.location, Mistake::PathsTooLong { max: PATH_BYTES_MAX });
            }
            return (None, false);
        }
        let index = self.rules.len();
        let counts = matches!(limits, RuleLimits::Limited(_));
        self.rules.push(Rule {
            path: self.path.as_str().into(),
            location: node.location.clone(),
            id: self.next_id + index,
            limits,
            counting,
            on_failure: node.on_failure.unwrap_or(self.defaults.on_failure),
            shadow_mode: node.shadow_mode,
            quota_mode: node.quota_mode,
            detailed_metric: node.detailed_metric,
            value_to_metric: node.value_to_metric,
            stats_key: StatsKey::new(&self.trail),
            metadata: node.metadata.clone(),
        });
        (Some(index), counts)
    }

    /// Inserts a node into the level.
    fn insert(
        &mut self,
        level: &mut Level,
        node: &DescriptorNode,
        value: Option<&str>,
        compiled: Node,
    ) {
        let values = level.keys.entry(node.key.as_bytes().into()).or_default();
        let index = values.nodes.len();
        values.nodes.push(compiled);
        let Some(value) = value else {
            values.any = Some(index);
            return;
        };
        values.exact.insert(value.as_bytes().into(), index);
        if let Some(pattern) = Pattern::new(value.as_bytes()) {
            // A pattern that matches this one's text, with its stars as ordinary characters, matches all of its values.
            let mut earlier = values.patterns.iter().take(HIDERS_MAX);
            let hides = earlier.find(|(earlier, _)| earlier.matches(value.as_bytes()));
            let earlier = hides.map(|(earlier, _)| quoted(earlier));
            values.patterns.push((pattern, index));
            if let Some(earlier) = earlier {
                self.warn(&node.location, Warning::HiddenPattern { earlier });
            }
        }
    }

    /// Adds warnings about a node, once all nodes below are known: whether any limit here or below counts,
    /// and whether there is any rule.
    fn warn_of_node(&mut self, node: &DescriptorNode, counts: bool, has_rules: bool) {
        if node.key.contains('*') {
            self.warn(&node.location, Warning::StarInKey);
        }
        if node.limits.is_none() {
            let about_limits = [
                ("shadow_mode", node.shadow_mode),
                ("quota_mode", node.quota_mode),
                ("counting", node.counting.is_some()),
                ("on_failure", node.on_failure.is_some()),
                ("metadata", node.metadata.is_some()),
                ("detailed_metric", node.detailed_metric),
            ];
            for (key, _) in about_limits.into_iter().filter(|(_, given)| *given) {
                self.warn(&node.location, Warning::IgnoredWithoutLimit(key));
            }
        } else if node.shadow_mode && node.quota_mode {
            self.warn(&node.location, Warning::QuotaInShadow);
        }
        if node.value_to_metric && !has_rules {
            self.warn(&node.location, Warning::IgnoredWithoutLimitBelow("value_to_metric"));
        }
        if node.share_threshold && !counts {
            self.warn(&node.location, Warning::IgnoredWithoutLimitBelow("share_threshold"));
        } else if node.share_threshold {
            let about_values = [
                ("detailed_metric", node.detailed_metric),
                ("value_to_metric", node.value_to_metric),
            ];
            for (key, _) in about_values.into_iter().filter(|(_, given)| *given) {
                self.warn(&node.location, Warning::IgnoredForSharedValue(key));
            }
        }
    }

    /// Adds warnings about the nodes of a level, once all are known.
    fn warn_of_level(&mut self, nodes: &[&'f DescriptorNode], level: &Level, seen: &Seen<'f>) {
        for node in nodes {
            let value = value(node);
            if value.is_none() {
                let values = level.keys.get(node.key.as_bytes());
                let mut patterns = values.into_iter().flat_map(|values| &values.patterns);
                if let Some((pattern, _)) = patterns.find(|(pattern, _)| pattern.matches_all()) {
                    let pattern = quoted(pattern);
                    self.warn(&node.location, Warning::HiddenKey { pattern });
                }
            }
            if let Some((other, location)) = same_upstream_key(&node.key, value, seen) {
                let location = location.relative_to(&node.location.file);
                self.warn(&node.location, Warning::SameUpstreamKey { other, location });
            }
        }
    }
}

/// The node's value. An empty value is none, as in envoyproxy/ratelimit.
fn value(node: &DescriptorNode) -> Option<&str> {
    node.value.as_ref().map(|it| it.value.as_str()).filter(|it| !it.is_empty())
}

/// A node's part of a path.
fn name(key: &str, value: Option<&str>) -> String {
    value.map_or_else(|| key.to_owned(), |value| format!("{key}={value}"))
}

/// A node of another key with the same text once key and value are joined by `_`.
fn same_upstream_key<'f>(
    key: &str,
    value: Option<&str>,
    seen: &Seen<'f>,
) -> Option<(String, &'f SourceLocation)> {
    let text =
        |rest: &str| value.map_or_else(|| rest.to_owned(), |value| format!("{rest}_{value}"));
    key.match_indices('_').take(JOINTS_MAX).find_map(|(at, _)| {
        let (key, rest) = (key.get(..at)?, text(key.get(at + 1..)?));
        let location = seen.get(&(key, Some(rest.as_str())))?;
        Some((quoted(name(key, Some(&rest))), *location))
    })
}
