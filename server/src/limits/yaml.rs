//! Reads the YAML of a limits file into [`LimitsFile`], and notes everything that is not of its shape.
//!
//! A reader of our own rather than serde's, because serde stops at the first mistake. What is broken is
//! noted and left out, so that the rest can still be checked.

mod shape;

use std::{sync::Arc, time::Duration};

use saphyr::{MarkedYaml, Marker, ScalarStyle, ScanError, YamlData, YamlLoader};
use saphyr_parser::Parser;
use sluicegate_core::{
    Algorithm, Counting, OnFailure,
    metadata::{self, Value},
    rules::{
        CompileError, DescriptorNode, LimitNode, LimitsFile, LimitsNode, Place, Placed, Problem,
    },
};

/// The keys of each kind of map.
const ROOT: &[&str] = &["domain", "descriptors", "tenant", "counting", "on_failure", "defaults"];
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
    "on_failure",
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
const HOMES: [(&[&str], &str); 3] = [
    (LIMIT, "into rate_limit"),
    (DESCRIPTOR, "into a descriptor"),
    (ROOT, "to the top of the file"),
];

/// Reads one file; `None` if it is no map at all.
pub(super) fn read(name: &str, text: &str, errors: &mut Vec<CompileError>) -> Option<LimitsFile> {
    let mut reader = Reader { file: Arc::from(name), errors };
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    match shape::check(text) {
        Ok(mistakes) => {
            for (at, problem) in mistakes {
                reader.wrong(&at, problem);
            }
        }
        Err((at, problem)) => {
            reader.wrong(&at, problem);
            return None;
        }
    }
    match parse(text) {
        Ok(Some(root)) if !is_null(&root) => reader.file(&root),
        Ok(_) => {
            let start = Spot { line: 1, column: 1, path: String::new() };
            reader.wrong(&start, Problem::Missing("domain"));
            None
        }
        Err(error) => {
            let at = Spot::at(*error.marker(), String::new());
            reader.wrong(&at, Problem::Yaml(error.info().to_owned()));
            None
        }
    }
}

/// The first document, as nodes with places and scalars as they are written. Its shape was checked.
fn parse(text: &str) -> Result<Option<MarkedYaml<'_>>, ScanError> {
    let mut loader = YamlLoader::default();
    loader.early_parse(false);
    loader.allow_duplicate_keys(true);
    Parser::new_from_str(text).load(&mut loader, false)?;
    if let Some(error) = loader.error() {
        return Err(error.clone());
    }
    Ok(loader.into_documents().into_iter().next())
}

/// Position and path of a node.
#[derive(Clone)]
struct Spot {
    line: usize,
    column: usize,
    path: String,
}

impl Spot {
    fn at(marker: Marker, path: String) -> Self {
        Self { line: marker.line(), column: marker.col() + 1, path }
    }

    fn of(node: &MarkedYaml<'_>, path: String) -> Self {
        Self::at(node.span.start, path)
    }

    fn below(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }
}

/// A map's values by key.
struct Fields<'n, 'y> {
    spot: Spot,
    fields: Vec<Field<'n, 'y>>,
    /// Whether a key was noted, which may be a misspelt one that is now missing.
    noted: bool,
}

/// A key and its value.
struct Field<'n, 'y> {
    name: &'n str,
    /// Where the key stands: a value may begin lines below.
    at: Marker,
    value: &'n MarkedYaml<'y>,
}

impl<'n, 'y> Fields<'n, 'y> {
    /// The value of a key, with its place.
    fn get(&self, key: &str) -> Option<(Spot, &'n MarkedYaml<'y>)> {
        let field = self.fields.iter().find(|field| field.name == key)?;
        Some((Spot::at(field.at, self.spot.below(key)), field.value))
    }
}

/// Reads nodes and notes what is wrong with them.
struct Reader<'e> {
    file: Arc<str>,
    errors: &'e mut Vec<CompileError>,
}

