//! `metadata` of rules: a map with any content in the limits file, which responses carry as dynamic metadata.

use std::collections::BTreeMap;

/// A map of JSON values, sorted by name.
pub type Map = BTreeMap<Box<str>, Value>;

/// A JSON value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `null`.
    Null,
    /// A boolean.
    Bool(bool),
    /// A number.
    Number(f64),
    /// A string.
    Text(Box<str>),
    /// An array.
    List(Vec<Self>),
    /// An object.
    Map(Map),
}

/// Adds the values of `more` that `into` lacks, also in nested maps. If both have a value, that of `into` stays.
pub fn add_missing(into: &mut Map, more: &Map) {
    for (name, value) in more {
        match (into.get_mut(name), value) {
            (None, _) => _ = into.insert(name.clone(), value.clone()),
            (Some(Value::Map(into)), Value::Map(more)) => add_missing(into, more),
            (Some(_), _) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Map, Value, add_missing};

    fn map(entries: impl IntoIterator<Item = (&'static str, Value)>) -> Map {
        entries.into_iter().map(|(name, value)| (name.into(), value)).collect()
    }

    #[test]
    fn add_missing_keeps_existing_values_and_merges_nested_maps() {
        let mut into = map([
            ("plan", Value::Text("gold".into())),
            ("quota", Value::Map(map([("group", Value::Number(1.0))]))),
        ]);
        let more = map([
            ("plan", Value::Text("free".into())),
            ("quota", Value::Map(map([("group", Value::Null), ("cell", Value::Bool(true))]))),
            ("regions", Value::List(vec![Value::Null])),
        ]);
        add_missing(&mut into, &more);
        let quota = map([("group", Value::Number(1.0)), ("cell", Value::Bool(true))]);
        let expected = map([
            ("plan", Value::Text("gold".into())),
            ("quota", Value::Map(quota)),
            ("regions", Value::List(vec![Value::Null])),
        ]);
        assert_eq!(into, expected);
    }
}
