//! Compilation of the tree of rules of one domain.

use std::collections::{HashMap, hash_map::Entry};

use super::Compiler;
use crate::{
    Rule,
    rule::RuleLimits,
    rules::{
        Mistake, Warning,
        file::{DescriptorNode, LimitsFile, SourceLocation},
        findings::truncated,
        matcher::{Children, KeyNodes, Node, Pattern},
        mistake::{LEVELS_MAX, PATH_BYTES_MAX},
        stats_key::StatsKey,
    },
};

/// The most earlier patterns of one key that a pattern is compared with, to warn that one of them hides it. Comparing
/// all patterns takes quadratic time.
const COMPARED_PATTERNS_MAX: usize = 1_000;

/// The most `_` of one key at which it is split, to warn that envoyproxy/ratelimit confuses it with another node.
const UNDERSCORES_MAX: usize = 16;

/// What is known of the path to a level.
#[derive(Clone, Copy)]
struct PathContext {
    depth: usize,
    /// Whether every value on the path is exact or a shared pattern, so that all requests here have the same counter
    /// key so far.
    is_constant: bool,
}

/// A compiled level or node, and a bit set of the depths at which it or a node below it has a limit that counts.
type WithCountedDepths<T> = (T, u64);

/// The nodes of a level by key and value.
type Seen<'f> = HashMap<(&'f str, Option<&'f str>), &'f SourceLocation>;

