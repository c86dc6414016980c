//! Flat maps: names with a scalar or a list of scalars each, as in a file of settings.

use granit_parser::ScalarStyle;
use sluicegate_core::rules::Warning;

use super::{
    node::{Node, NodeData},
    scalar::{is_null, scalar},
    shape::{self, NODES_MAX},
};

/// A name of a flat map with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlatEntry {
    /// The name; nothing where a list or a map is in the place of a name.
    pub name: Option<String>,
    /// The line of the name, from 1.
    pub line: usize,
    /// The value.
    pub value: FlatValue,
}

/// A value of a flat map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlatValue {
    /// Nothing, or `null`.
    Null,
    /// `true` or `false`, not in quotes.
    Boolean(bool),
    /// A text or a number, as it is written.
    Text(String),
    /// A list, with the line of each element.
    List(Vec<(usize, Self)>),
    /// A map.
    Map,
}

/// A mistake in a flat map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlatMistake {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong.
    pub text: String,
}

/// Reads a flat map. An empty document is an empty map.
///
/// # Errors
/// The document is not YAML or not a map, a name is there twice, or there is another document.
pub fn read_flat(text: &str) -> Result<Vec<FlatEntry>, Vec<FlatMistake>> {
    let mut mistakes = Vec::new();
    let mut nodes_left = NODES_MAX;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let loaded = shape::load(text, &mut nodes_left, |location, warning| {
        let text = match warning {
            Warning::DuplicateKey { line, .. } => format!("the name is already in line {line}"),
            warning => warning.to_string(),
        };
        mistakes.push(FlatMistake { line: location.line, text });
    });
    let root = loaded.map_err(|(location, mistake)| {
        vec![FlatMistake { line: location.line, text: mistake.to_string() }]
    })?;
    let entries = match root.as_ref().filter(|root| !is_null(root)) {
        None => Vec::new(),
        Some(Node { data: NodeData::Map(map), .. }) => map
            .iter()
            .map(|(key, value)| FlatEntry {
                name: scalar(key).map(|(text, _)| text.to_owned()),
                line: key.at.line as usize,
                value: flat(value),
            })
            .collect(),
        Some(node) => {
            let text = "the file is not a map of settings".to_owned();
            mistakes.push(FlatMistake { line: node.at.line as usize, text });
            Vec::new()
        }
    };
    if mistakes.is_empty() { Ok(entries) } else { Err(mistakes) }
}

fn flat(node: &Node<'_>) -> FlatValue {
    match (&node.data, scalar(node)) {
        _ if is_null(node) => FlatValue::Null,
        (_, Some(("true" | "True" | "TRUE", ScalarStyle::Plain))) => FlatValue::Boolean(true),
        (_, Some(("false" | "False" | "FALSE", ScalarStyle::Plain))) => FlatValue::Boolean(false),
        (_, Some((text, _))) => FlatValue::Text(text.to_owned()),
        (NodeData::List(nodes), _) => {
            FlatValue::List(nodes.iter().map(|it| (it.at.line as usize, flat(it))).collect())
        }
        (NodeData::Map(_) | NodeData::Tagged | NodeData::Scalar(..), _) => FlatValue::Map,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_scalars_or_lists() {
        let text = "store: memory\nreplicas: 0x10\nshadow-mode: TRUE\nkey-prefix: 'true'\n\
                    limits:\n  - a\n  - b: 1\nlog-level:\n";
        let entries = read_flat(text).unwrap();
        let shown: Vec<_> = entries
            .into_iter()
            .map(|entry| (entry.name.unwrap(), entry.line, entry.value))
            .collect();
        let text = |text: &str| FlatValue::Text(text.to_owned());
        assert_eq!(
            shown,
            [
                ("store".to_owned(), 1, text("memory")),
                ("replicas".to_owned(), 2, text("0x10")),
                ("shadow-mode".to_owned(), 3, FlatValue::Boolean(true)),
                ("key-prefix".to_owned(), 4, text("true")),
                (
                    "limits".to_owned(),
                    5,
                    FlatValue::List(vec![(6, text("a")), (7, FlatValue::Map)])
                ),
                ("log-level".to_owned(), 8, FlatValue::Null),
            ]
        );
        assert_eq!(read_flat("# nothing\n"), Ok(Vec::new()));
    }

    #[test]
    fn what_is_no_flat_map_is_a_mistake_with_its_line() {
        let lines = |text: &str| {
            let mistakes = read_flat(text).unwrap_err();
            mistakes.into_iter().map(|it| (it.line, it.text)).collect::<Vec<_>>()
        };
        assert_eq!(lines("a: 1\nb: 2\na: 3\n"), [(3, "the name is already in line 1".to_owned())]);
        assert_eq!(lines("- a\n"), [(1, "the file is not a map of settings".to_owned())]);
        assert_eq!(lines("a: [1\nb: 2\n").len(), 1);
        assert_eq!(lines("a: 1\n---\nb: 2\n").len(), 1);
    }
}
