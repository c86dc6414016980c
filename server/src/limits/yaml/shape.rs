//! Builds the nodes of a document, and notes on the way what cannot be seen in them: keys that stand twice. It
//! stops before nesting would exhaust the stack of whoever walks the nodes, and aliases memory.

use std::collections::{HashMap, hash_map::Entry};

use saphyr::{MarkedYaml, Marker, ScanError, YamlLoader};
use saphyr_parser::{Event, Parser, SpannedEventReceiver as _};
use sluicegate_core::rules::{Oddity, Problem};

use super::{Spot, keys::step};

/// The most nodes that aliases may stand for: more would be a bomb.
const ALIAS_NODES_MAX: usize = 100_000;

/// The most nodes of all files together. A node may be two bytes of text, and takes hundreds of memory until rules are made
/// of it.
pub(in crate::limits) const NODES_MAX: usize = 2_000_000;

/// The deepest nesting: every level of a tree takes a list and a map.
const NESTING_MAX: usize = 160;

/// What is odd, and where.
type Oddities = Vec<(Spot, Oddity)>;

/// The first document, if there is any: its root, with places and scalars as they are written. Its nodes are taken from
/// those that are left of [`NODES_MAX`].
///
/// # Errors
/// The mistake for which the nodes cannot be built. Others are returned.
pub(super) fn load<'t>(
    text: &'t str,
    nodes_left: &mut usize,
) -> Result<(Option<MarkedYaml<'t>>, Oddities), (Spot, Problem)> {
    let mut loader = YamlLoader::default();
    loader.early_parse(false);
    loader.allow_duplicate_keys(true);
    let mut walk = Walk { nodes_left: *nodes_left, ..Walk::default() };
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| no_yaml(&error))?;
        let problem = match &event {
            Event::SequenceStart(anchor, _) => walk.open(*anchor, Inside::List(0)),
            Event::MappingStart(anchor, _) => walk.open(*anchor, Inside::Map(HashMap::new(), None)),
            Event::SequenceEnd | Event::MappingEnd => {
                walk.close();
                Ok(())
            }
            Event::Scalar(text, _, anchor, _) => walk.scalar(text, *anchor, span.start),
            Event::Alias(anchor) => walk.alias(*anchor),
            _ => Ok(()),
        };
        problem.map_err(|problem| (Spot::at(span.start, walk.path()), problem))?;
        let ends = event == Event::DocumentEnd;
        loader.on_event(event, span);
        if ends {
            break;
        }
    }
    *nodes_left = walk.nodes_left;
    if let Some(error) = loader.error() {
        return Err(no_yaml(error));
    }
    Ok((loader.into_documents().into_iter().next(), walk.oddities))
}

fn no_yaml(error: &ScanError) -> (Spot, Problem) {
    // Some end with the character that is not allowed where it stands.
    let (said, _) = error.info().split_once(": `").unwrap_or((error.info(), ""));
    (Spot::at(*error.marker(), String::new()), Problem::Yaml(said.to_owned()))
}

/// How much a node is, with all that is below it and all that its aliases stand for.
#[derive(Clone, Copy, Default)]
struct Extent {
    nodes: usize,
    height: usize,
}

/// A list or a map that has begun.
struct Open {
    anchor: usize,
    extent: Extent,
    inside: Inside,
}

enum Inside {
    /// How many elements there were.
    List(usize),
    /// The keys there were with their lines, and the one whose value comes next.
    Map(HashMap<String, usize>, Option<String>),
}

#[derive(Default)]
struct Walk {
    open: Vec<Open>,
    anchors: HashMap<usize, Extent>,
    aliased: usize,
    nodes_left: usize,
    oddities: Oddities,
}

impl Walk {
    /// Takes nodes from those that are left.
    fn take(&mut self, nodes: usize) -> Result<(), Problem> {
        let left = self.nodes_left.checked_sub(nodes);
        self.nodes_left = left.ok_or(Problem::TooManyNodes { max: NODES_MAX })?;
        Ok(())
    }

    fn open(&mut self, anchor: usize, inside: Inside) -> Result<(), Problem> {
        self.take(1)?;
        self.open.push(Open { anchor, extent: Extent::default(), inside });
        self.check_height(0)
    }

    fn close(&mut self) {
        if let Some(Open { anchor, extent, .. }) = self.open.pop() {
            self.node(anchor, Extent { height: extent.height + 1, ..extent }, None);
        }
    }

    fn scalar(&mut self, text: &str, anchor: usize, at: Marker) -> Result<(), Problem> {
        self.take(1)?;
        let mut first = None;
        if let Some(Open { inside: Inside::Map(keys, None), .. }) = self.open.last_mut() {
            match keys.entry(text.to_owned()) {
                Entry::Occupied(entry) => first = Some(*entry.get()),
                Entry::Vacant(entry) => _ = entry.insert(at.line()),
            }
        }
        if let Some(line) = first {
            let oddity = Oddity::DuplicateKey { key: text.to_owned(), line };
            self.oddities.push((Spot::at(at, self.path()), oddity));
        }
        self.node(anchor, Extent::default(), Some(text));
        Ok(())
    }

    fn alias(&mut self, anchor: usize) -> Result<(), Problem> {
        let Some(&extent) = self.anchors.get(&anchor) else {
            return Err(Problem::Yaml("an alias stands inside what it stands for".to_owned()));
        };
        self.aliased += extent.nodes;
        if self.aliased > ALIAS_NODES_MAX {
            return Err(Problem::TooManyAliases { max: ALIAS_NODES_MAX });
        }
        self.take(extent.nodes)?;
        self.check_height(extent.height)?;
        self.node(0, Extent { nodes: extent.nodes - 1, ..extent }, None);
        Ok(())
    }

    fn check_height(&self, below: usize) -> Result<(), Problem> {
        if self.open.len() + below > NESTING_MAX {
            return Err(Problem::TooNested { max: NESTING_MAX });
        }
        Ok(())
    }

    /// Counts a complete node in. `extent.nodes` does not have the node itself yet.
    fn node(&mut self, anchor: usize, extent: Extent, text: Option<&str>) {
        let extent = Extent { nodes: extent.nodes + 1, ..extent };
        if anchor > 0 {
            self.anchors.insert(anchor, extent);
        }
        let Some(parent) = self.open.last_mut() else { return };
        parent.extent.nodes += extent.nodes;
        parent.extent.height = parent.extent.height.max(extent.height);
        match &mut parent.inside {
            Inside::List(elements) => *elements += 1,
            Inside::Map(_, key) => {
                *key = match key.take() {
                    Some(_) => None,
                    None => Some(text.unwrap_or_default().to_owned()),
                }
            }
        }
    }

    /// The path to what comes next.
    fn path(&self) -> String {
        let mut path = String::new();
        for open in &self.open {
            match &open.inside {
                Inside::List(index) => path.push_str(&format!("[{index}]")),
                Inside::Map(_, Some(key)) if path.is_empty() => path.push_str(step(key)),
                Inside::Map(_, Some(key)) => path.push_str(&format!(".{}", step(key))),
                Inside::Map(_, None) => {}
            }
        }
        path
    }
}
