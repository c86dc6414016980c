//! The matcher against a reference that does the obvious, slowly.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on fails")]

mod cases;

use std::sync::Arc;

use proptest::{collection::vec, option, prelude::*, sample::select};
use sluicegate_core::{
    request::Entry,
    rules::{
        CompileError, CompileOptions, DescriptorNode, LimitNode, LimitsFile, LimitsNode, Place,
        Placed, RuleSet, compile,
    },
};

/// A node of a tree of rules, as written.
#[derive(Clone, Debug)]
struct Branch {
    key: String,
    value: Option<String>,
    /// Hits per second; tells rules apart.
    requests: Option<u32>,
    share: bool,
    below: Vec<Self>,
}

/// What a request's descriptor meets: the requests of the rule, and the patterns in place of values.
type Met = (Option<u32>, Vec<Option<String>>);

/// The rule that entries meet, straight from the words of the documentation.
fn reference(tree: &[Branch], entries: &[(String, String)]) -> Met {
    let mut shared = Vec::new();
    let mut level = tree;
    let mut rule = None;
    for (key, value) in entries {
        let of_key = || level.iter().filter(|branch| branch.key == *key);
        let written = |branch: &Branch| branch.value.clone().unwrap_or_default();
        let exact = of_key().find(|branch| !value.is_empty() && written(branch) == *value);
        let pattern = || of_key().find(|branch| has_star(branch) && fits(&written(branch), value));
        let any = || of_key().find(|branch| written(branch).is_empty());
        let Some(node) = exact.or_else(pattern).or_else(any) else { return (None, shared) };
        shared.push(node.value.clone().filter(|_| node.share && has_star(node)));
        rule = node.requests;
        level = &node.below;
    }
    (rule, shared)
}

fn has_star(branch: &Branch) -> bool {
    branch.value.as_ref().is_some_and(|value| value.contains('*'))
}

/// Whether a value can be cut so that every `*` stands for some part of it.
fn fits(pattern: &str, value: &str) -> bool {
    match pattern.chars().next() {
        None => value.is_empty(),
        Some('*') => (0..=value.len()).any(|cut| fits(&pattern[1..], &value[cut..])),
        Some(letter) => value.starts_with(letter) && fits(&pattern[1..], &value[1..]),
    }
}

/// Words that often are equal, begin alike, or are patterns of each other. `_` joins keys and values
/// upstream.
fn word() -> impl Strategy<Value = String> {
    prop_oneof![4 => "[ab]{0,3}", 3 => "[ab*]{1,4}", 1 => "[a*_]{1,3}"]
}

fn key() -> impl Strategy<Value = String> {
    select(vec!["k", "k_a", "a", "*", "k*"]).prop_map(str::to_owned)
}

/// A tree whose levels may hold the same key and value twice; see [`without_twins`].
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

/// Without nodes that would be refused as written twice.
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

/// Entries of which most stand in the tree, so that they get far into it.
fn entries(tree: Vec<Branch>) -> impl Strategy<Value = Vec<(String, String)>> {
    let step = (any::<prop::sample::Index>(), 0..8_u8, key(), word(), "[ab]{0,2}");
    vec(step, 0..5).prop_map(move |steps| {
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
                _ => (key, word),
            });
            level = branch.map_or(&[], |branch| &branch.below);
            if level.is_empty() && how < 7 {
                break;
            }
        }
        entries
    })
}

fn compiled(tree: &[Branch]) -> Result<RuleSet, Vec<CompileError>> {
    let file = LimitsFile {
        place: place(),
        domain: placed("d".to_owned()),
        tenant: None,
        counting: None,
        on_failure: None,
        algorithm: None,
        descriptors: tree.iter().map(node).collect(),
    };
    compile(&[file], &CompileOptions::default())
}

fn node(branch: &Branch) -> DescriptorNode {
    DescriptorNode {
        metadata: None,
        place: place(),
        key: branch.key.clone(),
        value: branch.value.clone().map(placed),
        limits: branch.requests.map(|requests| LimitsNode::One(Box::new(limit(requests)))),
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
        place: place(),
        requests_per_unit: Some(placed(requests)),
        unit: Some(placed("second".to_owned())),
        unit_multiplier: None,
        window: None,
        algorithm: None,
        burst: None,
        unlimited: false,
        name: None,
        replaces: Vec::new(),
    }
}

fn place() -> Place {
    Place { file: Arc::from("limits.yaml"), line: 1, column: 1, path: String::new() }
}

fn placed<T>(value: T) -> Placed<T> {
    Placed { value, place: place() }
}

/// What the matcher finds, in the words of the reference.
fn found(rules: &RuleSet, entries: &[(String, String)]) -> Met {
    let entries: Vec<_> = entries
        .iter()
        .map(|(key, value)| Entry { key: key.as_bytes(), value: value.as_bytes() })
        .collect();
    let found = rules.domain("d").unwrap().find(&entries);
    let requests = found.rule.map(|rule| match &rule.limits {
        sluicegate_core::rule::Limits::Each(limits) => limits.first().unwrap().limit.requests(),
        sluicegate_core::rule::Limits::Unlimited { .. } => 0,
    });
    let text = |pattern: &[u8]| String::from_utf8(pattern.to_vec()).unwrap();
    (requests, found.shared.iter().map(|pattern| pattern.map(text)).collect())
}

proptest! {
    #![proptest_config(cases::at_least(10_000))]

    #[test]
    fn the_matcher_finds_what_the_reference_finds(
        (tree, entries) in tree().prop_flat_map(|tree| (Just(tree.clone()), entries(tree)))
    ) {
        let (rule, mut shared) = reference(&tree, &entries);
        // Trailing places where nothing is shared may be left out.
        while shared.last() == Some(&None) {
            shared.pop();
        }
        prop_assert_eq!(found(&compiled(&tree).unwrap(), &entries), (rule, shared));
    }
}

/// Every rule of a large level is found, and every mistake in it.
#[test]
fn large_levels_compile() {
    let level = |value: &dyn Fn(u32) -> u32| -> Vec<_> {
        let leaf = |index| {
            branch(("k".to_owned(), Some(format!("v{}", value(index))), true, false), Vec::new())
        };
        (0..200_000).map(leaf).collect()
    };
    let rules = compiled(&level(&|index| index)).unwrap();
    assert_eq!(rules.rules().count(), 200_000);
    let errors = compiled(&level(&|index| index % 100_000)).unwrap_err();
    assert_eq!(errors.len(), 100_000);
}

/// Envoy passes header values on as they came.
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
