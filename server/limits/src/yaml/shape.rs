//! Builds the nodes of a document, and notes on the way what cannot be seen in them: keys that stand twice, and further
//! documents. It stops before nesting would exhaust the stack of those who walk the nodes, and aliases memory.
//!
//! The nodes are our own because those of the YAML library take ten times the memory, and are copied for each anchor.

use std::{
    borrow::Cow,
    collections::{HashMap, hash_map::Entry},
    rc::Rc,
};

use granit_parser::{
    ErrorKind, Event, Marker, Parser, ScalarStyle, ScanError, Span, StrInput, Tag,
};
use sluicegate_core::rules::{NodePath, Oddity, Problem, quoted};

use super::{Spot, keys::step};

/// The most nodes that aliases may stand for: more would be a bomb.
const ALIAS_NODES_MAX: usize = 100_000;

/// The most bytes of text that aliases may stand for.
const ALIAS_BYTES_MAX: usize = 16 << 20;

/// The most nodes of all files together. A node may be two bytes of text, and takes hundreds of memory until rules are made
/// of it.
pub(super) const NODES_MAX: usize = 2_000_000;

/// The deepest nesting: every level of a tree takes a list and a map.
const NESTING_MAX: usize = 160;

/// A node of a document. Copies share what is below it.
#[derive(Clone, Debug)]
pub(super) struct Node<'t> {
    pub(super) at: Position,
    pub(super) data: Data<'t>,
}

/// Where a node begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position {
    /// From 1.
    pub(super) line: u32,
    /// From 1.
    pub(super) column: u32,
}

/// What a node is.
#[derive(Clone, Debug)]
pub(super) enum Data<'t> {
    /// A scalar as it is written. One that is tagged as a text is as good as in quotes.
    Scalar(Cow<'t, str>, ScalarStyle),
    List(Rc<[Node<'t>]>),
    /// Keys and values. Of equal keys only the last is there.
    Map(Rc<[(Node<'t>, Node<'t>)]>),
    /// A list or a map with a tag that is not of YAML.
    Tagged,
}

impl From<Marker> for Position {
    fn from(marker: Marker) -> Self {
        let number = |it: usize| u32::try_from(it).unwrap_or(u32::MAX);
        Self { line: number(marker.line()), column: number(marker.col().saturating_add(1)) }
    }
}

/// The first document, if there is any: its root, with places and scalars as they are written. Its nodes are taken from
/// those that are left of [`NODES_MAX`]. What is odd is handed to `odd`.
///
/// # Errors
/// The mistake for which the nodes cannot be built.
pub(super) fn load<'t>(
    text: &'t str,
    nodes_left: &mut usize,
    mut odd: impl FnMut(Spot, Oddity),
) -> Result<Option<Node<'t>>, (Spot, Problem)> {
    let mut builder = Builder {
        open: Vec::new(),
        anchors: HashMap::new(),
        aliased: Extent::default(),
        nodes_left: *nodes_left,
        odd: &mut odd,
        root: None,
    };
    let mut events = Parser::new_from_str(text);
    while let Some(event) = events.next_event() {
        let (event, span) = event.map_err(|error| no_yaml(&error))?;
        if event == Event::DocumentEnd {
            break;
        }
        let built = builder.event(event, span);
        built.map_err(|problem| (Spot::at(span.start.into(), builder.path()), problem))?;
    }
    *nodes_left = builder.nodes_left;
    let root = builder.root;
    if let Some(begin) = further(&mut events) {
        odd(Spot::at(begin.into(), NodePath::default()), Oddity::FurtherDocument);
    }
    Ok(root)
}

/// Where a document begins that comes after those read, and is not empty.
fn further<'t>(events: &mut Parser<'t, StrInput<'t>>) -> Option<Marker> {
    let mut begin = None;
    while let Some(event) = events.next_event() {
        match event {
            Ok((Event::DocumentStart(..), span)) => begin = Some(span.start),
            Ok((Event::Scalar(text, ..), _)) if matches!(&*text, "" | "~") => {}
            Ok((Event::DocumentEnd, _)) => begin = None,
            Ok((Event::StreamEnd, _)) => return None,
            Ok((_, span)) => return begin.or(Some(span.start)),
            Err(error) => return begin.or(Some(*error.marker())),
        }
    }
    None
}

fn no_yaml(error: &ScanError) -> (Spot, Problem) {
    let said = match error.kind() {
        // The file may be none of limits, so the character is not told.
        ErrorKind::UnexpectedCharacter { .. } => "unexpected character".to_owned(),
        kind => kind.to_string(),
    };
    let spot = Spot::at((*error.marker()).into(), NodePath::default());
    (spot, Problem::Yaml(said))
}

/// How much a node is, with all that is below it and all that its aliases stand for.
#[derive(Clone, Copy, Default)]
struct Extent {
    nodes: usize,
    /// Of texts.
    bytes: usize,
    height: usize,
}

/// A list or a map that has begun.
struct Open<'t> {
    anchor: usize,
    at: Position,
    is_tagged: bool,
    extent: Extent,
    path: NodePath,
    inside: Inside<'t>,
}

enum Inside<'t> {
    List(Vec<Node<'t>>),
    Map {
        entries: Vec<(Node<'t>, Node<'t>)>,
        /// The entry and the line of each key that is a scalar.
        known: HashMap<Cow<'t, str>, (usize, u32)>,
        /// The key whose value comes next.
        key: Option<Node<'t>>,
    },
}

impl Inside<'_> {
    fn map() -> Self {
        Self::Map { entries: Vec::new(), known: HashMap::new(), key: None }
    }
}

