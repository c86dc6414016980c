//! YAML values that differ by mode.

use serde_json::Value;
pub(crate) use sluicegate_tests::yaml::read;

/// Replaces every map whose keys are exactly `all` by its value for `chosen`.
pub(crate) fn choose(node: Value, all: &[&str], chosen: &str) -> Value {
    match node {
        Value::Object(mut map)
            if map.len() == all.len() && all.iter().all(|it| map.contains_key(*it)) =>
        {
            choose(map.remove(chosen).unwrap_or_default(), all, chosen)
        }
        Value::Object(map) => {
            map.into_iter().map(|(key, node)| (key, choose(node, all, chosen))).collect()
        }
        Value::Array(nodes) => nodes.into_iter().map(|node| choose(node, all, chosen)).collect(),
        scalar => scalar,
    }
}

#[test]
fn values_by_mode_are_chosen_at_any_depth() {
    let value = read("test", "a: [{free: {x: 1}, upstream: 2}]\nfree: 3\n");
    let chosen = |mode| choose(value.clone(), &["free", "upstream"], mode).to_string();
    assert_eq!(chosen("free"), r#"{"a":[{"x":1}],"free":3}"#);
    assert_eq!(chosen("upstream"), r#"{"a":[2],"free":3}"#);
}
