//! Builds the nodes of a document from the events of the YAML parser. Reports repeated keys and further documents,
//! which the nodes do not show.
//!
//! Stops before nesting would exhaust the stack, or nodes and aliases the memory. The nodes of the YAML library are not
//! used, because they need ten times the memory and are copied for each anchor.

use std::{
    borrow::Cow,
    collections::{HashMap, hash_map::Entry},
};

use granit_parser::{
    ErrorKind, Event, Marker, Parser, ScalarStyle, ScanError, Span, StrInput, Tag,
};
use sluicegate_core::rules::{Mistake, NodePath, Warning, truncated};

use super::{
    keys::path_step,
    location::FileLocation,
    node::{Position, YamlNode, YamlNodeData},
};

/// The most nodes that the aliases of a file may expand to. Bounds YAML bombs.
const ALIAS_NODES_MAX: usize = 100_000;

/// The most bytes of text that the aliases of a file may expand to.
const ALIAS_BYTES_MAX: usize = 16 << 20;

/// The most nodes of all files together. A node can be two bytes of text, and needs hundreds of bytes of memory until
/// it is compiled.
pub(super) const NODES_MAX: usize = 2_000_000;

/// The most levels of nested lists and maps. Each level of a tree of rules has two.
const NESTING_MAX: usize = 160;

/// Builds the nodes of the first document. Returns its root, or `None` if the text has no document. Subtracts the
/// number of nodes from `nodes_left`, and passes warnings to `warn`.
///
/// # Errors
/// The mistake because of which the nodes cannot be built, with its location.
pub(super) fn build_nodes<'t>(
    text: &'t str,
    nodes_left: &mut usize,
    mut warn: impl FnMut(FileLocation, Warning),
) -> Result<Option<YamlNode<'t>>, (FileLocation, Mistake)> {
    let mut builder = Builder {
        open: Vec::new(),
        anchors: HashMap::new(),
        aliased: NodeSize::default(),
        nodes_left: *nodes_left,
        warn: &mut warn,
        root: None,
    };
    let mut events = Parser::new_from_str(text);
    while let Some(event) = events.next_event() {
        let (event, span) = event.map_err(|error| syntax_error(&error))?;
        if event == Event::DocumentEnd {
            break;
        }
        let built = builder.add_event(event, span);
        built.map_err(|mistake| (FileLocation::at(span.start.into(), builder.path()), mistake))?;
    }
    *nodes_left = builder.nodes_left;
    let root = builder.root;
    if let Some(begin) = extra_document(&mut events) {
        warn(FileLocation::at(begin.into(), NodePath::default()), Warning::ExtraDocument);
    }
    Ok(root)
}

/// Position of the next document that is not empty, if any.
fn extra_document<'t>(events: &mut Parser<'t, StrInput<'t>>) -> Option<Marker> {
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

/// The mistake for an error of the YAML parser.
fn syntax_error(error: &ScanError) -> (FileLocation, Mistake) {
    let message = match error.kind() {
        // The file may not be a limits file, so the character is not quoted.
        ErrorKind::UnexpectedCharacter { .. } => "unexpected character".to_owned(),
        kind => kind.to_string(),
    };
    let location = FileLocation::at((*error.marker()).into(), NodePath::default());
    (location, Mistake::Yaml(message))
}

/// Size of a node, with all nodes below it and all nodes that their aliases expand to.
#[derive(Clone, Copy, Default)]
struct NodeSize {
    nodes: usize,
    /// Bytes of scalars.
    bytes: usize,
    /// Levels of lists and maps.
    height: usize,
}

/// A list or map whose end has not been parsed yet.
struct OpenCollection<'t> {
    anchor: usize,
    at: Position,
    is_tagged: bool,
    /// Size of the items so far.
    size: NodeSize,
    path: NodePath,
    items: CollectionItems<'t>,
}

/// The items of an open list or map so far.
enum CollectionItems<'t> {
    List(Vec<YamlNode<'t>>),
    Map {
        entries: Vec<(YamlNode<'t>, YamlNode<'t>)>,
        /// For each key that is a scalar, the position of its entry and the line of the key.
        scalar_keys: HashMap<Cow<'t, str>, (usize, u32)>,
        /// The key whose value is parsed next.
        key: Option<YamlNode<'t>>,
    },
}

impl CollectionItems<'_> {
    fn map() -> Self {
        Self::Map { entries: Vec::new(), scalar_keys: HashMap::new(), key: None }
    }
}

/// Builds nodes from events.
struct Builder<'t, 'o> {
    open: Vec<OpenCollection<'t>>,
    /// By anchor, the node that aliases of it expand to, and its size.
    anchors: HashMap<usize, (YamlNode<'t>, NodeSize)>,
    /// Size of the nodes that all aliases so far expand to.
    aliased: NodeSize,
    nodes_left: usize,
    warn: &'o mut dyn FnMut(FileLocation, Warning),
    root: Option<YamlNode<'t>>,
}

impl<'t> Builder<'t, '_> {
    /// Adds an event.
    fn add_event(&mut self, event: Event<'t>, span: Span) -> Result<(), Mistake> {
        let at = span.start.into();
        match event {
            Event::SequenceStart(_, anchor, tag) => {
                self.open(anchor, at, tag, CollectionItems::List(Vec::new()))
            }
            Event::MappingStart(_, anchor, tag) => {
                self.open(anchor, at, tag, CollectionItems::map())
            }
            Event::SequenceEnd | Event::MappingEnd => {
                self.close();
                Ok(())
            }
            Event::Scalar(text, style, anchor, tag) => {
                self.use_nodes(1)?;
                let is_text =
                    tag.is_some_and(|it| it.is_yaml_core_schema() && it.suffix() == "str");
                let style = if is_text { ScalarStyle::DoubleQuoted } else { style };
                let size = NodeSize { bytes: text.len(), ..NodeSize::default() };
                self.add_node(
                    anchor,
                    YamlNode { at, data: YamlNodeData::Scalar(text, style) },
                    size,
                );
                Ok(())
            }
            Event::Alias(anchor) => self.alias(anchor, at),
            _ => Ok(()),
        }
    }

