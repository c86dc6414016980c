//! Reads the YAML of a limits file into [`LimitsFile`], and notes everything that is not of its shape.
//!
//! A reader of our own rather than serde's, because serde stops at the first mistake. What is broken is
//! noted and left out, so that the rest can still be checked.
//!
//! The file may be something else than limits, by mistake or on purpose. So nothing of its text goes into what is noted:
//! values are described, and only keys of limits files are named.

mod keys;
mod metadata;
mod scalar;
mod shape;

use std::{sync::Arc, time::Duration};

use granit_parser::ScalarStyle;
use keys::{Kind, UPSTREAM, step, unknown};
use metadata::{is_no_text, kind_of, whole};
use scalar::{has_vague_unit, has_zero_in_front, is_float, is_null, scalar};
use shape::{Data, NODES_MAX, Node, Position};
use sluicegate_core::{
    Algorithm, Counting, OnFailure,
    rules::{
        CompileError, CompileWarning, DescriptorNode, LimitNode, LimitsFile, LimitsNode, NodePath,
        Oddity, Place, Placed, Problem, Report,
    },
};

/// What is shared by the files that are read together.
#[derive(Debug)]
pub(super) struct Shared {
    /// What is left of [`NODES_MAX`].
    nodes_left: usize,
    /// How often something took the place of a text.
    stand_ins: usize,
    /// What was found.
    pub(super) report: Report,
}

impl Default for Shared {
    fn default() -> Self {
        Self { nodes_left: NODES_MAX, stand_ins: 0, report: Report::default() }
    }
}

/// Reads one file; `None` if it is no map with a domain, or if there are more mistakes than are listed.
pub(super) fn read(name: &str, text: &str, shared: &mut Shared) -> Option<LimitsFile> {
    let mut nodes_left = shared.nodes_left;
    let mut reader = Reader { file: Arc::from(name), shared, noted: 0 };
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let loaded = shape::load(text, &mut nodes_left, |at, oddity| reader.odd(&at, oddity));
    reader.shared.nodes_left = nodes_left;
    let root = match loaded {
        Ok(root) => root,
        Err((at, problem)) => {
            reader.wrong(&at, problem);
            return None;
        }
    };
    let Some(root) = root.filter(|root| !is_null(root)) else {
        reader.wrong(&Spot::start(), Problem::Missing("domain"));
        return None;
    };
    reader.file(&root)
}

/// Position and path of a node.
#[derive(Clone)]
struct Spot {
    line: usize,
    column: usize,
    path: NodePath,
}

impl Spot {
    fn at(at: Position, path: NodePath) -> Self {
        Self { line: at.line as usize, column: at.column as usize, path }
    }

    /// Where the file begins.
    fn start() -> Self {
        Self { line: 1, column: 1, path: NodePath::default() }
    }

    fn of(node: &Node<'_>, path: NodePath) -> Self {
        Self::at(node.at, path)
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
    at: Position,
    value: &'n Node<'y>,
}

impl<'n, 'y> Fields<'n, 'y> {
    /// The value of a key, with its place.
    fn get(&self, key: &'static str) -> Option<(Spot, &'n Node<'y>)> {
        let field = self.fields.iter().find(|field| field.name == key)?;
        Some((Spot::at(field.at, self.spot.path.key(key)), field.value))
    }
}

/// Reads nodes and notes what is wrong with them.
struct Reader<'e> {
    file: Arc<str>,
    shared: &'e mut Shared,
    /// How many mistakes were noted in this file.
    noted: usize,
}

