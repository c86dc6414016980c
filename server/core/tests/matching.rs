//! The matcher equals a slow reference implementation.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on fails")]

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use proptest::{collection::vec, option, prelude::*, sample::select, test_runner::TestRunner};
use sluicegate_core::{
    request::Entry,
    rules::{
        CompileOptions, DescriptorNode, FINDINGS_LISTED_MAX, Findings, LimitNode, LimitsFile,
        Located, LocatedMistake, NodeLimits, NodePath, Report, RuleSet, SourceLocation, compile,
        diff,
    },
};
use sluicegate_core_testkit::cases;

/// A node of a tree of rules, as written.
#[derive(Clone, Debug)]
struct Branch {
    key: String,
    value: Option<String>,
    /// Hits per second, which identify the rule.
    requests: Option<u32>,
    share: bool,
    below: Vec<Self>,
}

/// The result of matching: the requests of the rule, and the patterns that replace values.
type Matched = (Option<u32>, Vec<Option<String>>);

/// Matches entries as the documentation specifies.
fn reference(tree: &[Branch], entries: &[(String, String)]) -> Matched {
    let mut shared = Vec::new();
    let mut level = tree;
    let mut rule = None;
    for (key, value) in entries {
        let Some(node) = step(level, key, value) else { return (None, shared) };
        shared.push(node.value.clone().filter(|_| node.share && has_star(node)));
        rule = node.requests;
        level = &node.below;
    }
    (rule, shared)
}

/// The node that an entry matches.
fn step<'t>(level: &'t [Branch], key: &str, value: &str) -> Option<&'t Branch> {
    let of_key = || level.iter().filter(|branch| branch.key == key);
    let exact = of_key().find(|branch| !value.is_empty() && written(branch) == value);
    let pattern = || of_key().find(|branch| has_star(branch) && fits(written(branch), value));
    let any = || of_key().find(|branch| written(branch).is_empty());
    exact.or_else(pattern).or_else(any)
}

/// The value as written. An empty value is the same as no value.
fn written(branch: &Branch) -> &str {
    branch.value.as_deref().unwrap_or_default()
}

fn has_star(branch: &Branch) -> bool {
    branch.value.as_ref().is_some_and(|value| value.contains('*'))
}

/// Whether a value can be divided so that every `*` matches a part of it.
fn fits(pattern: &str, value: &str) -> bool {
    match pattern.chars().next() {
        None => value.is_empty(),
        Some('*') => (0..=value.len()).any(|cut| fits(&pattern[1..], &value[cut..])),
        Some(letter) => value.starts_with(letter) && fits(&pattern[1..], &value[1..]),
    }
}

/// The special situations in matching entries with a tree. The generated cases must contain each of them often.
fn situations(tree: &[Branch], entries: &[(String, String)]) -> BTreeSet<&'static str> {
    let mut met = BTreeSet::new();
    let mut note = |situation, is_met: bool| {
        if is_met {
            met.insert(situation);
        }
    };
    let mut level = tree;
    let mut last = None;
    for (depth, (key, value)) in entries.iter().enumerate() {
        let of_key = || level.iter().filter(|branch| branch.key == *key);
        let patterns = || of_key().filter(|it| has_star(it) && fits(written(it), value)).count();
        let overlapping = |it: &Branch| match written(it).split_once('*') {
            Some((head, tail)) if !tail.contains('*') => {
                let long = head.len() + tail.len() > value.len();
                long && value.starts_with(head) && value.ends_with(tail)
            }
            _ => false,
        };
        note("a head and a tail that overlap in the value", of_key().any(overlapping));
        let Some(node) = step(level, key, value) else {
            note("no node of the key", of_key().next().is_none());
            note("no node of the value", of_key().next().is_some());
            note("deeper than the tree", depth > 0 && level.is_empty());
            note("no backtracking", leads_to_a_rule(tree, entries));
            return met;
        };
        let is_exact = !value.is_empty() && written(node) == value;
        let is_any = written(node).is_empty();
        let has_any = of_key().any(|branch| written(branch).is_empty());
        note("an exact value", is_exact && !has_star(node));
        note("an exact value before a pattern", is_exact && !has_star(node) && patterns() > 0);
        note("the text of a pattern as the value", is_exact && has_star(node));
        note("the text of a pattern behind one that fits it", is_exact && patterns() > 1);
        note("a pattern", !is_exact && !is_any);
        note("the first of several patterns", !is_exact && !is_any && patterns() > 1);
        note("a pattern before the key alone", !is_exact && !is_any && has_any);
        note("several stars", !is_exact && written(node).matches('*').count() > 1);
        note("the key alone", is_any && !value.is_empty());
        note("an empty value to the key alone", is_any && value.is_empty());
        note("an empty value to a pattern", !is_any && value.is_empty());
        note("a shared value", node.share);
        note("a shared value below another level", node.share && depth > 0);
        last = Some(node);
        level = &node.below;
    }
    note("no entries", entries.is_empty());
    if let Some(node) = last {
        note("a rule", node.requests.is_some());
        note("a rule of three levels", node.requests.is_some() && entries.len() > 2);
        note("a node without a limit", node.requests.is_none());
        note("shallower than the tree", node.requests.is_none() && !node.below.is_empty());
    }
    met
}

