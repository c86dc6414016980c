//! Explanations: why a descriptor matches its rule and no other, and peeks of its counters.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on fails")]

use std::{cell::Cell, sync::Arc, time::Duration};

use sluicegate_core::{
    Answers, Charge, Counting, Decision, Request, StoreError,
    explain::{DescriptorOutcome, ExplainedDescriptor, Explanation, PeekPlan},
    limit::Unit,
    request::{Descriptor, Entry, Hits, LimitOverride},
    rules::{
        CANDIDATES_MAX, CandidateOutcome, CompileOptions, DescriptorNode, LimitNode, LimitsFile,
        Located, Modes, NodeLimits, NodePath, Report, RuleSet, SourceLocation, compile,
    },
    store::{DecisionSource, RefusalScope},
};

// === Rules ===

fn location(line: usize) -> SourceLocation {
    SourceLocation { file: Arc::from("a.yaml"), line, column: 1, path: NodePath::default() }
}

/// A node `key` or `key=value` at a line, without a limit.
fn node(line: usize, name: &str, descriptors: Vec<DescriptorNode>) -> DescriptorNode {
    let (key, value) = name.split_once('=').map_or((name, None), |(key, value)| (key, Some(value)));
    DescriptorNode {
        location: location(line),
        key: key.to_owned(),
        value: value.map(|value| Located { value: value.to_owned(), location: location(line) }),
        limits: None,
        counting: None,
        on_failure: None,
        shadow_mode: false,
        quota_mode: false,
        detailed_metric: false,
        value_to_metric: false,
        share_threshold: false,
        metadata: None,
        response_body: None,
        descriptors,
    }
}

fn limit_node(line: usize, name: &str, replaces: &[&str]) -> LimitNode {
    let located = |text: &str| Located { value: text.to_owned(), location: location(line) };
    LimitNode {
        is_incomplete: false,
        location: location(line),
        requests_per_unit: Some(Located { value: 10, location: location(line) }),
        unit: Some(located("minute")),
        unit_multiplier: None,
        window: None,
        algorithm: None,
        burst: None,
        unlimited: false,
        name: (!name.is_empty()).then(|| located(name)),
        replaces: replaces.iter().map(|name| located(name)).collect(),
    }
}

/// The node with a limit of this name that replaces others.
fn limited(mut node: DescriptorNode, name: &str, replaces: &[&str]) -> DescriptorNode {
    let limit = limit_node(node.location.line, name, replaces);
    node.limits = Some(NodeLimits::One(Box::new(limit)));
    node
}

fn rule(line: usize, name: &str) -> DescriptorNode {
    limited(node(line, name, vec![]), "", &[])
}

fn unlimited(line: usize, name: &str) -> DescriptorNode {
    let mut node = rule(line, name);
    let limit = LimitNode {
        unlimited: true,
        unit: None,
        requests_per_unit: None,
        ..limit_node(line, "", &[])
    };
    node.limits = Some(NodeLimits::One(Box::new(limit)));
    node
}

fn compiled(descriptors: Vec<DescriptorNode>, modes: Modes) -> RuleSet {
    let file = LimitsFile {
        location: location(1),
        domain: Located { value: "api".to_owned(), location: location(1) },
        tenant: None,
        counting: None,
        on_failure: None,
        algorithm: None,
        response_body: None,
        descriptors,
    };
    compile(&[file], &CompileOptions { modes, ..CompileOptions::default() }, Report::default())
        .unwrap()
}

fn rules(descriptors: Vec<DescriptorNode>) -> RuleSet {
    compiled(descriptors, Modes::default())
}

// === Requests ===

type Pairs = [(&'static str, &'static str)];

/// A descriptor with entries that the test owns.
#[derive(Clone, Debug)]
struct TestDescriptor {
    pairs: Vec<(&'static str, &'static str)>,
    hits: Hits,
    limit_override: Option<LimitOverride>,
}

fn descriptor(pairs: &Pairs) -> TestDescriptor {
    TestDescriptor { pairs: pairs.to_vec(), hits: Hits::Add(1), limit_override: None }
}

fn request<'a>(domain: &'a str, descriptors: &'a [TestDescriptor]) -> Request<'a> {
    let describe = |descriptor: &'a TestDescriptor| Descriptor {
        entries: descriptor
            .pairs
            .iter()
            .map(|(key, value)| Entry { key: key.as_bytes(), value: value.as_bytes() })
            .collect(),
        hits: descriptor.hits,
        limit_override: descriptor.limit_override,
    };
    Request::new(domain, descriptors, usize::MAX, |descriptor| descriptor.pairs.len(), describe)
        .unwrap()
}