impl Reader<'_> {
    fn file(&mut self, root: &Node<'_>) -> Option<LimitsFile> {
        // Not where the node begins: what is missing is missing from the whole file.
        let fields = self.map(&Spot::start(), root, Kind::Root)?;
        let place = self.place(&fields.spot);
        let is_limits_file = fields.get("domain").is_some();
        let domain = self.required(&fields, "domain");
        let defaults = fields.get("defaults").filter(|(_, node)| !is_null(node));
        let algorithm = defaults.and_then(|(spot, node)| {
            let defaults = self.map(&spot, node, Kind::Defaults)?;
            self.algorithm(&defaults)
        });
        let tenant = self.text(&fields, "tenant");
        let counting = self.counting(&fields);
        let on_failure = self.on_failure(&fields);
        let descriptors = self.descriptors(&fields);
        if !is_limits_file {
            // What else is wrong with it would be told with its names. A key that was noted may be this one, misspelt.
            if !fields.noted {
                self.wrong(&fields.spot, Problem::Missing("domain"));
            }
            return None;
        }
        if self.is_given_up() {
            return None;
        }
        Some(LimitsFile { place, domain, tenant, counting, on_failure, algorithm, descriptors })
    }

    fn descriptors(&mut self, of: &Fields<'_, '_>) -> Vec<DescriptorNode> {
        let nodes = self.list(of, "descriptors");
        let mut descriptors = Vec::with_capacity(nodes.len());
        for (spot, node) in nodes {
            if self.is_given_up() {
                break;
            }
            descriptors.extend(self.descriptor(&spot, node));
        }
        descriptors
    }

    fn descriptor(&mut self, spot: &Spot, node: &Node<'_>) -> Option<DescriptorNode> {
        let fields = self.map(spot, node, Kind::Descriptor)?;
        Some(DescriptorNode {
            place: self.place(&fields.spot),
            key: self.required(&fields, "key").value,
            value: self.value(&fields),
            limits: self.limits(&fields),
            counting: self.counting(&fields),
            on_failure: self.on_failure(&fields).map(|it| it.value),
            shadow_mode: self.flag(&fields, "shadow_mode"),
            quota_mode: self.flag(&fields, "quota_mode"),
            detailed_metric: self.flag(&fields, "detailed_metric"),
            value_to_metric: self.flag(&fields, "value_to_metric"),
            share_threshold: self.flag(&fields, "share_threshold"),
            metadata: self.metadata(&fields),
            descriptors: self.descriptors(&fields),
        })
    }

    fn limits(&mut self, of: &Fields<'_, '_>) -> Option<LimitsNode> {
        let one = of.get("rate_limit").filter(|(_, node)| !is_null(node));
        if let Some((spot, _)) = of.get("limits") {
            if one.is_some() {
                self.wrong(&spot, Problem::LimitsTwice);
            }
            let nodes = self.list(of, "limits");
            let asked = nodes.len();
            let limits: Vec<_> = nodes
                .into_iter()
                .filter_map(|(spot, node)| self.limit(&spot, node, Kind::LimitOfList))
                .collect();
            // What is no limit at all was noted; a list without it must not look like another mistake.
            let empty = limits.is_empty() && asked > 0;
            return (!empty).then(|| LimitsNode::Several(self.place(&spot), limits));
        }
        let (spot, node) = one?;
        let limit = self.limit(&spot, node, Kind::Limit)?;
        Some(LimitsNode::One(Box::new(limit)))
    }

    /// One limit; `None` if it is none at all.
    fn limit(&mut self, spot: &Spot, node: &Node<'_>, kind: Kind) -> Option<LimitNode> {
        let noted = self.noted;
        let fields = self.map(spot, node, kind)?;
        let requests_per_unit = self.number(&fields, "requests_per_unit");
        let unit_multiplier = self.number(&fields, "unit_multiplier");
        let burst = self.number(&fields, "burst");
        let unlimited = self.flag(&fields, "unlimited");
        let name = self.text(&fields, "name");
        let known = self.noted;
        let unit = self.text(&fields, "unit");
        let unit = unit.filter(|_| self.noted == known);
        let window = self.duration(&fields, "window");
        let algorithm = self.algorithm(&fields).map(|it| it.value);
        let broken = self.noted > noted;
        Some(LimitNode {
            place: self.place(&fields.spot),
            requests_per_unit,
            unit,
            unit_multiplier,
            window,
            algorithm,
            burst,
            unlimited,
            name,
            replaces: self.replaces(&fields),
            broken,
        })
    }

    fn replaces(&mut self, of: &Fields<'_, '_>) -> Vec<Placed<String>> {
        let nodes = self.list(of, "replaces");
        nodes
            .into_iter()
            .filter_map(|(spot, node)| {
                let fields = self.map(&spot, node, Kind::Replace)?;
                Some(self.required(&fields, "name"))
            })
            .collect()
    }

    /// A map's fields, those of merged maps (`<<`) included; unknown keys are noted.
    fn map<'n, 'y>(
        &mut self,
        spot: &Spot,
        node: &'n Node<'y>,
        kind: Kind,
    ) -> Option<Fields<'n, 'y>> {
        let mut fields = Fields { spot: spot.clone(), fields: Vec::new(), noted: false };
        let before = self.noted;
        let is_map = self.gather(spot, node, kind, &mut fields);
        fields.noted = self.noted > before;
        is_map.then_some(fields)
    }

    fn gather<'n, 'y>(
        &mut self,
        spot: &Spot,
        node: &'n Node<'y>,
        kind: Kind,
        into: &mut Fields<'n, 'y>,
    ) -> bool {
        let Data::Map(map) = &node.data else {
            let wanted =
                if kind == Kind::Replace { "a map such as {name: other}" } else { "a map" };
            self.wrong_type(spot, node, wanted);
            return false;
        };
        let mut merged = Vec::new();
        for (key, value) in map.iter() {
            if self.is_given_up() {
                break;
            }
            let at = Spot::of(key, spot.path.clone());
            match scalar(key) {
                Some(("<<", ScalarStyle::Plain)) => merged.push((at, value)),
                Some((name, _)) => {
                    if kind.keys().contains(&name) {
                        if !into.fields.iter().any(|field| field.name == name) {
                            into.fields.push(Field { name, at: key.at, value });
                        }
                    } else if kind.tolerates(name) {
                        if let Problem::MisplacedKey { key, instead } =
                            kind.unknown(name, at.column)
                        {
                            self.odd(&at, Oddity::Misplaced { key, instead });
                        }
                        self.ignored(&Spot::of(value, at.path.key(step(name))), name, value);
                    } else if is_no_text(key) {
                        self.wrong_type(&at, key, "a text as the key");
                    } else {
                        self.wrong(&at, kind.unknown(name, at.column));
                    }
                }
                None => self.wrong_type(&at, key, "a text as the key"),
            }
        }
        for (at, node) in merged {
            let nodes = match &node.data {
                Data::List(nodes) => nodes,
                _ => std::slice::from_ref(node),
            };
            for node in nodes {
                self.gather(&at, node, kind, into);
            }
        }
        true
    }

    /// What stands below a key that is ignored. envoyproxy/ratelimit looks at its shape all the same.
    fn ignored(&mut self, spot: &Spot, key: &str, node: &Node<'_>) {
        if key == "metadata" {
            return;
        }
        match &node.data {
            Data::Map(map) => {
                for (key, value) in map.iter() {
                    let at = Spot::of(key, spot.path.clone());
                    match scalar(key) {
                        Some((name, _)) if UPSTREAM.contains(&name) || name == "<<" => {
                            self.ignored(&Spot::of(value, spot.path.key(step(name))), name, value);
                        }
                        Some((name, _)) => {
                            self.wrong(&at, unknown(name, at.column, UPSTREAM));
                        }
                        None => self.wrong_type(&at, key, "a text as the key"),
                    }
                }
            }
            Data::List(nodes) => {
                for (index, node) in nodes.iter().enumerate() {
                    let at = Spot::of(node, spot.path.index(index));
                    match &node.data {
                        Data::Map(_) => self.ignored(&at, key, node),
                        _ => self.wrong_type(&at, node, "a map"),
                    }
                }
            }
            _ => match scalar(node) {
                Some((text, ScalarStyle::Plain)) if is_float(text) => {
                    self.wrong_type(spot, node, "a text in quotes");
                }
                _ => {}
            },
        }
    }

    /// The elements of a list; none if the key is absent.
    fn list<'n, 'y>(
        &mut self,
        of: &Fields<'n, 'y>,
        key: &'static str,
    ) -> Vec<(Spot, &'n Node<'y>)> {
        let Some((spot, node)) = of.get(key) else { return Vec::new() };
        match &node.data {
            Data::List(nodes) => nodes
                .iter()
                .enumerate()
                .map(|(index, node)| (Spot::of(node, spot.path.index(index)), node))
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
    fn text(&mut self, of: &Fields<'_, '_>, key: &'static str) -> Option<Placed<String>> {
        let (spot, node) = of.get(key)?;
        let value = match scalar(node) {
            Some((text, ScalarStyle::Plain)) if is_float(text) => {
                self.wrong_type(&spot, node, "a text in quotes");
                self.stand_in()
            }
            Some(_) if is_null(node) => return None,
            Some((text, _)) => text.to_owned(),
            None => {
                self.wrong_type(&spot, node, "a text");
                self.stand_in()
            }
        };
        Some(Placed { value, place: self.place(&spot) })
    }

    /// A text that must not be missing; empty if it is.
    fn required(&mut self, of: &Fields<'_, '_>, key: &'static str) -> Placed<String> {
        self.text(of, key).unwrap_or_else(|| {
            let value = if of.noted { self.stand_in() } else { String::new() };
            let spot = of.get(key).map_or_else(|| of.spot.clone(), |(spot, _)| spot);
            Placed { value, place: self.place(&spot) }
        })
    }

    /// A descriptor's value. Where a key was noted it may be the value's, misspelt.
    fn value(&mut self, of: &Fields<'_, '_>) -> Option<Placed<String>> {
        let value = self.text(of, "value");
        let missing = of.noted && of.get("value").is_none();
        value.or_else(|| {
            missing.then(|| Placed { value: self.stand_in(), place: self.place(&of.spot) })
        })
    }

    /// Takes the place of a text that is broken, and noted. Like no other text, and good as a pattern, so
    /// that nothing else looks wrong for it.
    fn stand_in(&mut self) -> String {
        self.shared.stand_ins += 1;
        format!("unreadable text {}*", self.shared.stand_ins)
    }

    /// Whether a mistake was found that is not listed. What was read is not used then.
    const fn is_given_up(&self) -> bool {
        self.shared.report.mistakes.more() > 0
    }

    fn number(&mut self, of: &Fields<'_, '_>, key: &'static str) -> Option<Placed<u32>> {
        let (spot, node) = of.get(key)?;
        if is_null(node) {
            return None;
        }
        let number = scalar(node)
            .filter(|(_, style)| *style == ScalarStyle::Plain)
            .and_then(|(text, _)| Some((text, whole(text)?)));
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

    fn flag(&mut self, of: &Fields<'_, '_>, key: &'static str) -> bool {
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

    fn duration(&mut self, of: &Fields<'_, '_>, key: &'static str) -> Option<Placed<Duration>> {
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

    fn algorithm(&mut self, of: &Fields<'_, '_>) -> Option<Placed<Algorithm>> {
        let wanted =
            "fixed_window, sliding_window_log, sliding_window_counter, token_bucket or gcra";
        let find = |text: &str| Algorithm::ALL.into_iter().find(|it| it.name() == text);
        self.word(of, "algorithm", wanted, find)
    }

    fn counting(&mut self, of: &Fields<'_, '_>) -> Option<Placed<Counting>> {
        let find = |text: &str| Counting::ALL.into_iter().find(|it| it.name() == text);
        self.word(of, "counting", "free, debit or upstream", find)
    }

    fn on_failure(&mut self, of: &Fields<'_, '_>) -> Option<Placed<OnFailure>> {
        let find = |text: &str| OnFailure::ALL.into_iter().find(|it| it.name() == text);
        self.word(of, "on_failure", "allow, deny, local or defer", find)
    }

    fn word<T>(
        &mut self,
        of: &Fields<'_, '_>,
        key: &'static str,
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
        self.noted += 1;
        let place = self.place(spot);
        self.shared.report.mistakes.push(CompileError { place, problem });
    }

    fn odd(&mut self, spot: &Spot, oddity: Oddity) {
        let place = self.place(spot);
        self.shared.report.warnings.push(CompileWarning { place, oddity });
    }

    fn wrong_type(&mut self, spot: &Spot, node: &Node<'_>, wanted: &'static str) {
        let found = match &node.data {
            Data::Map(_) => "a map".to_owned(),
            Data::List(_) => "a list".to_owned(),
            _ => match scalar(node) {
                Some(_) if is_null(node) => "nothing".to_owned(),
                Some((text, style)) => kind_of(text, style),
                None => "something with a tag".to_owned(),
            },
        };
        self.wrong(spot, Problem::WrongType { found, wanted });
    }
}
