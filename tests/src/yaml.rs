//! YAML as a value that serde reads.

use saphyr::{LoadableYamlNode as _, Scalar, Yaml};
use serde_json::{Map, Number, Value};

/// The one document of a file.
///
/// # Panics
/// It is no YAML, or has what JSON has not.
#[must_use]
pub fn read(name: &str, text: &str) -> Value {
    let mut documents = read_all(name, text);
    assert_eq!(documents.len(), 1, "{name} holds one document");
    documents.remove(0)
}

/// Every document of a file.
///
/// # Panics
/// It is no YAML, or has what JSON has not.
#[must_use]
pub fn read_all(name: &str, text: &str) -> Vec<Value> {
    let documents = Yaml::load_from_str(text).unwrap_or_else(|error| panic!("{name}: {error}"));
    documents.iter().map(|document| value(name, document)).collect()
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
        other => panic!("{name}: {other:?} has no place in JSON"),
    }
}