fn explained<R>(
    rules: &RuleSet,
    pairs: &Pairs,
    look: impl FnOnce(&ExplainedDescriptor<'_>) -> R,
) -> R {
    let descriptors = [descriptor(pairs)];
    look(&Explanation::new(rules, &request("api", &descriptors)).descriptors[0])
}

/// Name, line and outcome of each candidate of the last level.
fn last_level(explained: &ExplainedDescriptor<'_>) -> Vec<(String, usize, CandidateOutcome)> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let level = explained.trace.as_ref().unwrap().levels.last().unwrap();
    let seen = level.candidates.iter().map(|it| {
        let value = it.value.map(|value| format!("={}", text(value))).unwrap_or_default();
        (text(it.key) + &value, it.location.line, it.outcome)
    });
    seen.collect()
}

fn candidates(rules: &RuleSet, pairs: &Pairs) -> Vec<(String, usize, CandidateOutcome)> {
    explained(rules, pairs, last_level)
}

fn outcome(rules: &RuleSet, pairs: &Pairs) -> DescriptorOutcome {
    explained(rules, pairs, |explained| explained.outcome)
}

fn expected(
    candidates: &[(&str, usize, CandidateOutcome)],
) -> Vec<(String, usize, CandidateOutcome)> {
    candidates.iter().map(|&(name, line, fit)| (name.to_owned(), line, fit)).collect()
}

// === Candidates ===

fn one_level() -> RuleSet {
    rules(vec![
        rule(2, "path"),
        rule(3, "path=/v1/*"),
        rule(4, "path=/v1/users"),
        rule(5, "path=/v*"),
        rule(6, "path=/v2/x"),
        rule(7, "method=GET"),
    ])
}

#[test]
fn exact_value_precedes_patterns_and_the_key_alone() {
    assert_eq!(
        candidates(&one_level(), &[("path", "/v1/users")]),
        expected(&[
            ("path=/v1/users", 4, CandidateOutcome::Matched),
            ("path", 2, CandidateOutcome::ExactFirst),
            ("path=/v1/*", 3, CandidateOutcome::ExactFirst),
            ("path=/v*", 5, CandidateOutcome::ExactFirst),
            ("path=/v2/x", 6, CandidateOutcome::OtherValue),
            ("method=GET", 7, CandidateOutcome::OtherKey),
        ])
    );
}

#[test]
fn first_pattern_precedes_later_ones_and_the_key_alone() {
    assert_eq!(
        candidates(&one_level(), &[("path", "/v1/x")]),
        expected(&[
            ("path=/v1/*", 3, CandidateOutcome::Matched),
            ("path", 2, CandidateOutcome::PatternFirst),
            ("path=/v*", 5, CandidateOutcome::PatternFirst),
            ("path=/v1/users", 4, CandidateOutcome::OtherValue),
            ("path=/v2/x", 6, CandidateOutcome::OtherValue),
            ("method=GET", 7, CandidateOutcome::OtherKey),
        ])
    );
}

#[test]
fn key_alone_matches_if_no_value_or_pattern_does() {
    assert_eq!(
        candidates(&one_level(), &[("path", "/health")]),
        expected(&[
            ("path", 2, CandidateOutcome::Matched),
            ("path=/v1/*", 3, CandidateOutcome::PatternMismatch),
            ("path=/v*", 5, CandidateOutcome::PatternMismatch),
            ("path=/v1/users", 4, CandidateOutcome::OtherValue),
            ("path=/v2/x", 6, CandidateOutcome::OtherValue),
            ("method=GET", 7, CandidateOutcome::OtherKey),
        ])
    );
}

#[test]
fn value_equal_to_a_patterns_text_matches_that_pattern() {
    let seen = candidates(&one_level(), &[("path", "/v*")]);
    assert_eq!(seen[0], ("path=/v*".to_owned(), 5, CandidateOutcome::Matched));
    assert_eq!(seen[1], ("path".to_owned(), 2, CandidateOutcome::ExactFirst));
}

#[test]
fn only_the_most_similar_candidates_are_listed() {
    let mut nodes: Vec<_> =
        (0..100).map(|line| rule(line + 10, &format!("user=u{line}"))).collect();
    nodes.push(rule(1000, "user=Bob"));
    nodes.push(rule(1001, "user=bobby"));
    nodes.extend((0..50).map(|line| rule(line + 2000, &format!("k{line}"))));
    let rules = rules(nodes);
    explained(&rules, &[("user", "bob")], |explained| {
        assert_eq!(explained.outcome, DescriptorOutcome::NoMatch);
        let level = &explained.trace.as_ref().unwrap().levels[0];
        assert_eq!(
            (level.candidates.len(), level.left_out),
            (CANDIDATES_MAX, 152 - CANDIDATES_MAX)
        );
        let seen = last_level(explained);
        assert_eq!(seen[0], ("user=Bob".to_owned(), 1000, CandidateOutcome::OtherValue));
        assert_eq!(seen[1], ("user=bobby".to_owned(), 1001, CandidateOutcome::OtherValue));
        assert_eq!(seen[2], ("user=u0".to_owned(), 10, CandidateOutcome::OtherValue));
    });
    let seen = candidates(&rules, &[("K7", "bob")]);
    assert_eq!(seen[0], ("k7".to_owned(), 2007, CandidateOutcome::OtherKey));
}

#[test]
fn cancelled_explanation_stops() {
    let rules = one_level();
    let descriptors =
        [descriptor(&[("path", "/a")]), descriptor(&[("path", "/b")]), descriptor(&[("x", "y")])];
    let calls = Cell::new(0);
    let until = |last: usize| {
        calls.set(0);
        let expected = || {
            calls.set(calls.get() + 1);
            calls.get() < last
        };
        Explanation::unless_cancelled(&rules, &request("api", &descriptors), expected)
    };
    assert!(until(2).is_none());
    assert_eq!(calls.get(), 2);
    let waited_for = until(9).unwrap();
    assert_eq!(calls.get(), descriptors.len());
    let whole = Explanation::new(&rules, &request("api", &descriptors));
    assert_eq!(format!("{waited_for:?}"), format!("{whole:?}"));
}

// === Outcomes ===

#[test]
fn every_outcome_is_distinguished() {
    let rules = rules(vec![
        node(2, "tenant", vec![rule(3, "user"), node(4, "free", vec![])]),
        unlimited(5, "root"),
    ]);
    let ends = |pairs: &Pairs| outcome(&rules, pairs);
    assert_eq!(ends(&[("tenant", "a"), ("user", "b")]), DescriptorOutcome::Limited);
    assert_eq!(ends(&[("root", "a")]), DescriptorOutcome::Unlimited);
    assert_eq!(ends(&[]), DescriptorOutcome::NoEntries);
    assert_eq!(ends(&[("other", "a")]), DescriptorOutcome::NoMatch);
    assert_eq!(ends(&[("tenant", "a"), ("other", "b")]), DescriptorOutcome::NoMatch);
    assert_eq!(ends(&[("tenant", "a"), ("user", "b"), ("c", "d")]), DescriptorOutcome::TooDeep);
    assert_eq!(ends(&[("tenant", "a")]), DescriptorOutcome::TooShallow);
    assert_eq!(ends(&[("tenant", "a"), ("free", "b")]), DescriptorOutcome::NoLimit);
    explained(&rules, &[("tenant", "a"), ("user", "b"), ("c", "d")], |explained| {
        assert_eq!(explained.trace.as_ref().unwrap().levels.len(), 2);
    });

    let descriptors = [descriptor(&[("tenant", "a")])];
    let elsewhere = Explanation::new(&rules, &request("elsewhere", &descriptors));
    assert_eq!(elsewhere.descriptors[0].outcome, DescriptorOutcome::DomainNotConfigured);
    assert!(elsewhere.descriptors[0].trace.is_none());
    assert_eq!(outcome(&self::rules(vec![]), &[("a", "b")]), DescriptorOutcome::NoMatch);
}

#[test]
fn replaced_limits_name_the_replacing_rule() {
    let mut several = node(4, "plan", vec![]);
    let hourly = LimitNode {
        window: Some(Located { value: Duration::from_secs(7200), location: location(5) }),
        unit: None,
        ..limit_node(5, "hourly", &[])
    };
    several.limits =
        Some(NodeLimits::Several(location(4), vec![limit_node(4, "base", &[]), hourly]));
    let rules = rules(vec![
        limited(node(2, "user", vec![]), "base", &[]),
        limited(node(3, "vip", vec![]), "", &["base"]),
        several,
    ]);
    let descriptors =
        [descriptor(&[("user", "a")]), descriptor(&[("vip", "a")]), descriptor(&[("plan", "a")])];
    let explanation = Explanation::new(&rules, &request("api", &descriptors));
    let outcomes: Vec<_> = explanation.descriptors.iter().map(|it| it.outcome).collect();
    assert_eq!(
        outcomes,
        [DescriptorOutcome::Replaced, DescriptorOutcome::Limited, DescriptorOutcome::Limited]
    );
    for (position, applied) in [(0, &[][..]), (2, &["hourly"])] {
        let explained = &explanation.descriptors[position];
        let replaced: Vec<_> = explained
            .replaced_limits
            .iter()
            .map(|it| (it.name, it.replaced_by.location.line))
            .collect();
        assert_eq!(replaced, [("base", 3)]);
        let names: Vec<_> = explained.limits.iter().filter_map(|limit| limit.name).collect();
        assert_eq!(names, applied);
    }

    // An overridden rule replaces nothing.
    let overridden = TestDescriptor {
        limit_override: Some(limit_override(Some(Unit::Hour))),
        ..descriptors[1].clone()
    };
    let descriptors = [descriptors[0].clone(), overridden];
    let explanation = Explanation::new(&rules, &request("api", &descriptors));
    assert_eq!(explanation.descriptors[0].outcome, DescriptorOutcome::Limited);
    assert!(explanation.descriptors[0].replaced_limits.is_empty());
}

fn limit_override(unit: Option<Unit>) -> LimitOverride {
    LimitOverride { requests_per_unit: 3, unit, unit_multiplier: None }
}

#[test]
fn override_is_explained() {
    let rules = rules(vec![limited(node(2, "user", vec![]), "base", &[])]);
    let with = |unit, pairs: &Pairs| {
        let descriptors =
            [TestDescriptor { limit_override: Some(limit_override(unit)), ..descriptor(pairs) }];
        let explanation = Explanation::new(&rules, &request("api", &descriptors));
        let explained = &explanation.descriptors[0];
        let requests: Vec<_> =
            explained.limits.iter().map(|limit| limit.displayed.requests_per_unit).collect();
        (explained.outcome, requests, explained.override_ignored, explained.rule.is_some())
    };
    assert_eq!(
        with(Some(Unit::Hour), &[("user", "a")]),
        (DescriptorOutcome::Overridden, vec![3], false, true)
    );
    assert_eq!(
        with(Some(Unit::Hour), &[("x", "a")]),
        (DescriptorOutcome::Overridden, vec![3], false, false)
    );
    assert_eq!(with(None, &[("user", "a")]), (DescriptorOutcome::Limited, vec![10], true, true));
    assert_eq!(with(None, &[("x", "a")]), (DescriptorOutcome::NoMatch, vec![], true, false));
}

#[test]
fn modes_of_the_rule_and_of_all_rules_are_explained() {
    let modes_of = |shadow_mode, quota_mode, modes| {
        let rule = DescriptorNode { shadow_mode, quota_mode, ..rule(2, "user") };
        explained(&compiled(vec![rule], modes), &[("user", "a")], |explained| {
            (explained.limits[0].shadow_mode, explained.limits[0].quota_mode)
        })
    };
    let none = Modes::default();
    assert_eq!(modes_of(false, false, none), (false, false));
    assert_eq!(modes_of(true, false, none), (true, false));
    assert_eq!(modes_of(false, true, none), (false, true));
    assert_eq!(modes_of(true, true, none), (true, true));
    assert_eq!(modes_of(false, false, Modes { shadow_mode: true, ..none }), (true, false));
    assert_eq!(modes_of(false, false, Modes { quota_mode: true, ..none }), (false, true));
}

// === Peeks ===

fn peek_plan(rules: &RuleSet, descriptors: &[TestDescriptor]) -> PeekPlan {
    PeekPlan::new(&Explanation::new(rules, &request("api", descriptors)))
}

#[test]
fn peeks_need_the_hits_of_the_request_and_charge_nothing() {
    for (counting, hits, expected) in [
        (Counting::Free, Hits::Add(1), Charge::IfAllowed(0)),
        (Counting::Free, Hits::Add(0), Charge::IfAllowed(0)),
        (Counting::Free, Hits::Add(7), Charge::Always { hits: 0, needs: 7 }),
        (Counting::Debit, Hits::Add(7), Charge::IfAllowed(0)),
        (Counting::Upstream, Hits::Add(7), Charge::Always { hits: 0, needs: 7 }),
        (Counting::Free, Hits::Refund(7), Charge::IfAllowed(0)),
    ] {
        let counting = Some(Located { value: counting, location: location(2) });
        let rules = rules(vec![DescriptorNode { counting, ..rule(2, "user") }]);
        let descriptors = [TestDescriptor { hits, ..descriptor(&[("user", "a")]) }];
        let peeks = peek_plan(&rules, &descriptors).peeks();
        assert_eq!(peeks.iter().map(|check| check.charge).collect::<Vec<_>>(), [expected]);
        assert!(!peeks[0].charge.adds_hits());
    }
}

#[test]
fn peeks_of_one_counter_add_the_hits_of_earlier_checks() {
    let needs = |counting, descriptors: &[(&'static str, Hits)]| {
        let counting = Some(Located { value: counting, location: location(2) });
        let rules = rules(vec![DescriptorNode { counting, ..rule(2, "user") }]);
        let descriptors: Vec<_> = descriptors
            .iter()
            .map(|&(user, hits)| TestDescriptor { hits, ..descriptor(&[("user", user)]) })
            .collect();
        let peeks = peek_plan(&rules, &descriptors).peeks();
        let needs = peeks.iter().map(|check| match check.charge {
            Charge::IfAllowed(0) => 1,
            Charge::Always { hits: 0, needs } => needs,
            other => panic!("{other:?}"),
        });
        needs.collect::<Vec<_>>()
    };
    let add = Hits::Add;
    let three = [("bob", add(3)), ("eve", add(2)), ("bob", add(3)), ("bob", add(0))];
    assert_eq!(needs(Counting::Free, &three), [3, 2, 6, 7]);
    assert_eq!(needs(Counting::Upstream, &three), [3, 2, 6, 7]);
    // A debit needs one hit, and charges all.
    assert_eq!(needs(Counting::Debit, &three), [1, 1, 4, 7]);
    // It is not known how many hits a refund frees.
    let back = [("bob", Hits::Refund(9)), ("bob", add(3))];
    assert_eq!(needs(Counting::Free, &back), [1, 3]);
    let most = [("bob", add(u64::MAX)), ("bob", add(3))];
    assert_eq!(needs(Counting::Free, &most), [u64::MAX, u64::MAX]);
}

fn answer(allowed: bool) -> Result<Decision, StoreError> {
    Ok(Decision {
        allowed,
        charged: 0,
        remaining: u64::from(allowed),
        excess: 0,
        reset_after: Duration::ZERO,
        retry_after: allowed.then_some(Duration::ZERO),
        receipt: None,
        source: DecisionSource::Store,
    })
}

#[test]
fn would_pass_is_none_only_if_it_depends_on_an_error() {
    let rules = rules(vec![
        rule(2, "a"),
        DescriptorNode { shadow_mode: true, ..rule(3, "shadow") },
        DescriptorNode { quota_mode: true, ..rule(4, "q") },
        DescriptorNode { quota_mode: true, ..rule(5, "r") },
    ]);
    let (yes, no, unknown) = (answer(true), answer(false), Err(StoreError::Unavailable));
    let would = |keys: &[&'static str], answers: &[Result<Decision, StoreError>]| {
        let descriptors: Vec<_> = keys.iter().map(|key| descriptor(&[(*key, "1")])).collect();
        peek_plan(&rules, &descriptors).would_pass(&Answers::from_slice(answers))
    };
    assert_eq!(would(&["none"], &[]), Some(true));
    assert_eq!(would(&["a"], &[yes]), Some(true));
    assert_eq!(would(&["a"], &[no]), Some(false));
    assert_eq!(would(&["a"], &[unknown]), None);
    assert_eq!(would(&["a"], &[]), None);
    assert_eq!(would(&["a", "a"], &[no, unknown]), Some(false));
    assert_eq!(would(&["shadow"], &[no]), Some(true));
    assert_eq!(would(&["shadow"], &[unknown]), Some(true));
    assert_eq!(would(&["q", "r"], &[no, yes]), Some(true));
    assert_eq!(would(&["q", "r"], &[no, no]), Some(false));
    assert_eq!(would(&["q", "r"], &[yes, unknown]), Some(true));
    assert_eq!(would(&["q", "r"], &[no, unknown]), None);

    let all_shadow = Modes { shadow_mode: true, ..Modes::default() };
    let simulated = compiled(vec![rule(2, "a")], all_shadow);
    let one = [descriptor(&[("a", "1")])];
    let refused = Answers::from_slice(&[no]);
    assert_eq!(peek_plan(&simulated, &one).would_pass(&refused), Some(true));
    // A refund is never refused.
    let back = [TestDescriptor { hits: Hits::Refund(1), ..descriptor(&[("a", "1")]) }];
    assert_eq!(peek_plan(&rules, &back).would_pass(&refused), Some(true));
    assert!(
        peek_plan(&rules, &back)
            .peeks()
            .iter()
            .all(|check| check.refusal_scope == RefusalScope::None)
    );
}