const SITUATIONS: usize = 23;

/// The least number of cases in each situation.
const OFTEN: u32 = 30;

/// Whether entries lead to a rule if any matching node may be chosen at each level.
fn leads_to_a_rule(level: &[Branch], entries: &[(String, String)]) -> bool {
    let Some(((key, value), rest)) = entries.split_first() else { return false };
    let fitting = level.iter().filter(|branch| {
        let written = written(branch);
        branch.key == *key && (written.is_empty() || written == value || fits(written, value))
    });
    fitting.into_iter().any(|branch| {
        (rest.is_empty() && branch.requests.is_some()) || leads_to_a_rule(&branch.below, rest)
    })
}

/// Words that are often equal, have a common prefix, or are patterns of each other. envoyproxy/ratelimit joins key and
/// value by `_`.
fn word() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "[ab]{0,3}",
        3 => "[ab*]{1,4}",
        2 => "[ab]{1,2}\\*[ab]{1,2}",
        2 => "[ab]{0,1}\\*",
        1 => "[a*_]{1,3}",
    ]
}

fn key() -> impl Strategy<Value = String> {
    select(vec!["k", "k", "k", "k", "k_a", "a", "*", "k*"]).prop_map(str::to_owned)
}

/// A tree. Its levels do not have the same key and value twice; see [`without_twins`].
fn tree() -> impl Strategy<Value = Vec<Branch>> {
    let limited = prop::bool::weighted(0.8);
    let parts = (key(), option::of(word()), limited, any::<bool>()).boxed();
    let leaf = parts.clone().prop_map(|parts| branch(parts, Vec::new()));
    let node = leaf.prop_recursive(3, 40, 8, move |below| {
        (parts.clone(), vec(below, 0..8)).prop_map(|(parts, below)| branch(parts, below))
    });
    vec(node, 0..12).prop_map(|tree| {
        let mut tree = without_twins(tree);
        number(&mut tree, &mut 0);
        tree
    })
}

fn branch(
    (key, value, limited, share): (String, Option<String>, bool, bool),
    below: Vec<Branch>,
) -> Branch {
    let share = share && value.as_ref().is_some_and(|value| value.contains('*'));
    Branch { key, value, requests: limited.then_some(0), share, below }
}

/// The tree without nodes that would be rejected as duplicates.
fn without_twins(tree: Vec<Branch>) -> Vec<Branch> {
    let mut kept: Vec<Branch> = Vec::new();
    for mut branch in tree {
        let name = |it: &Branch| (it.key.clone(), it.value.clone().unwrap_or_default());
        if !kept.iter().any(|other| name(other) == name(&branch)) {
            branch.below = without_twins(branch.below);
            kept.push(branch);
        }
    }
    kept
}

fn number(tree: &mut [Branch], next: &mut u32) {
    for branch in tree {
        if let Some(requests) = &mut branch.requests {
            *next += 1;
            *requests = *next;
        }
        number(&mut branch.below, next);
    }
}

