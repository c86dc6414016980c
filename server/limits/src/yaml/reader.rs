//! Reads nodes as maps, lists, texts, numbers and so on, and reports nodes of other types.

use std::{sync::Arc, time::Duration};

use granit_parser::ScalarStyle;
use sluicegate_core::rules::{
    Located, LocatedMistake, LocatedWarning, Mistake, Report, SourceLocation, Warning,
};

use super::{
    keys::{MapKind, UPSTREAM_KEYS, path_step, unknown_key},
    location::FileLocation,
    node::{Position, YamlNode, YamlNodeData},
    node_builder::NODES_MAX,
    scalar::{
        describe_scalar, has_ambiguous_unit, has_leading_zero, is_float, is_not_text, is_null,
        scalar, whole_number,
    },
};

/// State that all files that are read together share.
#[derive(Debug)]
pub(crate) struct ReadState {
    /// How many of [`NODES_MAX`] nodes may still be read.
    pub(super) nodes_left: usize,
    /// Number of placeholders that were made for unreadable texts.
    placeholders: usize,
    /// Mistakes and warnings of all files.
    pub(crate) report: Report,
}

impl Default for ReadState {
    fn default() -> Self {
        Self { nodes_left: NODES_MAX, placeholders: 0, report: Report::default() }
    }
}

/// The values of a map by key.
pub(super) struct Fields<'n, 'y> {
    pub(super) location: FileLocation,
    fields: Vec<Field<'n, 'y>>,
    /// Whether a mistake in a key of this map was reported. A missing key may then be a misspelt one.
    pub(super) has_mistakes: bool,
}

/// A key of a map, and its value.
struct Field<'n, 'y> {
    name: &'n str,
    /// Position of the key. The value may begin some lines below.
    at: Position,
    value: &'n YamlNode<'y>,
}

impl<'n, 'y> Fields<'n, 'y> {
    /// The value of a key, with its location.
    pub(super) fn get(&self, key: &'static str) -> Option<(FileLocation, &'n YamlNode<'y>)> {
        let field = self.fields.iter().find(|field| field.name == key)?;
        Some((FileLocation::at(field.at, self.location.path.key(key)), field.value))
    }
}

/// Reads the nodes of one file and reports mistakes.
pub(super) struct Reader<'e> {
    pub(super) file: Arc<str>,
    pub(super) shared: &'e mut ReadState,
    /// Number of mistakes in this file so far.
    pub(super) mistakes: usize,
}

