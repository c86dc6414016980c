//! `metadata` of rules: a free map from the limits file, for dynamic metadata of responses.

use std::collections::BTreeMap;

/// Values by name, in the order of the names.
pub type Map = BTreeMap<Box<str>, Value>;

/// A JSON value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Nothing.
    Null,
    /// True or false.
    Bool(bool),
    /// A number.
    Number(f64),
    /// A text.
    Text(Box<str>),
    /// Values in order.
    List(Vec<Self>),
    /// Values by name.
    Map(Map),
}

/// Adds values of `more` that `into` lacks, also in nested maps. On a conflict `into` keeps its value.
pub fn merge(into: &mut Map, more: &Map) {
    for (name, value) in more {
        match (into.get_mut(name), value) {
            (None, _) => _ = into.insert(name.clone(), value.clone()),
            (Some(Value::Map(into)), Value::Map(more)) => merge(into, more),
            (Some(_), _) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Map, Value, merge};

    fn map(entries: impl IntoIterator<Item = (&'static str, Value)>) -> Map {
        entries.into_iter().map(|(name, value)| (name.into(), value)).collect()
    }

    #[test]
    fn the_first_wins_a_conflict_and_maps_are_merged_in_depth() {
        let mut into = map([
            ("plan", Value::Text("gold".into())),
            ("quota", Value::Map(map([("group", Value::Number(1.0))]))),
        ]);
        let more = map([
            ("plan", Value::Text("free".into())),
            ("quota", Value::Map(map([("group", Value::Null), ("cell", Value::Bool(true))]))),
            ("regions", Value::List(vec![Value::Null])),
        ]);
        merge(&mut into, &more);
        let quota = map([("group", Value::Number(1.0)), ("cell", Value::Bool(true))]);
        let expected = map([
            ("plan", Value::Text("gold".into())),
            ("quota", Value::Map(quota)),
            ("regions", Value::List(vec![Value::Null])),
        ]);
        assert_eq!(into, expected);
    }
}
