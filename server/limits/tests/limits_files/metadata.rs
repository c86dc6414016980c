//! `metadata` keeps the values of the limits file.

use sluicegate_core::metadata::{Map, Value};

use super::{find, rules};

/// The metadata of a rule, written as the value of the key.
fn metadata(yaml: &str) -> Map {
    let text = format!(
        "domain: d\ndescriptors:\n  - key: k\n    rate_limit: {{unit: day, requests_per_unit: 1}}\n    metadata: {yaml}\n"
    );
    find(&rules("a.yaml", &text), "k=v").unwrap().metadata.clone().unwrap()
}

fn text(text: &str) -> Value {
    Value::Text(text.into())
}

#[test]
fn values_keep_their_type() {
    let numbers = [
        ("1", 1.0),
        ("-1.5", -1.5),
        ("+2", 2.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("1e3", 1_000.0),
        ("1_000", 1_000.0),
        ("0x1F", 31.0),
        ("0o17", 15.0),
        ("017", 15.0),
        ("-0b11", -3.0),
        ("089", 89.0),
        ("0", 0.0),
        ("9007199254740993", 9_007_199_254_740_992.0),
    ];
    let numbers = numbers.map(|(yaml, number)| (yaml, Value::Number(number)));
    let words = [
        ("true", Value::Bool(true)),
        ("Yes", Value::Bool(true)),
        ("on", Value::Bool(true)),
        ("OFF", Value::Bool(false)),
        ("n", Value::Bool(false)),
        ("null", Value::Null),
        ("~", Value::Null),
        ("", Value::Null),
        ("'1'", text("1")),
        ("\"no\"", text("no")),
        ("!!str 1", text("1")),
        ("gold", text("gold")),
        ("1.2.3", text("1.2.3")),
        ("1-2", text("1-2")),
        ("12ab", text("12ab")),
        ("0x", text("0x")),
        ("inf", text("inf")),
        ("NaN", text("NaN")),
        ("-", text("-")),
        ("2026-11-21", text("2026-11-21")),
    ];
    for (yaml, expected) in numbers.into_iter().chain(words) {
        let yaml = if yaml == "-" { "'-'" } else { yaml };
        assert_eq!(metadata(&format!("{{a: {yaml}}}"))["a"], expected, "{yaml}");
    }
}

#[test]
fn maps_and_lists_nest_and_merge() {
    let yaml = "
      plan: &plan {name: gold, unit: parsec}
      regions: [eu, 1, [null, {deep: true}]]
      other: {<<: *plan, name: silver}
      several: {<<: [{a: 1}, {a: 2, b: 2}]}
      empty: {}";
    let metadata = metadata(yaml);
    let map = |entries: &[(&str, Value)]| {
        Value::Map(entries.iter().map(|(name, value)| ((*name).into(), value.clone())).collect())
    };
    assert_eq!(metadata["plan"], map(&[("name", text("gold")), ("unit", text("parsec"))]));
    assert_eq!(metadata["other"], map(&[("name", text("silver")), ("unit", text("parsec"))]));
    assert_eq!(metadata["several"], map(&[("a", Value::Number(1.0)), ("b", Value::Number(2.0))]));
    assert_eq!(metadata["empty"], map(&[]));
    let deep = Value::List(vec![Value::Null, map(&[("deep", Value::Bool(true))])]);
    assert_eq!(metadata["regions"], Value::List(vec![text("eu"), Value::Number(1.0), deep]));
}