impl Reader<'_> {
    /// Reads a map, with the keys of maps that it merges (`<<`), and reports unknown keys; `None` if the node is not a
    /// map.
    pub(super) fn map<'n, 'y>(
        &mut self,
        location: &FileLocation,
        node: &'n YamlNode<'y>,
        kind: MapKind,
    ) -> Option<Fields<'n, 'y>> {
        let mut fields =
            Fields { location: location.clone(), fields: Vec::new(), has_mistakes: false };
        let before = self.mistakes;
        let is_map = self.collect_fields(location, node, kind, &mut fields);
        fields.has_mistakes = self.mistakes > before;
        is_map.then_some(fields)
    }

    /// Adds the keys of a map that `into` lacks, and reports unknown keys. Returns whether the node is a map.
    fn collect_fields<'n, 'y>(
        &mut self,
        location: &FileLocation,
        node: &'n YamlNode<'y>,
        kind: MapKind,
        into: &mut Fields<'n, 'y>,
    ) -> bool {
        let YamlNodeData::Map(map) = &node.data else {
            let wanted =
                if kind == MapKind::Replace { "a map such as {name: other}" } else { "a map" };
            self.wrong_type(location, node, wanted);
            return false;
        };
        let mut merged = Vec::new();
        for (key, value) in map.iter() {
            if self.has_unlisted_mistakes() {
                break;
            }
            let at = FileLocation::of(key, location.path.clone());
            match scalar(key) {
                Some(("<<", ScalarStyle::Plain)) => merged.push((at, value)),
                Some((name, _)) => {
                    if kind.keys().contains(&name) {
                        if !into.fields.iter().any(|field| field.name == name) {
                            into.fields.push(Field { name, at: key.at, value });
                        }
                    } else if kind.tolerates(name) {
                        if let Mistake::MisplacedKey { key, instead } =
                            kind.unknown_key(name, at.column)
                        {
                            self.warn(&at, Warning::Misplaced { key, instead });
                        }
                        self.check_ignored(
                            &FileLocation::of(value, at.path.key(path_step(name))),
                            name,
                            value,
                        );
                    } else if is_not_text(key) {
                        self.wrong_type(&at, key, "a text as the key");
                    } else {
                        self.mistake(&at, kind.unknown_key(name, at.column));
                    }
                }
                None => self.wrong_type(&at, key, "a text as the key"),
            }
        }
        for (at, node) in merged {
            let nodes = match &node.data {
                YamlNodeData::List(nodes) => nodes,
                _ => std::slice::from_ref(node),
            };
            for node in nodes {
                self.collect_fields(&at, node, kind, into);
            }
        }
        true
    }

    /// Checks the structure of the value of an ignored key, as envoyproxy/ratelimit does.
    fn check_ignored(&mut self, location: &FileLocation, key: &str, node: &YamlNode<'_>) {
        if key == "metadata" {
            return;
        }
        match &node.data {
            YamlNodeData::Map(map) => {
                for (key, value) in map.iter() {
                    let at = FileLocation::of(key, location.path.clone());
                    match scalar(key) {
                        Some((name, _)) if UPSTREAM_KEYS.contains(&name) || name == "<<" => {
                            self.check_ignored(
                                &FileLocation::of(value, location.path.key(path_step(name))),
                                name,
                                value,
                            );
                        }
                        Some((name, _)) => {
                            self.mistake(&at, unknown_key(name, at.column, UPSTREAM_KEYS));
                        }
                        None => self.wrong_type(&at, key, "a text as the key"),
                    }
                }
            }
            YamlNodeData::List(nodes) => {
                for (index, node) in nodes.iter().enumerate() {
                    let at = FileLocation::of(node, location.path.index(index));
                    match &node.data {
                        YamlNodeData::Map(_) => self.check_ignored(&at, key, node),
                        _ => self.wrong_type(&at, node, "a map"),
                    }
                }
            }
            _ => match scalar(node) {
                Some((text, ScalarStyle::Plain)) if is_float(text) => {
                    self.wrong_type(location, node, "a text in quotes");
                }
                _ => {}
            },
        }
    }

    /// The elements of the list under a key; none if the key is missing or its value is not a list, which is reported.
    pub(super) fn list<'n, 'y>(
        &mut self,
        of: &Fields<'n, 'y>,
        key: &'static str,
    ) -> Vec<(FileLocation, &'n YamlNode<'y>)> {
        let Some((location, node)) = of.get(key) else { return Vec::new() };
        match &node.data {
            YamlNodeData::List(nodes) => nodes
                .iter()
                .enumerate()
                .map(|(index, node)| (FileLocation::of(node, location.path.index(index)), node))
                .collect(),
            _ if is_null(node) => Vec::new(),
            _ => {
                self.wrong_type(&location, node, "a list");
                Vec::new()
            }
        }
    }

    /// The text under a key; `None` if it is missing. Integers and booleans are accepted as written, as by Go's YAML
    /// reader. Floats are reported, because `1.10` may be intended as a text or as a number.
    pub(super) fn text(
        &mut self,
        of: &Fields<'_, '_>,
        key: &'static str,
    ) -> Option<Located<String>> {
        let (location, node) = of.get(key)?;
        let value = match scalar(node) {
            Some((text, ScalarStyle::Plain)) if is_float(text) => {
                self.wrong_type(&location, node, "a text in quotes");
                self.placeholder()
            }
            Some(_) if is_null(node) => return None,
            Some((text, _)) => text.to_owned(),
            None => {
                self.wrong_type(&location, node, "a text");
                self.placeholder()
            }
        };
        Some(Located { value, location: self.source_location(&location) })
    }

    /// The text under a required key. If it is missing: an empty text, which the compiler reports, or a placeholder if
    /// it may be missing because it is misspelt.
    pub(super) fn required(&mut self, of: &Fields<'_, '_>, key: &'static str) -> Located<String> {
        self.text(of, key).unwrap_or_else(|| {
            let value = if of.has_mistakes { self.placeholder() } else { String::new() };
            let location =
                of.get(key).map_or_else(|| of.location.clone(), |(location, _)| location);
            Located { value, location: self.source_location(&location) }
        })
    }

    /// The value of a descriptor. A placeholder if it may be missing because its key is misspelt.
    pub(super) fn value(&mut self, of: &Fields<'_, '_>) -> Option<Located<String>> {
        let value = self.text(of, "value");
        let may_be_misspelt = of.has_mistakes && of.get("value").is_none();
        value.or_else(|| {
            may_be_misspelt.then(|| Located {
                value: self.placeholder(),
                location: self.source_location(&of.location),
            })
        })
    }

    /// A placeholder for an unreadable text that was reported. It differs from all other texts and is a valid pattern,
    /// so that it causes no further mistakes.
    fn placeholder(&mut self) -> String {
        self.shared.placeholders += 1;
        format!("unreadable text {}*", self.shared.placeholders)
    }

    /// Whether there are more mistakes than are listed. Then the rules are not used, and reading stops.
    pub(super) const fn has_unlisted_mistakes(&self) -> bool {
        self.shared.report.mistakes.unlisted() > 0
    }

    /// The whole number under a key; `None` if it is missing or not valid, which is reported.
    pub(super) fn number(
        &mut self,
        of: &Fields<'_, '_>,
        key: &'static str,
    ) -> Option<Located<u32>> {
        let (location, node) = of.get(key)?;
        if is_null(node) {
            return None;
        }
        let number = scalar(node)
            .filter(|(_, style)| *style == ScalarStyle::Plain)
            .and_then(|(text, _)| Some((text, whole_number(text)?)));
        let number = match number {
            // Go's YAML reader parses 010 as an octal number.
            Some((text, _)) if has_leading_zero(text) => {
                self.wrong_type(&location, node, "it without a zero in front");
                None
            }
            Some((_, number)) => Some(number),
            None => {
                self.wrong_type(&location, node, "a whole number from 0 to 4294967295");
                None
            }
        };
        number.map(|value| Located { value, location: self.source_location(&location) })
    }

    /// The boolean under a key; false if it is missing or not valid, which is reported.
    pub(super) fn flag(&mut self, of: &Fields<'_, '_>, key: &'static str) -> bool {
        let Some((location, node)) = of.get(key) else { return false };
        let text = scalar(node).filter(|(_, style)| *style == ScalarStyle::Plain);
        match text.map(|(text, _)| text.to_ascii_lowercase()).as_deref() {
            Some("true" | "yes" | "on" | "y") => true,
            Some("false" | "no" | "off" | "n" | "" | "~" | "null") => false,
            _ => {
                self.wrong_type(&location, node, "true or false");
                false
            }
        }
    }

    /// The length of time under a key; `None` if it is missing or not valid, which is reported.
    pub(super) fn duration(
        &mut self,
        of: &Fields<'_, '_>,
        key: &'static str,
    ) -> Option<Located<Duration>> {
        let (location, node) = of.get(key)?;
        if is_null(node) {
            return None;
        }
        let duration = scalar(node)
            .filter(|(text, _)| !has_ambiguous_unit(text))
            .and_then(|(text, _)| humantime::parse_duration(text).ok());
        if duration.is_none() {
            self.wrong_type(&location, node, "a length of time such as 30s, 15m, 12h or 7d");
        }
        duration.map(|value| Located { value, location: self.source_location(&location) })
    }

    /// Reads one of the names that `find` accepts, which `wanted` lists; `None` if the key is missing, or if its value
    /// is not such a name, which is reported.
    pub(super) fn enum_value<T>(
        &mut self,
        of: &Fields<'_, '_>,
        key: &'static str,
        wanted: &'static str,
        find: impl Fn(&str) -> Option<T>,
    ) -> Option<Located<T>> {
        let (location, node) = of.get(key).filter(|(_, node)| !is_null(node))?;
        let found = scalar(node).and_then(|(text, _)| find(text));
        if found.is_none() {
            self.wrong_type(&location, node, wanted);
        }
        found.map(|value| Located { value, location: self.source_location(&location) })
    }

    /// A location with the name of this file.
    pub(super) fn source_location(&self, location: &FileLocation) -> SourceLocation {
        SourceLocation {
            file: Arc::clone(&self.file),
            line: location.line,
            column: location.column,
            path: location.path.clone(),
        }
    }

    /// Reports a mistake.
    pub(super) fn mistake(&mut self, location: &FileLocation, mistake: Mistake) {
        self.mistakes += 1;
        let location = self.source_location(location);
        self.shared.report.mistakes.push(LocatedMistake { location, mistake });
    }

    /// Reports a warning.
    pub(super) fn warn(&mut self, location: &FileLocation, warning: Warning) {
        let location = self.source_location(location);
        self.shared.report.warnings.push(LocatedWarning { location, warning });
    }

    /// Reports a value of a wrong type. `wanted` is the expected type.
    pub(super) fn wrong_type(
        &mut self,
        location: &FileLocation,
        node: &YamlNode<'_>,
        wanted: &'static str,
    ) {
        let found = match &node.data {
            YamlNodeData::Map(_) => "a map".to_owned(),
            YamlNodeData::List(_) => "a list".to_owned(),
            _ => match scalar(node) {
                Some(_) if is_null(node) => "an empty value".to_owned(),
                Some((text, style)) => describe_scalar(text, style),
                None => "a tagged value".to_owned(),
            },
        };
        self.mistake(location, Mistake::WrongType { found, wanted });
    }
}
