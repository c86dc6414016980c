//! Differences of rule sets.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;

use sluicegate_core::{
    Algorithm, Counting, OnFailure, ResponseBody,
    metadata::Value,
    rules::{
        Change, ChangeCounts, CompileOptions, DescriptorNode, LimitNode, LimitsFile, Located,
        NodeLimits, NodePath, Report, RuleSet, SourceLocation, compile, diff,
    },
};

fn location() -> SourceLocation {
    SourceLocation { file: Arc::from("limits.yaml"), line: 1, column: 1, path: NodePath::default() }
}

fn located<T>(value: T) -> Located<T> {
    Located { value, location: location() }
}

/// A descriptor of `key` or `key=value`, without a limit.
fn node(name: &str) -> DescriptorNode {
    let (key, value) = name.split_once('=').map_or((name, None), |(key, value)| (key, Some(value)));
    DescriptorNode {
        location: location(),
        key: key.to_owned(),
        value: value.map(|value| located(value.to_owned())),
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
        descriptors: Vec::new(),
    }
}

/// A preset.
fn body(preset: &str) -> Option<Located<Option<Arc<ResponseBody>>>> {
    Some(located(ResponseBody::preset(preset).map(Arc::new)))
}

/// A limit of requests per minute.
fn limit(requests: u32) -> LimitNode {
    LimitNode {
        is_incomplete: false,
        location: location(),
        requests_per_unit: Some(located(requests)),
        unit: Some(located("minute".to_owned())),
        unit_multiplier: None,
        window: None,
        algorithm: None,
        burst: None,
        unlimited: false,
        name: None,
        replaces: Vec::new(),
    }
}

fn one(limit: LimitNode) -> Option<NodeLimits> {
    Some(NodeLimits::One(Box::new(limit)))
}

/// A descriptor that allows ten requests per minute.
fn ten(name: &str) -> DescriptorNode {
    DescriptorNode { limits: one(limit(10)), ..node(name) }
}

fn below(name: &str, descriptors: Vec<DescriptorNode>) -> DescriptorNode {
    DescriptorNode { descriptors, ..node(name) }
}

fn file(domain: &str, descriptors: Vec<DescriptorNode>) -> LimitsFile {
    LimitsFile {
        location: location(),
        domain: located(domain.to_owned()),
        tenant: None,
        counting: None,
        on_failure: None,
        algorithm: None,
        response_body: None,
        descriptors,
    }
}

fn compiled(files: &[LimitsFile]) -> RuleSet {
    compile(files, &CompileOptions::default(), Report::default()).unwrap()
}

/// All changes between the descriptors of one domain, one per line.
fn changed(old: Vec<DescriptorNode>, new: Vec<DescriptorNode>) -> String {
    lines(&diff(&compiled(&[file("d", old)]), &compiled(&[file("d", new)])))
}

