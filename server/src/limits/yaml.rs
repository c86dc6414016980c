//! Reads the YAML of a limits file into [`LimitsFile`], and notes everything that is not of its shape.
//!
//! A reader of our own rather than serde's, because serde stops at the first mistake. What is broken is
//! noted and left out, so that the rest can still be checked.

use std::{sync::Arc, time::Duration};

use saphyr::{MarkedYaml, ScalarStyle, ScanError, YamlData, YamlLoader};
use saphyr_parser::{Event, Parser};
use sluicegate_core::{
    Algorithm, Counting,
    rules::{
        CompileError, DescriptorNode, LimitNode, LimitsFile, LimitsNode, Place, Placed, Problem,
    },
};

/// The most nodes that aliases may stand for: more would be a bomb.
const ALIAS_NODES_MAX: usize = 100_000;

/// The deepest nesting: every level of a tree takes a list and a map.
const NESTING_MAX: usize = 160;

/// The keys of each kind of map.
const ROOT: &[&str] = &["domain", "descriptors", "tenant", "counting", "defaults"];
const DEFAULTS: &[&str] = &["algorithm"];
const DESCRIPTOR: &[&str] = &[
    "key",
    "value",
    "rate_limit",
    "limits",
    "descriptors",
    "shadow_mode",
    "quota_mode",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
    "counting",
];
const LIMIT: &[&str] = &[
    "unit",
    "requests_per_unit",
    "unlimited",
    "name",
    "replaces",
    "algorithm",
    "window",
    "unit_multiplier",
    "burst",
];
const REPLACE: &[&str] = &["name"];

/// Which map a key belongs to, for the hint.
const HOMES: [(&[&str], &str); 3] =
    [(LIMIT, "rate_limit"), (DESCRIPTOR, "a descriptor"), (ROOT, "the top of the file")];

/// Reads one file; `None` if it is no map at all.
pub(super) fn read(name: &str, text: &str, errors: &mut Vec<CompileError>) -> Option<LimitsFile> {
    let mut reader = Reader { file: Arc::from(name), errors };
    match parse(text.strip_prefix('\u{feff}').unwrap_or(text)) {
        Ok(Some(root)) => reader.file(&root),
        Ok(None) => {
            let start = Spot { line: 1, path: String::new() };
            reader.wrong(&start, Problem::Missing("domain"));
            None
        }
        Err(error) => {
            let at = Spot { line: error.marker().line(), path: String::new() };
            reader.wrong(&at, Problem::Yaml(error.info().to_owned()));
            None
        }
    }
}

/// The first document, as nodes with places and scalars as they are written.
fn parse(text: &str) -> Result<Option<MarkedYaml<'_>>, ScanError> {
    check_nesting(text)?;
    let mut loader = YamlLoader::default();
    loader.early_parse(false);
    loader.alias_limit(ALIAS_NODES_MAX);
    Parser::new_from_str(text).load(&mut loader, false)?;
    if let Some(error) = loader.error() {
        return Err(error.clone());
    }
    Ok(loader.into_documents().into_iter().next())
}

/// Fails on nesting that would exhaust the stack of whoever walks the nodes.
fn check_nesting(text: &str) -> Result<(), ScanError> {
    let mut depth = 0_usize;
    for event in Parser::new_from_str(text) {
        let (event, span) = event?;
        match event {
            Event::SequenceStart(..) | Event::MappingStart(..) => depth += 1,
            Event::SequenceEnd | Event::MappingEnd => depth -= 1,
            Event::DocumentEnd => break,
            _ => {}
        }
        if depth > NESTING_MAX {
            return Err(ScanError::new(span.start, "nested too deeply".to_owned()));
        }
    }
    Ok(())
}

/// Line and path of a node.
#[derive(Clone)]
struct Spot {
    line: usize,
    path: String,
}

impl Spot {
    fn of(node: &MarkedYaml<'_>, path: String) -> Self {
        Self { line: node.span.start.line(), path }
    }

    fn below(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }
}

/// A map's values by key.
struct Fields<'n, 'y> {
    spot: Spot,
    fields: Vec<(&'n str, &'n MarkedYaml<'y>)>,
}

impl<'n, 'y> Fields<'n, 'y> {
    /// The value of a key, with its place.
    fn get(&self, key: &str) -> Option<(Spot, &'n MarkedYaml<'y>)> {
        let (_, node) = self.fields.iter().find(|(name, _)| *name == key)?;
        Some((Spot::of(node, self.spot.below(key)), node))
    }
}

/// Reads nodes and notes what is wrong with them.
struct Reader<'e> {
    file: Arc<str>,
    errors: &'e mut Vec<CompileError>,
}