struct Builder<'t, 'o> {
    open: Vec<Open<'t>>,
    /// Nodes that aliases may stand for.
    anchors: HashMap<usize, (Node<'t>, Extent)>,
    /// What all aliases stand for.
    aliased: Extent,
    nodes_left: usize,
    odd: &'o mut dyn FnMut(Spot, Oddity),
    root: Option<Node<'t>>,
}

impl<'t> Builder<'t, '_> {
    fn event(&mut self, event: Event<'t>, span: Span) -> Result<(), Problem> {
        let at = span.start.into();
        match event {
            Event::SequenceStart(_, anchor, tag) => {
                self.open(anchor, at, tag, Inside::List(Vec::new()))
            }
            Event::MappingStart(_, anchor, tag) => self.open(anchor, at, tag, Inside::map()),
            Event::SequenceEnd | Event::MappingEnd => {
                self.close();
                Ok(())
            }
            Event::Scalar(text, style, anchor, tag) => {
                self.take(1)?;
                let is_text =
                    tag.is_some_and(|it| it.is_yaml_core_schema() && it.suffix() == "str");
                let style = if is_text { ScalarStyle::DoubleQuoted } else { style };
                let extent = Extent { bytes: text.len(), ..Extent::default() };
                self.node(anchor, Node { at, data: Data::Scalar(text, style) }, extent);
                Ok(())
            }
            Event::Alias(anchor) => self.alias(anchor, at),
            _ => Ok(()),
        }
    }

    /// Takes nodes from those that are left.
    fn take(&mut self, nodes: usize) -> Result<(), Problem> {
        let left = self.nodes_left.checked_sub(nodes);
        self.nodes_left = left.ok_or(Problem::TooManyNodes { max: NODES_MAX })?;
        Ok(())
    }

    fn open(
        &mut self,
        anchor: usize,
        at: Position,
        tag: Option<Cow<'_, Tag>>,
        inside: Inside<'t>,
    ) -> Result<(), Problem> {
        self.take(1)?;
        let is_tagged = tag.is_some_and(|tag| !tag.is_yaml_core_schema());
        let (extent, path) = (Extent::default(), self.path());
        self.open.push(Open { anchor, at, is_tagged, extent, path, inside });
        self.check_height(0)
    }

    fn close(&mut self) {
        let Some(Open { anchor, at, is_tagged, extent, inside, .. }) = self.open.pop() else {
            return;
        };
        let data = match inside {
            _ if is_tagged => Data::Tagged,
            Inside::List(nodes) => Data::List(nodes.into()),
            Inside::Map { entries, .. } => Data::Map(entries.into()),
        };
        self.node(anchor, Node { at, data }, Extent { height: extent.height + 1, ..extent });
    }

    fn alias(&mut self, anchor: usize, at: Position) -> Result<(), Problem> {
        let Some((Node { data, .. }, extent)) = self.anchors.get(&anchor).cloned() else {
            return Err(Problem::Yaml("an alias stands inside what it stands for".to_owned()));
        };
        self.aliased.nodes += extent.nodes;
        self.aliased.bytes += extent.bytes;
        if self.aliased.nodes > ALIAS_NODES_MAX {
            return Err(Problem::TooManyAliases { max: ALIAS_NODES_MAX });
        }
        if self.aliased.bytes > ALIAS_BYTES_MAX {
            return Err(Problem::AliasesTooLong { max: ALIAS_BYTES_MAX });
        }
        self.take(extent.nodes)?;
        self.check_height(extent.height)?;
        self.node(0, Node { at, data }, Extent { nodes: extent.nodes - 1, ..extent });
        Ok(())
    }

    fn check_height(&self, below: usize) -> Result<(), Problem> {
        if self.open.len() + below > NESTING_MAX {
            return Err(Problem::TooNested { max: NESTING_MAX });
        }
        Ok(())
    }

    /// Adds a complete node to the one that is open. `extent.nodes` does not have the node itself yet.
    fn node(&mut self, anchor: usize, node: Node<'t>, extent: Extent) {
        let extent = Extent { nodes: extent.nodes + 1, ..extent };
        if anchor > 0 {
            self.anchors.insert(anchor, (node.clone(), extent));
        }
        let Some(parent) = self.open.last_mut() else {
            self.root = Some(node);
            return;
        };
        parent.extent.nodes += extent.nodes;
        parent.extent.bytes += extent.bytes;
        parent.extent.height = parent.extent.height.max(extent.height);
        match &mut parent.inside {
            Inside::List(nodes) => nodes.push(node),
            Inside::Map { entries, known, key } => {
                let Some(key) = key.take() else {
                    *key = Some(node);
                    return;
                };
                let Data::Scalar(text, _) = &key.data else {
                    entries.push((key, node));
                    return;
                };
                match known.entry(text.clone()) {
                    Entry::Vacant(entry) => {
                        entry.insert((entries.len(), key.at.line));
                        entries.push((key, node));
                    }
                    Entry::Occupied(entry) => {
                        let (index, line) = *entry.get();
                        let line = line as usize;
                        let oddity = Oddity::DuplicateKey { key: quoted(text), line };
                        (self.odd)(Spot::at(key.at, parent.path.clone()), oddity);
                        if let Some(first) = entries.get_mut(index) {
                            *first = (key, node);
                        }
                    }
                }
            }
        }
    }

    /// The path to what comes next.
    fn path(&self) -> NodePath {
        let Some(open) = self.open.last() else { return NodePath::default() };
        match &open.inside {
            Inside::List(nodes) => open.path.index(nodes.len()),
            Inside::Map { key: Some(Node { data: Data::Scalar(text, _), .. }), .. } => {
                open.path.key(step(text))
            }
            Inside::Map { key: Some(_), .. } => open.path.key("*"),
            Inside::Map { key: None, .. } => open.path.clone(),
        }
    }
}
