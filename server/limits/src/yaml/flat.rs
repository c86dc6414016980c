//! Reads flat maps, in which each name has a scalar or a list of scalars, as in a file of settings.

use granit_parser::ScalarStyle;
use sluicegate_core::rules::Warning;

use super::{
    node::{YamlNode, YamlNodeData},
    node_builder::{self, NODES_MAX},
    scalar::{is_null, scalar},
};

/// An entry of a flat map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlatEntry {
    /// The name; `None` if it is a list or a map.
    pub name: Option<String>,
    /// Line of the name, from 1.
    pub line: usize,
    /// The value.
    pub value: FlatValue,
}

/// A value of a flat map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlatValue {
    /// No value, or `null`.
    Null,
    /// `true` or `false` without quotes.
    Boolean(bool),
    /// A text or a number, as it is written.
    Text(String),
    /// A list: each element with its line, from 1.
    List(Vec<(usize, Self)>),
    /// A map, which a flat map must not have as a value.
    Map,
}

/// A mistake in a flat map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlatMistake {
    /// Line, from 1.
    pub line: usize,
    /// The mistake, as a message.
    pub text: String,
}

/// Reads a flat map from YAML. An empty document is an empty map.
///
/// # Errors
/// All mistakes: the text is not YAML, the document is not a map, a name occurs twice, or there is a further document.
pub fn read_flat_map(text: &str) -> Result<Vec<FlatEntry>, Vec<FlatMistake>> {
    let mut mistakes = Vec::new();
    let mut nodes_left = NODES_MAX;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let loaded = node_builder::build_nodes(text, &mut nodes_left, |location, warning| {
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
        Some(YamlNode { data: YamlNodeData::Map(map), .. }) => map
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

fn flat(node: &YamlNode<'_>) -> FlatValue {
    match (&node.data, scalar(node)) {
        _ if is_null(node) => FlatValue::Null,
        (_, Some(("true" | "True" | "TRUE", ScalarStyle::Plain))) => FlatValue::Boolean(true),
        (_, Some(("false" | "False" | "FALSE", ScalarStyle::Plain))) => FlatValue::Boolean(false),
        (_, Some((text, _))) => FlatValue::Text(text.to_owned()),
        (YamlNodeData::List(nodes), _) => {
            FlatValue::List(nodes.iter().map(|it| (it.at.line as usize, flat(it))).collect())
        }
        (YamlNodeData::Map(_) | YamlNodeData::Tagged | YamlNodeData::Scalar(..), _) => {
            FlatValue::Map
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flat_map_has_scalars_and_lists() {
        let text = "store: memory\nreplicas: 0x10\nshadow-mode: TRUE\nkey-prefix: 'true'\n\
                    limits:\n  - a\n  - b: 1\nlog-level:\n";
        let entries = read_flat_map(text).unwrap();
        let entries: Vec<_> = entries
            .into_iter()
            .map(|entry| (entry.name.unwrap(), entry.line, entry.value))
            .collect();
        let text = |text: &str| FlatValue::Text(text.to_owned());
        assert_eq!(
            entries,
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
        assert_eq!(read_flat_map("# nothing\n"), Ok(Vec::new()));
    }

    #[test]
    fn other_documents_are_mistakes_with_their_line() {
        let lines = |text: &str| {
            let mistakes = read_flat_map(text).unwrap_err();
            mistakes.into_iter().map(|it| (it.line, it.text)).collect::<Vec<_>>()
        };
        assert_eq!(lines("a: 1\nb: 2\na: 3\n"), [(3, "the name is already in line 1".to_owned())]);
        assert_eq!(lines("- a\n"), [(1, "the file is not a map of settings".to_owned())]);
        assert_eq!(lines("a: [1\nb: 2\n").len(), 1);
        assert_eq!(lines("a: 1\n---\nb: 2\n").len(), 1);
    }
}
