//! The tree of rules of one domain.

use std::collections::{HashMap, hash_map::Entry};

use super::Compiler;
use crate::{
    Rule,
    rule::Limits,
    rules::{
        Oddity, Problem,
        file::{DescriptorNode, LimitsFile, Place},
        findings::quoted,
        matcher::{Level, Node, Pattern, Values},
        problem::{LEVELS_MAX, PATH_BYTES_MAX},
        stats_key::StatsKey,
    },
};

/// The most patterns of one key that a later one is compared with, to warn that they hide it: comparing all
/// would take the square of their number.
const HIDERS_MAX: usize = 1_000;

/// The most `_` of one key at which it is cut, to warn that envoyproxy/ratelimit takes it for another.
const JOINTS_MAX: usize = 16;

/// The way to a level.
#[derive(Clone, Copy)]
struct Way {
    depth: usize,
    /// Whether every value on the way is written out, so that all requests that come here share them.
    constant: bool,
}

/// A level and the depths, as bits, at which there are limits that count.
type Grown<T> = (T, u64);

/// The nodes of a level by key and value.
type Seen<'f> = HashMap<(&'f str, Option<&'f str>), &'f Place>;

impl<'f> Compiler<'f> {
    /// The first level, of all files of the domain.
    pub(super) fn root(&mut self, files: &[&'f LimitsFile]) -> Level {
        let nodes: Vec<_> = files.iter().flat_map(|file| &file.descriptors).collect();
        self.level(&nodes, Way { depth: 0, constant: true }).0
    }

    fn level(&mut self, nodes: &[&'f DescriptorNode], way: Way) -> Grown<Level> {
        let mut level = Level::default();
        let mut limited = 0;
        let mut seen = Seen::new();
        for node in nodes {
            if self.report.mistakes.more() > 0 {
                break;
            }
            if way.depth >= LEVELS_MAX {
                self.wrong(&node.place, Problem::TooDeep);
                break;
            }
            let value = value(node);
            let above = self.path.len();
            self.descend(&node.key, value);
            if node.key.is_empty() {
                self.wrong(&node.place, Problem::Missing("key"));
            } else {
                match seen.entry((&node.key, value)) {
                    Entry::Occupied(first) => {
                        let first = first.get().seen_from(&node.place.file);
                        let problem =
                            Problem::DuplicateDescriptor { what: quoted(&self.path), first };
                        self.wrong(&node.place, problem);
                    }
                    Entry::Vacant(entry) => _ = entry.insert(&node.place),
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

    fn node(&mut self, node: &'f DescriptorNode, value: Option<&str>, way: Way) -> Grown<Node> {
        let pattern = value.filter(|value| value.contains('*'));
        if node.share_threshold && pattern.is_none() {
            self.wrong(&node.place, Problem::ShareWithoutPattern);
        }
        let rules = self.rules.len();
        let (rule, counts) = self.rule(node);
        let shared = pattern.filter(|_| node.share_threshold).map(|it| it.as_bytes().into());
        let open = value.is_none() || (pattern.is_some() && shared.is_none());
        let below: Vec<_> = node.descriptors.iter().collect();
        let constant = way.constant && !open;
        let (below, mut limited) = self.level(&below, Way { depth: way.depth + 1, constant });
        limited |= u64::from(counts) << way.depth;
        self.warn_of_node(node, limited > 0, self.rules.len() > rules);
        if way.constant && open && limited.count_ones() > 1 && !self.has_tenant && !self.suggested {
            self.suggested = true;
            self.odd(&node.place, Oddity::NoTenant { key: quoted(&node.key) });
        }
        (Node { place: node.place.clone(), rule, shared, below }, limited)
    }

    /// The rule of a node that has limits: its position among the domain's rules, and whether it counts.
    fn rule(&mut self, node: &'f DescriptorNode) -> (Option<usize>, bool) {
        let counting = node.counting.as_ref().map_or(self.defaults.counting, |it| it.value);
        let Some(limits) = self.limits(node, counting) else { return (None, false) };
        // Metrics tell the rule by its domain and path.
        let before = self.path_bytes;
        self.path_bytes += self.domain_bytes + self.path.len();
        if self.path_bytes > PATH_BYTES_MAX {
            if before <= PATH_BYTES_MAX {
                self.wrong(&node.place, Problem::PathsTooLong { max: PATH_BYTES_MAX });
            }
            return (None, false);
        }
        let index = self.rules.len();
        let counts = matches!(limits, Limits::Each(_));
        self.rules.push(Rule {
            path: self.path.as_str().into(),
            place: node.place.clone(),
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

    /// Puts a node where requests find it.
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
            // A pattern that matches this one's text with its stars taken as letters matches all of its values.
            let mut earlier = values.patterns.iter().take(HIDERS_MAX);
            let hides = earlier.find(|(earlier, _)| earlier.fits(value.as_bytes()));
            let earlier = hides.map(|(earlier, _)| quoted(earlier));
            values.patterns.push((pattern, index));
            if let Some(earlier) = earlier {
                self.odd(&node.place, Oddity::Hidden { earlier });
            }
        }
    }

    /// What can be said of a node when all of those below are known: whether any limit there or here counts,
    /// and whether there is any rule.
    fn warn_of_node(&mut self, node: &DescriptorNode, counts: bool, has_rules: bool) {
        if node.key.contains('*') {
            self.odd(&node.place, Oddity::StarInKey);
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
                self.odd(&node.place, Oddity::NoLimit(key));
            }
        } else if node.shadow_mode && node.quota_mode {
            self.odd(&node.place, Oddity::QuotaInShadow);
        }
        if node.value_to_metric && !has_rules {
            self.odd(&node.place, Oddity::NoLimitBelow("value_to_metric"));
        }
        if node.share_threshold && !counts {
            self.odd(&node.place, Oddity::NoLimitBelow("share_threshold"));
        } else if node.share_threshold {
            let about_values = [
                ("detailed_metric", node.detailed_metric),
                ("value_to_metric", node.value_to_metric),
            ];
            for (key, _) in about_values.into_iter().filter(|(_, given)| *given) {
                self.odd(&node.place, Oddity::SharedValue(key));
            }
        }
    }

    /// What can be said of a level's nodes when all are known.
    fn warn_of_level(&mut self, nodes: &[&'f DescriptorNode], level: &Level, seen: &Seen<'f>) {
        for node in nodes {
            let value = value(node);
            if value.is_none() {
                let values = level.keys.get(node.key.as_bytes());
                let mut patterns = values.into_iter().flat_map(|values| &values.patterns);
                if let Some((pattern, _)) = patterns.find(|(pattern, _)| pattern.fits_all()) {
                    let pattern = quoted(pattern);
                    self.odd(&node.place, Oddity::HiddenKey { pattern });
                }
            }
            if let Some((other, place)) = joined(&node.key, value, seen) {
                let place = place.seen_from(&node.place.file);
                self.odd(&node.place, Oddity::Joined { other, place });
            }
        }
    }
}

/// The node's value. As in Go, where nobody can tell an empty value from none.
fn value(node: &DescriptorNode) -> Option<&str> {
    node.value.as_ref().map(|it| it.value.as_str()).filter(|it| !it.is_empty())
}

/// A node's part of a path.
fn name(key: &str, value: Option<&str>) -> String {
    value.map_or_else(|| key.to_owned(), |value| format!("{key}={value}"))
}

/// A node of another key that gives the same text when key and value are joined by `_`.
fn joined<'f>(key: &str, value: Option<&str>, seen: &Seen<'f>) -> Option<(String, &'f Place)> {
    let text =
        |rest: &str| value.map_or_else(|| rest.to_owned(), |value| format!("{rest}_{value}"));
    key.match_indices('_').take(JOINTS_MAX).find_map(|(at, _)| {
        let (key, rest) = (key.get(..at)?, text(key.get(at + 1..)?));
        let place = seen.get(&(key, Some(rest.as_str())))?;
        Some((quoted(name(key, Some(&rest))), *place))
    })
}