impl Reader<'_> {
    fn file(&mut self, root: &MarkedYaml<'_>) -> Option<LimitsFile> {
        let fields = self.map(Spot::of(root, String::new()), root, ROOT)?;
        let place = self.place(&fields.spot);
        let domain = self
            .text(&fields, "domain")
            .unwrap_or_else(|| Placed { value: String::new(), place: place.clone() });
        let algorithm = fields.get("defaults").and_then(|(spot, node)| {
            let defaults = self.map(spot, node, DEFAULTS)?;
            self.algorithm(&defaults)
        });
        Some(LimitsFile {
            place,
            domain,
            tenant: self.text(&fields, "tenant"),
            counting: self.counting(&fields).map(|it| it.value),
            algorithm,
            descriptors: self.descriptors(&fields),
        })
    }

    fn descriptors(&mut self, of: &Fields<'_, '_>) -> Vec<DescriptorNode> {
        let nodes = self.list(of, "descriptors");
        nodes.into_iter().filter_map(|(spot, node)| self.descriptor(spot, node)).collect()
    }

    fn descriptor(&mut self, spot: Spot, node: &MarkedYaml<'_>) -> Option<DescriptorNode> {
        let fields = self.map(spot, node, DESCRIPTOR)?;
        if let Some((spot, metadata)) = fields.get("metadata")
            && !matches!(metadata.data, YamlData::Mapping(_))
        {
            self.wrong_type(&spot, metadata, "a map");
        }
        let known = self.errors.len();
        let key = self.text(&fields, "key").map(|key| key.value);
        if key.is_none() && self.errors.len() > known {
            return None;
        }
        Some(DescriptorNode {
            place: self.place(&fields.spot),
            key: key.unwrap_or_default(),
            value: self.text(&fields, "value"),
            limits: self.limits(&fields),
            counting: self.counting(&fields),
            shadow_mode: self.flag(&fields, "shadow_mode"),
            quota_mode: self.flag(&fields, "quota_mode"),
            detailed_metric: self.flag(&fields, "detailed_metric"),
            value_to_metric: self.flag(&fields, "value_to_metric"),
            share_threshold: self.flag(&fields, "share_threshold"),
            descriptors: self.descriptors(&fields),
        })
    }

    fn limits(&mut self, of: &Fields<'_, '_>) -> Option<LimitsNode> {
        let one = of.get("rate_limit").filter(|(_, node)| !is_null(node));
        if let Some((spot, _)) = of.get("limits") {
            if one.is_some() {
                let instead = "put all limits into limits, or keep rate_limit alone".to_owned();
                self.wrong(&spot, Problem::UnknownKey { key: "limits".to_owned(), instead });
                return None;
            }
            let nodes = self.list(of, "limits");
            let asked = nodes.len();
            let limits: Vec<_> =
                nodes.into_iter().filter_map(|(spot, node)| self.limit(spot, node)).collect();
            // What is broken was noted; a list without it must not look like another mistake.
            return (limits.len() == asked).then(|| LimitsNode::Several(self.place(&spot), limits));
        }
        let (spot, node) = one?;
        let limit = self.limit(spot, node)?;
        Some(LimitsNode::One(Box::new(limit)))
    }

    /// One limit; `None` if one of its numbers is broken, which was noted.
    fn limit(&mut self, spot: Spot, node: &MarkedYaml<'_>) -> Option<LimitNode> {
        let known = self.errors.len();
        let fields = self.map(spot, node, LIMIT)?;
        let limit = LimitNode {
            place: self.place(&fields.spot),
            requests_per_unit: self.number(&fields, "requests_per_unit"),
            unit: self.text(&fields, "unit"),
            unit_multiplier: self.number(&fields, "unit_multiplier"),
            window: self.duration(&fields, "window"),
            algorithm: self.algorithm(&fields),
            burst: self.number(&fields, "burst"),
            unlimited: self.flag(&fields, "unlimited"),
            name: self.text(&fields, "name"),
            replaces: self.replaces(&fields),
        };
        (self.errors.len() == known).then_some(limit)
    }

    fn replaces(&mut self, of: &Fields<'_, '_>) -> Vec<Placed<String>> {
        let nodes = self.list(of, "replaces");
        nodes
            .into_iter()
            .filter_map(|(spot, node)| {
                let fields = self.map(spot, node, REPLACE)?;
                let nameless = Placed { value: String::new(), place: self.place(&fields.spot) };
                Some(self.text(&fields, "name").unwrap_or(nameless))
            })
            .collect()
    }

    /// A map's fields, those of merged maps (`<<`) included; unknown keys are noted.
    fn map<'n, 'y>(
        &mut self,
        spot: Spot,
        node: &'n MarkedYaml<'y>,
        known: &[&str],
    ) -> Option<Fields<'n, 'y>> {
        let mut fields = Fields { spot, fields: Vec::new() };
        let spot = fields.spot.clone();
        self.gather(&spot, node, known, &mut fields).then_some(fields)
    }

    fn gather<'n, 'y>(
        &mut self,
        spot: &Spot,
        node: &'n MarkedYaml<'y>,
        known: &[&str],
        into: &mut Fields<'n, 'y>,
    ) -> bool {
        let YamlData::Mapping(map) = &node.data else {
            self.wrong_type(spot, node, "a map");
            return false;
        };
        let mut merged = Vec::new();
        for (key, value) in map {
            let at = Spot { line: key.span.start.line(), path: spot.path.clone() };
            match scalar(key) {
                Some(("<<", ScalarStyle::Plain)) => merged.push(value),
                Some((name, style)) if style != ScalarStyle::Plain || !is_number(name) => {
                    if known.contains(&name) {
                        if !into.fields.iter().any(|(other, _)| *other == name) {
                            into.fields.push((name, value));
                        }
                    } else {
                        let instead = hint(name, known);
                        self.wrong(&at, Problem::UnknownKey { key: name.to_owned(), instead });
                    }
                }
                _ => self.wrong_type(&at, key, "a key of letters"),
            }
        }
        for node in merged {
            match &node.data {
                YamlData::Sequence(nodes) => {
                    for node in nodes {
                        self.gather(spot, node, known, into);
                    }
                }
                _ => drop(self.gather(spot, node, known, into)),
            }
        }
        true
    }

    /// The elements of a list; none if the key is absent.
    fn list<'n, 'y>(&mut self, of: &Fields<'n, 'y>, key: &str) -> Vec<(Spot, &'n MarkedYaml<'y>)> {
        let Some((spot, node)) = of.get(key) else { return Vec::new() };
        match &node.data {
            YamlData::Sequence(nodes) => nodes
                .iter()
                .enumerate()
                .map(|(index, node)| (Spot::of(node, format!("{}[{index}]", spot.path)), node))
                .collect(),
            _ if is_null(node) => Vec::new(),
            _ => {
                self.wrong_type(&spot, node, "a list");
                Vec::new()
            }
        }
    }

    /// A text. Numbers and booleans are taken as they are written, as Go's reader does; floats are not,
    /// because 1.10 may have been meant as a text or as a number.
    fn text(&mut self, of: &Fields<'_, '_>, key: &str) -> Option<Placed<String>> {
        let (spot, node) = of.get(key)?;
        match scalar(node) {
            Some((text, ScalarStyle::Plain)) if is_float(text) => {
                self.wrong_type(&spot, node, "a text in quotes");
                None
            }
            Some(_) if is_null(node) => None,
            Some((text, _)) => Some(Placed { value: text.to_owned(), place: self.place(&spot) }),
            None => {
                self.wrong_type(&spot, node, "a text");
                None
            }
        }
    }

    fn number(&mut self, of: &Fields<'_, '_>, key: &str) -> Option<Placed<u32>> {
        let (spot, node) = of.get(key)?;
        if is_null(node) {
            return None;
        }
        let number = scalar(node)
            .filter(|(_, style)| *style == ScalarStyle::Plain)
            .and_then(|(text, _)| text.parse().ok());
        if number.is_none() {
            self.wrong_type(&spot, node, "a whole number from 0 to 4294967295");
        }
        number.map(|value| Placed { value, place: self.place(&spot) })
    }

    fn flag(&mut self, of: &Fields<'_, '_>, key: &str) -> bool {
        let Some((spot, node)) = of.get(key) else { return false };
        let text = scalar(node).filter(|(_, style)| *style == ScalarStyle::Plain);
        match text.map(|(text, _)| text.to_ascii_lowercase()).as_deref() {
            Some("true" | "yes" | "on" | "y") => true,
            Some("false" | "no" | "off" | "n" | "" | "~" | "null") => false,
            _ => {
                self.wrong_type(&spot, node, "true or false");
                false
            }
        }
    }

    fn duration(&mut self, of: &Fields<'_, '_>, key: &str) -> Option<Placed<Duration>> {
        let (spot, node) = of.get(key)?;
        let duration = scalar(node).and_then(|(text, _)| humantime::parse_duration(text).ok());
        if duration.is_none() {
            self.wrong_type(&spot, node, "a length of time such as 30s, 15m or 12h");
        }
        duration.map(|value| Placed { value, place: self.place(&spot) })
    }

    fn algorithm(&mut self, of: &Fields<'_, '_>) -> Option<Algorithm> {
        let wanted =
            "fixed_window, sliding_window_log, sliding_window_counter, token_bucket or gcra";
        let find = |text: &str| Algorithm::ALL.into_iter().find(|it| it.name() == text);
        self.word(of, "algorithm", wanted, find).map(|it| it.value)
    }

    fn counting(&mut self, of: &Fields<'_, '_>) -> Option<Placed<Counting>> {
        let find = |text: &str| Counting::ALL.into_iter().find(|it| it.name() == text);
        self.word(of, "counting", "free, debit or upstream", find)
    }

    fn word<T>(
        &mut self,
        of: &Fields<'_, '_>,
        key: &str,
        wanted: &'static str,
        find: impl Fn(&str) -> Option<T>,
    ) -> Option<Placed<T>> {
        let (spot, node) = of.get(key)?;
        let word = scalar(node).and_then(|(text, _)| find(text));
        if word.is_none() {
            self.wrong_type(&spot, node, wanted);
        }
        word.map(|value| Placed { value, place: self.place(&spot) })
    }

    fn place(&self, spot: &Spot) -> Place {
        Place { file: Arc::clone(&self.file), line: spot.line, path: spot.path.clone() }
    }

    fn wrong(&mut self, spot: &Spot, problem: Problem) {
        let place = self.place(spot);
        self.errors.push(CompileError { place, problem });
    }

    fn wrong_type(&mut self, spot: &Spot, node: &MarkedYaml<'_>, wanted: &'static str) {
        let found = match &node.data {
            YamlData::Mapping(_) => "a map".to_owned(),
            YamlData::Sequence(_) => "a list".to_owned(),
            _ => match scalar(node) {
                Some((text, _)) => format!("{text:?}"),
                None => "something else".to_owned(),
            },
        };
        self.wrong(spot, Problem::WrongType { found, wanted });
    }
}