impl Reader<'_> {
    fn file(&mut self, root: &MarkedYaml<'_>) -> Option<LimitsFile> {
        // Not where the node begins: what is missing is missing from the whole file.
        let start = Spot { line: 1, column: 1, path: String::new() };
        let fields = self.map(&start, root, ROOT)?;
        let place = self.place(&fields.spot);
        let domain = self.required(&fields, "domain");
        let defaults = fields.get("defaults").filter(|(_, node)| !is_null(node));
        let algorithm = defaults.and_then(|(spot, node)| {
            let defaults = self.map(&spot, node, DEFAULTS)?;
            self.algorithm(&defaults)
        });
        Some(LimitsFile {
            place,
            domain,
            tenant: self.text(&fields, "tenant"),
            counting: self.counting(&fields).map(|it| it.value),
            on_failure: self.on_failure(&fields),
            algorithm,
            descriptors: self.descriptors(&fields),
        })
    }

    fn descriptors(&mut self, of: &Fields<'_, '_>) -> Vec<DescriptorNode> {
        let nodes = self.list(of, "descriptors");
        nodes.into_iter().filter_map(|(spot, node)| self.descriptor(&spot, node)).collect()
    }

    fn descriptor(&mut self, spot: &Spot, node: &MarkedYaml<'_>) -> Option<DescriptorNode> {
        let fields = self.map(spot, node, DESCRIPTOR)?;
        Some(DescriptorNode {
            place: self.place(&fields.spot),
            key: self.required(&fields, "key").value,
            value: self.value(&fields),
            limits: self.limits(&fields),
            counting: self.counting(&fields),
            on_failure: self.on_failure(&fields),
            shadow_mode: self.flag(&fields, "shadow_mode"),
            quota_mode: self.flag(&fields, "quota_mode"),
            detailed_metric: self.flag(&fields, "detailed_metric"),
            value_to_metric: self.flag(&fields, "value_to_metric"),
            share_threshold: self.flag(&fields, "share_threshold"),
            metadata: self.metadata(&fields),
            descriptors: self.descriptors(&fields),
        })
    }

    fn metadata(&mut self, of: &Fields<'_, '_>) -> Option<metadata::Map> {
        let (spot, node) = of.get("metadata").filter(|(_, node)| !is_null(node))?;
        match self.free(&spot, node)? {
            Value::Map(map) => Some(map),
            _ => {
                self.wrong_type(&spot, node, "a map");
                None
            }
        }
    }

    /// A value of any shape; `None` if something in it is broken, and noted.
    fn free(&mut self, spot: &Spot, node: &MarkedYaml<'_>) -> Option<Value> {
        match &node.data {
            YamlData::Sequence(nodes) => {
                let values = nodes.iter().enumerate().map(|(index, node)| {
                    self.free(&Spot::of(node, format!("{}[{index}]", spot.path)), node)
                });
                values.collect::<Option<_>>().map(Value::List)
            }
            YamlData::Mapping(map) => {
                let values = map.iter().map(|(key, value)| {
                    let at = Spot::of(key, spot.path.clone());
                    let Some((name, _)) = scalar(key) else {
                        self.wrong_type(&at, key, "a text as the key");
                        return None;
                    };
                    let at = Spot::of(key, spot.below(name));
                    Some((name.into(), self.free(&at, value)?))
                });
                values.collect::<Option<_>>().map(Value::Map)
            }
            _ => match scalar(node) {
                _ if is_null(node) => Some(Value::Null),
                Some((text, ScalarStyle::Plain)) => Some(plain(text)),
                Some((text, _)) => Some(Value::Text(text.into())),
                None => {
                    self.wrong_type(spot, node, "a text, a number, true or false, a list or a map");
                    None
                }
            },
        }
    }

    fn limits(&mut self, of: &Fields<'_, '_>) -> Option<LimitsNode> {
        let one = of.get("rate_limit").filter(|(_, node)| !is_null(node));
        if let Some((spot, _)) = of.get("limits") {
            if one.is_some() {
                self.wrong(&spot, Problem::LimitsTwice);
                return None;
            }
            let nodes = self.list(of, "limits");
            let asked = nodes.len();
            let limits: Vec<_> =
                nodes.into_iter().filter_map(|(spot, node)| self.limit(&spot, node)).collect();
            // What is broken was noted; a list without it must not look like another mistake.
            return (limits.len() == asked).then(|| LimitsNode::Several(self.place(&spot), limits));
        }
        let (spot, node) = one?;
        let limit = self.limit(&spot, node)?;
        Some(LimitsNode::One(Box::new(limit)))
    }

    /// One limit; `None` if what is broken, and noted, would make the rest look wrong as well.
    fn limit(&mut self, spot: &Spot, node: &MarkedYaml<'_>) -> Option<LimitNode> {
        let fields = self.map(spot, node, LIMIT)?;
        let requests_per_unit = self.number(&fields, "requests_per_unit");
        let unit_multiplier = self.number(&fields, "unit_multiplier");
        let burst = self.number(&fields, "burst");
        let unlimited = self.flag(&fields, "unlimited");
        let name = self.text(&fields, "name");
        let replaces = self.replaces(&fields);
        let known = self.errors.len();
        let limit = LimitNode {
            place: self.place(&fields.spot),
            requests_per_unit,
            unit: self.text(&fields, "unit"),
            unit_multiplier,
            window: self.duration(&fields, "window"),
            algorithm: self.algorithm(&fields),
            burst,
            unlimited,
            name,
            replaces,
        };
        (self.errors.len() == known && !fields.noted).then_some(limit)
    }

    fn replaces(&mut self, of: &Fields<'_, '_>) -> Vec<Placed<String>> {
        let nodes = self.list(of, "replaces");
        nodes
            .into_iter()
            .filter_map(|(spot, node)| {
                let fields = self.map(&spot, node, REPLACE)?;
                Some(self.required(&fields, "name"))
            })
            .collect()
    }

    /// A map's fields, those of merged maps (`<<`) included; unknown keys are noted.
    fn map<'n, 'y>(
        &mut self,
        spot: &Spot,
        node: &'n MarkedYaml<'y>,
        known: &[&str],
    ) -> Option<Fields<'n, 'y>> {
        let mut fields = Fields { spot: spot.clone(), fields: Vec::new(), noted: false };
        let before = self.errors.len();
        let is_map = self.gather(spot, node, known, &mut fields);
        fields.noted = self.errors.len() > before;
        is_map.then_some(fields)
    }

    fn gather<'n, 'y>(
        &mut self,
        spot: &Spot,
        node: &'n MarkedYaml<'y>,
        known: &[&str],
        into: &mut Fields<'n, 'y>,
    ) -> bool {
        let YamlData::Mapping(map) = &node.data else {
            let wanted = if known == REPLACE { "a map such as {name: other}" } else { "a map" };
            self.wrong_type(spot, node, wanted);
            return false;
        };
        let mut merged = Vec::new();
        for (key, value) in map {
            let at = Spot::of(key, spot.path.clone());
            match scalar(key) {
                Some(("<<", ScalarStyle::Plain)) => merged.push((at, value)),
                Some((name, _)) => {
                    if known.contains(&name) {
                        if !into.fields.iter().any(|field| field.name == name) {
                            into.fields.push(Field { name, at: key.span.start, value });
                        }
                    } else {
                        let instead = hint(name, known);
                        self.wrong(&at, Problem::UnknownKey { key: name.to_owned(), instead });
                    }
                }
                None => self.wrong_type(&at, key, "a text as the key"),
            }
        }
        for (at, node) in merged {
            let nodes = match &node.data {
                YamlData::Sequence(nodes) => nodes.as_slice(),
                _ => std::slice::from_ref(node),
            };
            for node in nodes {
                self.gather(&at, node, known, into);
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
        let value = match scalar(node) {
            Some((text, ScalarStyle::Plain)) if is_float(text) => {
                self.wrong_type(&spot, node, "a text in quotes");
                self.stand_in(&spot)
            }
            Some(_) if is_null(node) => return None,
            Some((text, _)) => text.to_owned(),
            None => {
                self.wrong_type(&spot, node, "a text");
                self.stand_in(&spot)
            }
        };
        Some(Placed { value, place: self.place(&spot) })
    }

    /// A text that must not be missing; empty if it is.
    fn required(&mut self, of: &Fields<'_, '_>, key: &str) -> Placed<String> {
        self.text(of, key).unwrap_or_else(|| {
            let value = if of.noted { self.stand_in(&of.spot) } else { String::new() };
            let spot = of.get(key).map_or_else(|| of.spot.clone(), |(spot, _)| spot);
            Placed { value, place: self.place(&spot) }
        })
    }

    /// A descriptor's value. Where a key was noted it may be the value's, misspelt.
    fn value(&mut self, of: &Fields<'_, '_>) -> Option<Placed<String>> {
        let value = self.text(of, "value");
        let missing = of.noted && of.get("value").is_none();
        value.or_else(|| {
            missing.then(|| Placed { value: self.stand_in(&of.spot), place: self.place(&of.spot) })
        })
    }

    /// Takes the place of a text that is broken, and noted. Like no other text, and good as a pattern, so
    /// that nothing else looks wrong for it.
    fn stand_in(&self, spot: &Spot) -> String {
        format!("{}:{}*", self.file, spot.path)
    }

    fn number(&mut self, of: &Fields<'_, '_>, key: &str) -> Option<Placed<u32>> {
        let (spot, node) = of.get(key)?;
        if is_null(node) {
            return None;
        }
        let number = scalar(node)
            .filter(|(_, style)| *style == ScalarStyle::Plain)
            .and_then(|(text, _)| Some((text, text.parse().ok()?)));
        let number = match number {
            // Go's reader takes 010 for an octal number.
            Some((text, _)) if has_zero_in_front(text) => {
                self.wrong_type(&spot, node, "it without a zero in front");
                None
            }
            Some((_, number)) => Some(number),
            None => {
                self.wrong_type(&spot, node, "a whole number from 0 to 4294967295");
                None
            }
        };
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
        if is_null(node) {
            return None;
        }
        let duration = scalar(node)
            .filter(|(text, _)| !has_vague_unit(text))
            .and_then(|(text, _)| humantime::parse_duration(text).ok());
        if duration.is_none() {
            self.wrong_type(&spot, node, "a length of time such as 30s, 15m, 12h or 7d");
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

    fn on_failure(&mut self, of: &Fields<'_, '_>) -> Option<OnFailure> {
        let find = |text: &str| OnFailure::ALL.into_iter().find(|it| it.name() == text);
        self.word(of, "on_failure", "allow, deny, local or defer", find).map(|it| it.value)
    }

    fn word<T>(
        &mut self,
        of: &Fields<'_, '_>,
        key: &str,
        wanted: &'static str,
        find: impl Fn(&str) -> Option<T>,
    ) -> Option<Placed<T>> {
        let (spot, node) = of.get(key).filter(|(_, node)| !is_null(node))?;
        let word = scalar(node).and_then(|(text, _)| find(text));
        if word.is_none() {
            self.wrong_type(&spot, node, wanted);
        }
        word.map(|value| Placed { value, place: self.place(&spot) })
    }

    fn place(&self, spot: &Spot) -> Place {
        Place {
            file: Arc::clone(&self.file),
            line: spot.line,
            column: spot.column,
            path: spot.path.clone(),
        }
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
                Some(_) if is_null(node) => "nothing".to_owned(),
                Some((text, ScalarStyle::Plain)) => format!("{text:?}"),
                Some((text, _)) => format!("{text:?} in quotes"),
                None => "something with a tag".to_owned(),
            },
        };
        self.wrong(spot, Problem::WrongType { found, wanted });
    }
}

/// A scalar as it is written, and its style. What is tagged as a text is as good as in quotes.
fn scalar<'n>(node: &'n MarkedYaml<'_>) -> Option<(&'n str, ScalarStyle)> {
    match &node.data {
        YamlData::Representation(text, _, Some(tag))
            if tag.is_yaml_core_schema() && tag.suffix == "str" =>
        {
            Some((text, ScalarStyle::DoubleQuoted))
        }
        YamlData::Representation(text, style, _) => Some((text, *style)),
        _ => None,
    }
}