fn lines(changes: &[Change]) -> String {
    changes.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn equal_rules_do_not_differ() {
    let tree = || vec![ten("a=x*"), ten("a"), below("b", vec![ten("c")])];
    assert_eq!(changed(tree(), tree()), "");
    // Only patterns have an order.
    assert_eq!(changed(tree(), tree().into_iter().rev().collect()), "");
    let files = |names: [&str; 2]| compiled(&names.map(|name| file(name, tree())));
    assert_eq!(diff(&files(["d", "e"]), &files(["e", "d"])), []);
}

#[test]
fn rules_are_added_and_removed() {
    assert_eq!(
        changed(
            vec![ten("a"), below("b", vec![ten("c")])],
            vec![ten("b"), below("e", vec![ten("c"), ten("c=x")]), node("f")]
        ),
        "\
removed d: a: 10 per minute (fixed_window)
changed d: b: limit none -> 10 per minute (fixed_window)
removed d: b.c: 10 per minute (fixed_window)
added d: e.c: 10 per minute (fixed_window)
added d: e.c=x: 10 per minute (fixed_window)
added d: f: no limit"
    );
}

#[test]
fn node_without_limit_is_a_change_if_it_has_siblings() {
    assert_eq!(
        changed(vec![ten("a")], vec![ten("a"), below("a=x", vec![ten("b")])]),
        "\
added d: a=x: no limit
added d: a=x.b: 10 per minute (fixed_window)"
    );
}

#[test]
fn domains_are_added_removed_and_changed() {
    let old = compiled(&[file("gone", vec![ten("a")]), file("stays", vec![ten("a")])]);
    let new = LimitsFile {
        tenant: Some(located("a".to_owned())),
        counting: Some(located(Counting::Upstream)),
        on_failure: Some(located(OnFailure::Deny)),
        response_body: body("anthropic"),
        algorithm: Some(located(Algorithm::SlidingWindowCounter)),
        ..file("stays", vec![ten("a")])
    };
    let new = compiled(&[new, file("new", vec![ten("a")])]);
    let changes = diff(&old, &new);
    assert_eq!(
        lines(&changes),
        "\
removed gone: a domain of 1 rules
removed gone: a: 10 per minute (fixed_window)
added new: a domain of 1 rules
added new: a: 10 per minute (fixed_window)
changed stays: tenant none -> a; counters restart
changed stays: response_body none -> anthropic
changed stays: defaults.algorithm fixed_window -> sliding_window_counter
changed stays: counting free -> upstream
changed stays: on_failure local -> deny
changed stays: a: algorithm fixed_window -> sliding_window_counter; counters restart
changed stays: a: counting free -> upstream
changed stays: a: on_failure local -> deny
changed stays: a: response_body none -> anthropic"
    );
    let counts = ChangeCounts { added: 2, removed: 2, changed: 2, resetting: 2 };
    assert_eq!(ChangeCounts::of(&changes), counts);
    assert_eq!(counts.to_string(), "2 added, 2 removed, 2 changed, 2 restart counters");
}

/// An edit, and the expected line.
type Case<T> = (fn(&mut T), &'static str);

#[test]
fn every_key_of_a_rule_is_compared() {
    let edited = |edit: fn(&mut DescriptorNode)| {
        let mut new = ten("a=x*");
        edit(&mut new);
        changed(vec![ten("a=x*")], vec![new])
    };
    let limited = |edit: fn(&mut LimitNode)| {
        let mut new = limit(10);
        edit(&mut new);
        changed(vec![ten("a=x*")], vec![DescriptorNode { limits: one(new), ..node("a=x*") }])
    };
    let line = |text: &str| format!("changed d: a=x*: {text}");
    let of_rule: [Case<DescriptorNode>; 10] = [
        (|it| it.shadow_mode = true, "shadow_mode false -> true"),
        (|it| it.quota_mode = true, "quota_mode false -> true"),
        (|it| it.detailed_metric = true, "detailed_metric false -> true"),
        (|it| it.value_to_metric = true, "value_to_metric false -> true"),
        (|it| it.share_threshold = true, "share_threshold false -> true; counters restart"),
        (|it| it.counting = Some(located(Counting::Debit)), "counting free -> debit"),
        (|it| it.on_failure = Some(OnFailure::Allow), "on_failure local -> allow"),
        (|it| it.limits = None, "limit 10 per minute (fixed_window) -> none"),
        (|it| it.response_body = body("openai"), "response_body none -> openai"),
        (
            |it| {
                let list = Value::List(vec![Value::Number(1.0), Value::Bool(true), Value::Null]);
                let inner = [("b".into(), list)].into();
                let map = [("a".into(), Value::Text("x".into())), ("m".into(), Value::Map(inner))];
                it.metadata = Some(map.into());
            },
            "metadata none -> {\"a\": \"x\", \"m\": {\"b\": [1, true, null]}}",
        ),
    ];
    for (edit, expected) in of_rule {
        assert_eq!(edited(edit), line(expected));
    }
    let of_limit: [Case<LimitNode>; 8] = [
        (|it| it.requests_per_unit = Some(located(20)), "requests_per_unit 10 -> 20"),
        (
            |it| it.unit = Some(located("hour".to_owned())),
            "window minute -> hour; counters restart",
        ),
        (
            |it| it.unit_multiplier = Some(located(5)),
            "window minute -> 5 minutes; counters restart",
        ),
        (
            |it| {
                it.unit = Some(located("second".to_owned()));
                it.unit_multiplier = Some(located(60));
            },
            "window minute -> 60 seconds",
        ),
        (
            |it| it.algorithm = Some(Algorithm::Gcra),
            "algorithm fixed_window -> gcra; counters restart",
        ),
        (|it| it.name = Some(located("n".to_owned())), "name none -> \"n\""),
        (|it| it.replaces = vec![located("m".to_owned())], "replaces [] -> [\"m\"]"),
        (
            |it| {
                it.unlimited = true;
                it.unit = None;
            },
            "limit 10 per minute (fixed_window) -> unlimited",
        ),
    ];
    for (edit, expected) in of_limit {
        assert_eq!(limited(edit), line(expected));
    }
}

#[test]
fn changed_text_of_a_body_is_a_change_even_if_its_beginning_is_the_same() {
    let with = |text: &str| {
        let body = ResponseBody::compile("text/plain", text).unwrap();
        let response_body = Some(located(Some(Arc::new(body))));
        vec![DescriptorNode { response_body, ..ten("a") }]
    };
    assert_eq!(
        changed(with("{limit}\n"), with("no")),
        "changed d: a: response_body text/plain \"{limit}\\n\" -> text/plain \"no\""
    );
    let long = "x".repeat(300);
    let changes = changed(with(&long), with(&(long.clone() + "y")));
    assert!(changes.starts_with("changed d: a: response_body text/plain \"xxx"), "{changes}");
    assert_eq!(changed(with(&long), with(&long)), "");
}

#[test]
fn burst_is_shown_only_if_it_differs_from_the_requests() {
    let bucket = |requests, burst: Option<u32>| {
        let algorithm = Some(Algorithm::TokenBucket);
        let limit = LimitNode { algorithm, burst: burst.map(located), ..limit(requests) };
        vec![DescriptorNode { limits: one(limit), ..node("a") }]
    };
    assert_eq!(
        changed(bucket(10, None), bucket(20, None)),
        "changed d: a: requests_per_unit 10 -> 20"
    );
    assert_eq!(changed(bucket(10, None), bucket(10, Some(10))), "");
    assert_eq!(changed(bucket(10, None), bucket(10, Some(5))), "changed d: a: burst none -> 5");
    assert_eq!(
        changed(vec![], bucket(10, Some(5))),
        "added d: a: 10 per minute (token_bucket, burst 5)"
    );
}

#[test]
fn unlimited_rules_have_names() {
    let open = |name: &str| {
        let limit = LimitNode {
            unlimited: true,
            unit: None,
            name: Some(located(name.to_owned())),
            ..limit(10)
        };
        vec![DescriptorNode { limits: one(limit), ..node("a") }]
    };
    assert_eq!(changed(open("a"), open("b")), "changed d: a: name \"a\" -> \"b\"");
}

#[test]
fn limits_of_a_rule_are_paired_by_counter() {
    let of_unit = |requests, unit: &str| LimitNode {
        unit: Some(located(unit.to_owned())),
        ..limit(requests)
    };
    let several = |limits: Vec<LimitNode>| {
        vec![DescriptorNode { limits: Some(NodeLimits::Several(location(), limits)), ..node("a") }]
    };
    let two = || several(vec![of_unit(1, "second"), of_unit(10, "minute")]);
    assert_eq!(
        changed(
            two(),
            several(vec![of_unit(1, "second"), of_unit(20, "minute"), of_unit(99, "day")])
        ),
        "\
changed d: a: limits[1].requests_per_unit 10 -> 20
changed d: a: limits[2] none -> 99 per day (fixed_window)"
    );
    assert_eq!(
        changed(two(), several(vec![of_unit(10, "minute")])),
        "changed d: a: limits 1 per second (fixed_window) -> none"
    );
    assert_eq!(
        changed(two(), several(vec![of_unit(10, "minute"), of_unit(1, "second")])),
        "changed d: a: order of limits 1 per second (fixed_window), 10 per minute (fixed_window) -> 10 per minute (fixed_window), 1 per second (fixed_window)"
    );
    assert_eq!(
        changed(two(), several(vec![of_unit(1, "hour"), of_unit(10, "minute")])),
        "changed d: a: limits[0].window second -> hour; counters restart"
    );
    assert_eq!(changed(vec![ten("a")], several(vec![limit(10)])), "");
}

#[test]
fn moved_patterns_are_changes() {
    let patterns = |texts: &[&str]| -> Vec<_> {
        let nodes = texts.iter().map(|text| ten(&format!("k={text}"))).collect();
        vec![below("p", nodes)]
    };
    assert_eq!(
        changed(patterns(&["a*", "b", "b*", "c*"]), patterns(&["a*", "c*", "b", "b*"])),
        "changed d: p.k: order of patterns b*, c* -> c*, b*"
    );
    // Both match the same values, so their order decides which rule applies.
    assert_eq!(
        changed(patterns(&["a*", "a**"]), patterns(&["a**", "a*"])),
        "changed d: p.k: order of patterns a*, a** -> a**, a*"
    );
    // A new pattern between others does not move them.
    assert_eq!(
        changed(patterns(&["a*", "b*"]), patterns(&["a*", "c*", "b*"])),
        "added d: p.k=c*: 10 per minute (fixed_window)"
    );
    let many: Vec<String> = (10..22).map(|index| format!("{index}*")).collect();
    let texts: Vec<&str> = many.iter().map(String::as_str).collect();
    let reversed: Vec<&str> = texts.iter().copied().rev().collect();
    assert_eq!(
        changed(patterns(&texts), patterns(&reversed)),
        "changed d: p.k: order of patterns 10*, 11*, 12*, 13*, 14*, 15*, 16*, 17*, ... -> 21*, 20*, 19*, 18*, 17*, 16*, 15*, 14*, ..."
    );
}

#[test]
fn share_threshold_resets_the_counters_below() {
    let shared = |share_threshold, below: DescriptorNode| {
        vec![DescriptorNode { share_threshold, descriptors: vec![below], ..node("a=x*") }]
    };
    assert_eq!(
        changed(shared(true, ten("b")), shared(false, ten("b"))),
        "changed d: a=x*: share_threshold true -> false; counters restart"
    );
    assert_eq!(
        changed(shared(true, node("b")), shared(false, node("b"))),
        "changed d: a=x*: share_threshold true -> false"
    );
}
