//! YAML as a value that serde reads.

use saphyr::{LoadableYamlNode as _, Scalar, Yaml};
use serde_json::{Map, Number, Value};

/// The one document of a file.
///
/// # Panics
/// It is no YAML, or has what JSON has not.
pub(crate) fn read(name: &str, text: &str) -> Value {
    let documents = Yaml::load_from_str(text).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(documents.len(), 1, "{name} holds one document");
    value(name, &documents[0])
}

fn value(name: &str, node: &Yaml<'_>) -> Value {
    match node {
        Yaml::Value(Scalar::Null) => Value::Null,
        Yaml::Value(Scalar::Boolean(it)) => Value::Bool(*it),
        Yaml::Value(Scalar::Integer(it)) => Value::Number((*it).into()),
        Yaml::Value(Scalar::FloatingPoint(it)) => {
            Value::Number(Number::from_f64(it.0).expect("a number that JSON has"))
        }
        Yaml::Value(Scalar::String(it)) => Value::String(it.as_ref().to_owned()),
        Yaml::Sequence(nodes) => nodes.iter().map(|node| value(name, node)).collect(),
        Yaml::Mapping(pairs) => {
            let mut map = Map::new();
            for (key, node) in pairs {
                let Value::String(key) = value(name, key) else {
                    panic!("{name}: {key:?} is no text, as a key must be")
                };
                map.insert(key, value(name, node));
            }
            Value::Object(map)
        }
        other => panic!("{name}: {other:?} has no place in a case"),
    }
}

/// Puts the part under `chosen` in the place of every map that has a part for each of `all` and nothing else.
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
fn what_differs_is_chosen_at_any_depth() {
    let value = read("test", "a: [{free: {x: 1}, upstream: 2}]\nfree: 3\n");
    let chosen = |mode| choose(value.clone(), &["free", "upstream"], mode).to_string();
    assert_eq!(chosen("free"), r#"{"a":[{"x":1}],"free":3}"#);
    assert_eq!(chosen("upstream"), r#"{"a":[2],"free":3}"#);
}