    /// Subtracts nodes from those that are left.
    fn use_nodes(&mut self, nodes: usize) -> Result<(), Mistake> {
        let left = self.nodes_left.checked_sub(nodes);
        self.nodes_left = left.ok_or(Mistake::TooManyNodes { max: NODES_MAX })?;
        Ok(())
    }

    fn open(
        &mut self,
        anchor: usize,
        at: Position,
        tag: Option<Cow<'_, Tag>>,
        items: CollectionItems<'t>,
    ) -> Result<(), Mistake> {
        self.use_nodes(1)?;
        let is_tagged = tag.is_some_and(|tag| !tag.is_yaml_core_schema());
        let (size, path) = (NodeSize::default(), self.path());
        self.open.push(OpenCollection { anchor, at, is_tagged, size, path, items });
        self.check_height(0)
    }

    fn close(&mut self) {
        let Some(OpenCollection { anchor, at, is_tagged, size, items, .. }) = self.open.pop()
        else {
            return;
        };
        let data = match items {
            _ if is_tagged => YamlNodeData::Tagged,
            CollectionItems::List(nodes) => YamlNodeData::List(nodes.into()),
            CollectionItems::Map { entries, .. } => YamlNodeData::Map(entries.into()),
        };
        self.add_node(anchor, YamlNode { at, data }, NodeSize { height: size.height + 1, ..size });
    }

    fn alias(&mut self, anchor: usize, at: Position) -> Result<(), Mistake> {
        let Some((YamlNode { data, .. }, size)) = self.anchors.get(&anchor).cloned() else {
            return Err(Mistake::Yaml("an alias is inside its own anchor".to_owned()));
        };
        self.aliased.nodes += size.nodes;
        self.aliased.bytes += size.bytes;
        if self.aliased.nodes > ALIAS_NODES_MAX {
            return Err(Mistake::TooManyAliases { max: ALIAS_NODES_MAX });
        }
        if self.aliased.bytes > ALIAS_BYTES_MAX {
            return Err(Mistake::AliasesTooLong { max: ALIAS_BYTES_MAX });
        }
        self.use_nodes(size.nodes)?;
        self.check_height(size.height)?;
        self.add_node(0, YamlNode { at, data }, NodeSize { nodes: size.nodes - 1, ..size });
        Ok(())
    }

    /// Checks the bound on nesting, for a node of `below` levels inside the open ones.
    fn check_height(&self, below: usize) -> Result<(), Mistake> {
        if self.open.len() + below > NESTING_MAX {
            return Err(Mistake::TooNested { max: NESTING_MAX });
        }
        Ok(())
    }

    /// Adds a complete node to the innermost open list or map. `size.nodes` does not include the node itself.
    fn add_node(&mut self, anchor: usize, node: YamlNode<'t>, size: NodeSize) {
        let size = NodeSize { nodes: size.nodes + 1, ..size };
        if anchor > 0 {
            self.anchors.insert(anchor, (node.clone(), size));
        }
        let Some(parent) = self.open.last_mut() else {
            self.root = Some(node);
            return;
        };
        parent.size.nodes += size.nodes;
        parent.size.bytes += size.bytes;
        parent.size.height = parent.size.height.max(size.height);
        match &mut parent.items {
            CollectionItems::List(nodes) => nodes.push(node),
            CollectionItems::Map { entries, scalar_keys, key } => {
                let Some(key) = key.take() else {
                    *key = Some(node);
                    return;
                };
                let YamlNodeData::Scalar(text, _) = &key.data else {
                    entries.push((key, node));
                    return;
                };
                match scalar_keys.entry(text.clone()) {
                    Entry::Vacant(entry) => {
                        entry.insert((entries.len(), key.at.line));
                        entries.push((key, node));
                    }
                    Entry::Occupied(entry) => {
                        let (index, line) = *entry.get();
                        let line = line as usize;
                        let warning = Warning::DuplicateKey { key: truncated(text), line };
                        (self.warn)(FileLocation::at(key.at, parent.path.clone()), warning);
                        if let Some(first) = entries.get_mut(index) {
                            *first = (key, node);
                        }
                    }
                }
            }
        }
    }

    /// The path of the node that is parsed next.
    fn path(&self) -> NodePath {
        let Some(open) = self.open.last() else { return NodePath::default() };
        match &open.items {
            CollectionItems::List(nodes) => open.path.index(nodes.len()),
            CollectionItems::Map {
                key: Some(YamlNode { data: YamlNodeData::Scalar(text, _), .. }),
                ..
            } => open.path.key(path_step(text)),
            CollectionItems::Map { key: Some(_), .. } => open.path.key("*"),
            CollectionItems::Map { key: None, .. } => open.path.clone(),
        }
    }
}