/// What a text without quotes stands for, by YAML's core schema.
fn plain(text: &str) -> Value {
    match text {
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        _ if text.bytes().any(|byte| byte.is_ascii_digit()) => {
            text.parse().map_or_else(|_| Value::Text(text.into()), Value::Number)
        }
        _ => Value::Text(text.into()),
    }
}

fn is_null(node: &MarkedYaml<'_>) -> bool {
    matches!(scalar(node), Some(("" | "~" | "null" | "Null" | "NULL", ScalarStyle::Plain)))
}

fn has_zero_in_front(number: &str) -> bool {
    let digits = number.strip_prefix('+').unwrap_or(number);
    digits.len() > 1 && digits.starts_with('0')
}

/// Whether YAML would take the plain text for a number that is not whole.
fn is_float(text: &str) -> bool {
    let digits = text.bytes().any(|byte| byte.is_ascii_digit());
    let part = text.contains(['.', 'e', 'E']);
    digits && part && text.parse::<f64>().is_ok()
}

/// Whether a length of time is given in months or years, which mean other lengths there than as a unit.
fn has_vague_unit(text: &str) -> bool {
    let vague = ["M", "month", "months", "y", "yr", "yrs", "year", "years"];
    text.split(|letter: char| !letter.is_alphabetic()).any(|word| vague.contains(&word))
}

/// What may have been meant by an unknown key.
fn hint(key: &str, known: &[&str]) -> String {
    if known == ROOT && DEFAULTS.contains(&key) {
        return "move it into defaults".to_owned();
    }
    if let Some((_, home)) = HOMES.iter().find(|(keys, _)| keys.contains(&key)) {
        return format!("move it {home}");
    }
    let close = |name: &&&str| strsim::damerau_levenshtein(name, key) <= (key.len() / 3).max(1);
    let nearest =
        known.iter().filter(close).min_by_key(|name| strsim::damerau_levenshtein(name, key));
    match nearest {
        Some(name) => format!("did you mean {name}?"),
        None => format!("use one of {}", known.join(", ")),
    }
}
