//! Converts YAML to JSON values.

use saphyr::{LoadableYamlNode as _, Scalar, Yaml};
use serde_json::{Map, Number, Value};

/// Reads a file with one document. `name` is for panic messages.
///
/// # Panics
/// The text is not YAML, or has values that JSON lacks.
#[must_use]
pub fn read(name: &str, text: &str) -> Value {
    let mut documents = read_all(name, text);
    assert_eq!(documents.len(), 1, "{name} holds one document");
    documents.remove(0)
}

/// Reads every document of a file.
///
/// # Panics
/// The text is not YAML, or has values that JSON lacks.
#[must_use]
pub fn read_all(name: &str, text: &str) -> Vec<Value> {
    all(text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Reads the first document of a file; null if the file is empty.
///
/// # Errors
/// The text is not YAML, or has values that JSON lacks.
pub fn first(text: &str) -> Result<Value, String> {
    Ok(all(text)?.into_iter().next().unwrap_or_default())
}

fn all(text: &str) -> Result<Vec<Value>, String> {
    let documents = Yaml::load_from_str(text).map_err(|error| error.to_string())?;
    documents.iter().map(value).collect()
}

fn value(node: &Yaml<'_>) -> Result<Value, String> {
    Ok(match node {
        Yaml::Value(Scalar::Null) => Value::Null,
        Yaml::Value(Scalar::Boolean(it)) => Value::Bool(*it),
        Yaml::Value(Scalar::Integer(it)) => Value::Number((*it).into()),
        Yaml::Value(Scalar::FloatingPoint(it)) => {
            Value::Number(Number::from_f64(it.0).ok_or("a number that JSON has not")?)
        }
        Yaml::Value(Scalar::String(it)) => Value::String(it.as_ref().to_owned()),
        Yaml::Sequence(nodes) => nodes.iter().map(value).collect::<Result<_, _>>()?,
        Yaml::Mapping(pairs) => {
            let mut map = Map::new();
            for (key, node) in pairs {
                let Value::String(key) = value(key)? else {
                    return Err(format!("{key:?} is no text, as a key must be"));
                };
                map.insert(key, value(node)?);
            }
            Value::Object(map)
        }
        other => return Err(format!("{other:?} has no place in JSON")),
    })
}