/// Entries that mostly match the tree, so that they reach deep levels.
fn entries(tree: Vec<Branch>) -> impl Strategy<Value = Vec<(String, String)>> {
    let step = (any::<prop::sample::Index>(), 0..10_u8, key(), word(), "[ab]{0,2}").boxed();
    // Rarely there are no entries.
    let length = prop_oneof![1 => 0..1_usize, 20 => 1..6_usize];
    length.prop_flat_map(move |length| vec(step.clone(), length)).prop_map(move |steps| {
        let mut level = tree.as_slice();
        let mut entries = Vec::new();
        for (index, how, key, word, filling) in steps {
            let branch = (!level.is_empty()).then(|| &level[index.index(level.len())]);
            let value = branch.and_then(|branch| branch.value.clone());
            entries.push(match (branch, how) {
                (Some(branch), 0..4) => {
                    let stars = |value: String| value.replace('*', &filling);
                    (branch.key.clone(), value.map_or_else(|| word.clone(), stars))
                }
                (Some(branch), 4) => (branch.key.clone(), value.unwrap_or_default()),
                (Some(branch), 5) => (branch.key.clone(), word),
                (Some(branch), 6) => (branch.key.clone(), squeezed(&value.unwrap_or_default())),
                (Some(branch), 7) => (branch.key.clone(), String::new()),
                _ => (key, word),
            });
            level = branch.map_or(&[], |branch| &branch.below);
            if level.is_empty() && how < 8 {
                break;
            }
        }
        entries
    })
}

/// The text of a pattern without its first `*` and the letter after it, so that head and tail may overlap in it.
fn squeezed(pattern: &str) -> String {
    match pattern.split_once('*') {
        Some((head, tail)) => format!("{head}{}", tail.get(1..).unwrap_or_default()),
        None => pattern.to_owned(),
    }
}

fn compiled(tree: &[Branch]) -> Result<RuleSet, Findings<LocatedMistake>> {
    let file = LimitsFile {
        location: location(),
        domain: located("d".to_owned()),
        tenant: None,
        counting: None,
        on_failure: None,
        algorithm: None,
        response_body: None,
        descriptors: tree.iter().map(node).collect(),
    };
    compile(&[file], &CompileOptions::default(), Report::default())
}

fn node(branch: &Branch) -> DescriptorNode {
    DescriptorNode {
        metadata: None,
        response_body: None,
        location: location(),
        key: branch.key.clone(),
        value: branch.value.clone().map(located),
        limits: branch.requests.map(|requests| NodeLimits::One(Box::new(limit(requests)))),
        counting: None,
        on_failure: None,
        shadow_mode: false,
        quota_mode: false,
        detailed_metric: false,
        value_to_metric: false,
        share_threshold: branch.share,
        descriptors: branch.below.iter().map(node).collect(),
    }
}

fn limit(requests: u32) -> LimitNode {
    LimitNode {
        is_incomplete: false,
        location: location(),
        requests_per_unit: Some(located(requests)),
        unit: Some(located("second".to_owned())),
        unit_multiplier: None,
        window: None,
        algorithm: None,
        burst: None,
        unlimited: false,
        name: None,
        replaces: Vec::new(),
    }
}

fn location() -> SourceLocation {
    SourceLocation { file: Arc::from("limits.yaml"), line: 1, column: 1, path: NodePath::default() }
}

fn located<T>(value: T) -> Located<T> {
    Located { value, location: location() }
}

/// The result of the matcher, in the form of the reference.
fn found(rules: &RuleSet, entries: &[(String, String)]) -> Matched {
    let entries: Vec<_> = entries
        .iter()
        .map(|(key, value)| Entry { key: key.as_bytes(), value: value.as_bytes() })
        .collect();
    let found = rules.domain("d").unwrap().find(&entries);
    let requests = found.rule.map(|rule| match &rule.limits {
        sluicegate_core::rule::RuleLimits::Limited(limits) => {
            limits.first().unwrap().limit.requests()
        }
        sluicegate_core::rule::RuleLimits::Unlimited { .. } => 0,
    });
    let text = |pattern: &[u8]| String::from_utf8(pattern.to_vec()).unwrap();
    (requests, found.shared_patterns.iter().map(|pattern| pattern.map(text)).collect())
}

