//! Reads `metadata`: a map of any JSON values.

use granit_parser::ScalarStyle;
use sluicegate_core::metadata::{self, Value};

use super::{
    location::FileLocation,
    node::{YamlNode, YamlNodeData},
    reader::{Fields, Reader},
    scalar::{is_not_text, is_null, plain_value, scalar},
};

impl Reader<'_> {
    pub(super) fn metadata(&mut self, of: &Fields<'_, '_>) -> Option<metadata::Map> {
        let (location, node) = of.get("metadata").filter(|(_, node)| !is_null(node))?;
        match self.any_value(&location, node)? {
            Value::Map(map) => Some(map),
            _ => {
                self.wrong_type(&location, node, "a map");
                None
            }
        }
    }

    /// Reads a value of any type; `None` if it has a mistake, which is reported.
    fn any_value(&mut self, location: &FileLocation, node: &YamlNode<'_>) -> Option<Value> {
        match &node.data {
            YamlNodeData::List(nodes) => {
                let values = nodes.iter().enumerate().map(|(index, node)| {
                    self.any_value(&FileLocation::of(node, location.path.index(index)), node)
                });
                collect_all(values).map(Value::List)
            }
            YamlNodeData::Map(nodes) => {
                let mut merged = Vec::new();
                let entries: Vec<_> = nodes
                    .iter()
                    .filter_map(|(key, value)| {
                        let at = FileLocation::of(key, location.path.clone());
                        if let Some(("<<", ScalarStyle::Plain)) = scalar(key) {
                            merged.push((at, value));
                            return None;
                        }
                        Some(
                            self.metadata_key(&at, key)
                                .zip(self.any_value(&value_location(location, key), value)),
                        )
                    })
                    .collect();
                let mut map: metadata::Map = collect_all(entries.into_iter())?;
                for (at, node) in merged {
                    self.merge(&mut map, &at, node)?;
                }
                Some(Value::Map(map))
            }
            _ => match scalar(node) {
                _ if is_null(node) => Some(Value::Null),
                Some((text, ScalarStyle::Plain)) => {
                    let value = plain_value(text);
                    if value.is_none() {
                        self.wrong_type(location, node, "a finite number, or a text in quotes");
                    }
                    value
                }
                Some((text, _)) => Some(Value::Text(text.into())),
                None => {
                    self.wrong_type(
                        location,
                        node,
                        "a text, a number, true or false, a list or a map",
                    );
                    None
                }
            },
        }
    }

    /// Reads a key, which must be a text, as in JSON; `None` if it is not, which is reported.
    fn metadata_key(&mut self, at: &FileLocation, key: &YamlNode<'_>) -> Option<Box<str>> {
        match scalar(key) {
            Some(_) if is_not_text(key) => {
                self.wrong_type(at, key, "the key in quotes");
                None
            }
            Some((name, _)) => Some(name.into()),
            None => {
                self.wrong_type(at, key, "a text as the key");
                None
            }
        }
    }

    /// Adds the entries of a map, or of a list of maps, under `<<` that `into` lacks. `None` if it has a mistake, which
    /// is reported.
    fn merge(
        &mut self,
        into: &mut metadata::Map,
        at: &FileLocation,
        node: &YamlNode<'_>,
    ) -> Option<()> {
        let nodes = match &node.data {
            YamlNodeData::List(nodes) => nodes,
            _ => std::slice::from_ref(node),
        };
        for node in nodes {
            let Value::Map(more) = self.any_value(at, node)? else {
                self.wrong_type(at, node, "a map");
                return None;
            };
            for (name, value) in more {
                into.entry(name).or_insert(value);
            }
        }
        Some(())
    }
}

/// Location of the value of a key.
fn value_location(location: &FileLocation, key: &YamlNode<'_>) -> FileLocation {
    FileLocation::of(key, location.path.key("*"))
}

/// All values; `None` if one is missing. Unlike `collect`, evaluates the values after a missing one too, so that every
/// mistake is reported.
fn collect_all<T, C: FromIterator<T>>(values: impl Iterator<Item = Option<T>>) -> Option<C> {
    let values: Vec<_> = values.collect();
    values.into_iter().collect()
}