/// A scalar as it is written, and its style.
fn scalar<'n>(node: &'n MarkedYaml<'_>) -> Option<(&'n str, ScalarStyle)> {
    match &node.data {
        YamlData::Representation(text, style, _) => Some((text, *style)),
        _ => None,
    }
}

fn is_null(node: &MarkedYaml<'_>) -> bool {
    matches!(scalar(node), Some(("" | "~" | "null" | "Null" | "NULL", ScalarStyle::Plain)))
}

fn is_number(text: &str) -> bool {
    text.parse::<i64>().is_ok() || is_float(text)
}

/// Whether YAML would take the plain text for a number that is not whole.
fn is_float(text: &str) -> bool {
    let digits = text.bytes().any(|byte| byte.is_ascii_digit());
    let part = text.contains(['.', 'e', 'E']);
    digits && part && text.parse::<f64>().is_ok()
}

/// What may have been meant by an unknown key.
fn hint(key: &str, known: &[&str]) -> String {
    if let Some((_, home)) = HOMES.iter().find(|(keys, _)| keys.contains(&key)) {
        return format!("it belongs to {home}");
    }
    let close = |name: &&&str| strsim::damerau_levenshtein(name, key) <= 2 + key.len() / 8;
    let nearest =
        known.iter().filter(close).min_by_key(|name| strsim::damerau_levenshtein(name, key));
    match nearest {
        Some(name) => format!("did you mean {name}?"),
        None => format!("use one of {}", known.join(", ")),
    }
}