impl<'f> Compiler<'f> {
    /// Compiles the first level, of all files of the domain.
    pub(super) fn compile_root(&mut self, files: &[&'f LimitsFile]) -> Children {
        let nodes: Vec<_> = files.iter().flat_map(|file| &file.descriptors).collect();
        self.compile_children(&nodes, PathContext { depth: 0, is_constant: true }).0
    }

    fn compile_children(
        &mut self,
        nodes: &[&'f DescriptorNode],
        path: PathContext,
    ) -> WithCountedDepths<Children> {
        let mut children = Children::default();
        let mut counted_depths = 0;
        let mut seen = Seen::new();
        for node in nodes {
            if self.report.mistakes.unlisted() > 0 {
                break;
            }
            if path.depth >= LEVELS_MAX {
                self.mistake(&node.location, Mistake::TooDeep);
                break;
            }
            let value = value(node);
            let parent_length = self.path.len();
            self.descend(&node.key, value);
            if node.key.is_empty() {
                self.mistake(&node.location, Mistake::Missing("key"));
            } else {
                match seen.entry((&node.key, value)) {
                    Entry::Occupied(first) => {
                        let first = first.get().relative_to(&node.location.file);
                        let mistake =
                            Mistake::DuplicateDescriptor { what: truncated(&self.path), first };
                        self.mistake(&node.location, mistake);
                    }
                    Entry::Vacant(entry) => _ = entry.insert(&node.location),
                }
            }
            self.path_nodes.push(node);
            let (compiled, depths) = self.compile_node(node, value, path);
            self.path_nodes.pop();
            self.path.truncate(parent_length);
            counted_depths |= depths;
            self.insert(&mut children, node, value, compiled);
        }
        let substring_patterns = children.by_key.values().map(KeyNodes::substring_patterns).max();
        self.substring_patterns_max =
            self.substring_patterns_max.max(substring_patterns.unwrap_or_default());
        self.warn_of_level(nodes, &children, &seen);
        (children, counted_depths)
    }

    /// Appends a node to the path.
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

    fn compile_node(
        &mut self,
        node: &'f DescriptorNode,
        value: Option<&str>,
        path: PathContext,
    ) -> WithCountedDepths<Node> {
        let pattern = value.filter(|value| value.contains('*'));
        if node.share_threshold && pattern.is_none() {
            self.mistake(&node.location, Mistake::ShareWithoutPattern);
        }
        let rules = self.rules.len();
        let (rule, counts) = self.compile_rule(node);
        let shared_pattern: Option<Box<[u8]>> =
            pattern.filter(|_| node.share_threshold).map(|it| it.as_bytes().into());
        let varies = value.is_none() || (pattern.is_some() && shared_pattern.is_none());
        let nodes: Vec<_> = node.descriptors.iter().collect();
        let is_constant = path.is_constant && !varies;
        let (children, mut counted_depths) =
            self.compile_children(&nodes, PathContext { depth: path.depth + 1, is_constant });
        counted_depths |= u64::from(counts) << path.depth;
        self.warn_of_node(node, counted_depths > 0, self.rules.len() > rules);
        if path.is_constant
            && varies
            && counted_depths.count_ones() > 1
            && !self.has_tenant
            && !self.tenant_suggested
        {
            self.tenant_suggested = true;
            self.warn(&node.location, Warning::TenantSuggested { key: truncated(&node.key) });
        }
        (Node { location: node.location.clone(), rule, shared_pattern, children }, counted_depths)
    }

    /// Compiles the rule of a node, if it has limits. Returns its position among the domain's rules, and whether it
    /// counts hits.
    fn compile_rule(&mut self, node: &'f DescriptorNode) -> (Option<usize>, bool) {
        let counting = node.counting.as_ref().map_or(self.defaults.counting, |it| it.value);
        let Some(limits) = self.compile_limits(node, counting) else { return (None, false) };
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
        let response_body = match &node.response_body {
            Some(configured) => configured.value.clone(),
            None => self.response_body.clone(),
        };
        self.rules.push(Rule {
            path: self.path.as_str().into(),
            location: node.location.clone(),
            id: self.first_id + index,
            limits,
            counting,
            on_failure: node.on_failure.unwrap_or(self.defaults.on_failure),
            shadow_mode: node.shadow_mode,
            quota_mode: node.quota_mode,
            detailed_metric: node.detailed_metric,
            value_to_metric: node.value_to_metric,
            stats_key: StatsKey::new(&self.path_nodes),
            metadata: node.metadata.clone(),
            response_body,
        });
        (Some(index), counts)
    }

    /// Inserts a node into the children of its parent.
    fn insert(
        &mut self,
        children: &mut Children,
        node: &DescriptorNode,
        value: Option<&str>,
        compiled: Node,
    ) {
        let key_nodes = children.by_key.entry(node.key.as_bytes().into()).or_default();
        let index = key_nodes.nodes.len();
        key_nodes.nodes.push(compiled);
        let Some(value) = value else {
            key_nodes.any = Some(index);
            return;
        };
        key_nodes.exact.insert(value.as_bytes().into(), index);
        if let Some(pattern) = Pattern::new(value.as_bytes()) {
            // If an earlier pattern matches this pattern's text, with its `*` as ordinary characters, it matches every
            // value that this one matches.
            let mut earlier = key_nodes.patterns.iter().take(COMPARED_PATTERNS_MAX);
            let hiding = earlier.find(|(earlier, _)| earlier.matches(value.as_bytes()));
            let earlier = hiding.map(|(earlier, _)| truncated(earlier));
            key_nodes.patterns.push((pattern, index));
            if let Some(earlier) = earlier {
                self.warn(&node.location, Warning::HiddenPattern { earlier });
            }
        }
    }

    /// Adds the warnings about a node. Called when all nodes below it are compiled. `counts`: whether the node or one
    /// below it has a limit that counts, `has_rules`: whether any of them has a rule.
    fn warn_of_node(&mut self, node: &DescriptorNode, counts: bool, has_rules: bool) {
        if node.key.contains('*') {
            self.warn(&node.location, Warning::StarInKey);
        }
        if node.limits.is_none() {
            let keys_about_limits = [
                ("shadow_mode", node.shadow_mode),
                ("quota_mode", node.quota_mode),
                ("counting", node.counting.is_some()),
                ("on_failure", node.on_failure.is_some()),
                ("metadata", node.metadata.is_some()),
                ("detailed_metric", node.detailed_metric),
                ("response_body", node.response_body.is_some()),
            ];
            for (key, _) in keys_about_limits.into_iter().filter(|(_, is_set)| *is_set) {
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
            let keys_about_values = [
                ("detailed_metric", node.detailed_metric),
                ("value_to_metric", node.value_to_metric),
            ];
            for (key, _) in keys_about_values.into_iter().filter(|(_, is_set)| *is_set) {
                self.warn(&node.location, Warning::IgnoredForSharedValue(key));
            }
        }
    }

    /// Adds the warnings about the nodes of a level. Called when all of them are compiled.
    fn warn_of_level(
        &mut self,
        nodes: &[&'f DescriptorNode],
        children: &Children,
        seen: &Seen<'f>,
    ) {
        for node in nodes {
            let value = value(node);
            if value.is_none() {
                let key_nodes = children.by_key.get(node.key.as_bytes());
                let mut patterns = key_nodes.into_iter().flat_map(|it| &it.patterns);
                if let Some((pattern, _)) = patterns.find(|(pattern, _)| pattern.matches_all()) {
                    let pattern = truncated(pattern);
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

/// The node's value. An empty value is the same as no value, as in envoyproxy/ratelimit.
fn value(node: &DescriptorNode) -> Option<&str> {
    node.value.as_ref().map(|it| it.value.as_str()).filter(|it| !it.is_empty())
}

/// Key and value of a node, as in a path.
fn name(key: &str, value: Option<&str>) -> String {
    value.map_or_else(|| key.to_owned(), |value| format!("{key}={value}"))
}

/// Name and location of a node with another key that envoyproxy/ratelimit cannot distinguish from this node, because it
/// joins key and value by `_`.
fn same_upstream_key<'f>(
    key: &str,
    value: Option<&str>,
    seen: &Seen<'f>,
) -> Option<(String, &'f SourceLocation)> {
    let text =
        |rest: &str| value.map_or_else(|| rest.to_owned(), |value| format!("{rest}_{value}"));
    key.match_indices('_').take(UNDERSCORES_MAX).find_map(|(at, _)| {
        let (key, rest) = (key.get(..at)?, text(key.get(at + 1..)?));
        let location = seen.get(&(key, Some(rest.as_str())))?;
        Some((truncated(name(key, Some(&rest))), *location))
    })
}