#[test]
fn matcher_equals_reference_implementation() {
    const CASES: u32 = 10_000;
    let met = RefCell::new(BTreeMap::<&str, u32>::new());
    let trees_and_entries = tree().prop_flat_map(|tree| (Just(tree.clone()), entries(tree)));
    let property = |(tree, entries): (Vec<Branch>, Vec<(String, String)>)| {
        for situation in situations(&tree, &entries) {
            *met.borrow_mut().entry(situation).or_default() += 1;
        }
        let (rule, mut shared) = reference(&tree, &entries);
        // The matcher may omit trailing positions without a pattern.
        while shared.last() == Some(&None) {
            shared.pop();
        }
        prop_assert_eq!(found(&compiled(&tree).unwrap(), &entries), (rule, shared));
        Ok(())
    };
    let done = TestRunner::new(cases::at_least(CASES)).run(&trees_and_entries, property);
    done.unwrap_or_else(|error| panic!("{error}"));
    let met = met.into_inner();
    assert_eq!(met.len(), SITUATIONS, "{met:#?}");
    let rare: Vec<_> = met.iter().filter(|(_, times)| **times < OFTEN).collect();
    assert!(rare.is_empty(), "{rare:?} of {met:#?}");
}

/// Edits a level of the tree, or none.
fn edit(level: &mut Vec<Branch>, how: u8, at: usize) {
    if level.is_empty() {
        return;
    }
    let at = at % level.len();
    match how {
        0 => {}
        1 => level.reverse(),
        2 => level.rotate_left(1),
        3 => _ = level.remove(at),
        4 => level[at].share = !level[at].share && has_star(&level[at]),
        5 => level[at].requests = None,
        _ => edit(&mut level[at].below, how - 6, at),
    }
}

/// If there are no changes, every descriptor matches as before.
#[test]
fn every_edit_with_an_effect_is_a_change() {
    let (changed, unchanged, effective) = (Cell::new(0), Cell::new(0), Cell::new(0));
    let count = |counter: &Cell<u32>| counter.set(counter.get() + 1);
    let edited = (tree(), 0..12_u8, any::<usize>()).prop_flat_map(|(old, how, at)| {
        let mut new = old.clone();
        edit(&mut new, how, at);
        (Just(old.clone()), Just(new), vec(entries(old), 8))
    });
    let property = |(old, new, requests): (Vec<Branch>, Vec<Branch>, Vec<Vec<_>>)| {
        let (old, new) = (compiled(&old).unwrap(), compiled(&new).unwrap());
        let changes = diff(&old, &new);
        let has_effect =
            requests.iter().any(|entries| found(&old, entries) != found(&new, entries));
        prop_assert!(!has_effect || !changes.is_empty());
        prop_assert_eq!(diff(&old, &old), []);
        prop_assert_eq!(changes.is_empty(), diff(&new, &old).is_empty());
        count(if changes.is_empty() { &unchanged } else { &changed });
        if has_effect {
            count(&effective);
        }
        Ok(())
    };
    let done = TestRunner::new(cases::at_least(3_000)).run(&edited, property);
    done.unwrap_or_else(|error| panic!("{error}"));
    let counts = [changed.get(), unchanged.get(), effective.get()];
    assert!(counts.iter().all(|it| *it > 300), "changed, unchanged, effective: {counts:?}");
}

/// All rules of a large level compile, and at most the bounded number of mistakes is listed.
#[test]
fn large_levels_compile_with_bounded_mistakes() {
    let level = |value: &dyn Fn(u32) -> u32| -> Vec<_> {
        let leaf = |index| {
            branch(("k".to_owned(), Some(format!("v{}", value(index))), true, false), Vec::new())
        };
        (0..200_000).map(leaf).collect()
    };
    let rules = compiled(&level(&|index| index)).unwrap();
    assert_eq!(rules.rules().count(), 200_000);
    let errors = compiled(&level(&|index| index % 100_000)).unwrap_err();
    assert!(errors.len() == FINDINGS_LISTED_MAX && errors.unlisted() > 0);
}

/// Envoy passes header values on unchanged.
#[test]
fn values_are_bytes() {
    let leaf =
        |value: &str| branch(("k".to_owned(), Some(value.to_owned()), true, false), Vec::new());
    let mut tree = vec![leaf("é"), leaf("a*z")];
    number(&mut tree, &mut 0);
    let rules = compiled(&tree).unwrap();
    let finds = |value: &[u8]| {
        rules.domain("d").unwrap().find(&[Entry { key: b"k", value }]).rule.map(|rule| rule.id)
    };
    assert_eq!(finds("é".as_bytes()), Some(0));
    assert_eq!(finds(b"\xc3"), None);
    assert_eq!(finds(b"a\xff\x00\xc3z"), Some(1));
    assert_eq!(finds(b"a\xff"), None);
}
