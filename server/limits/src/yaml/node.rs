//! Nodes of a YAML document.

use std::{borrow::Cow, rc::Rc};

use granit_parser::{Marker, ScalarStyle};

/// A node of a document. Clones share its children.
#[derive(Clone, Debug)]
pub(super) struct YamlNode<'t> {
    pub(super) at: Position,
    pub(super) data: YamlNodeData<'t>,
}

/// Position of the beginning of a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position {
    /// Line, from 1.
    pub(super) line: u32,
    /// Column, from 1.
    pub(super) column: u32,
}

/// Kinds of nodes.
#[derive(Clone, Debug)]
pub(super) enum YamlNodeData<'t> {
    /// A scalar as written, and its style. With the tag `!!str` the style is that of a text in quotes.
    Scalar(Cow<'t, str>, ScalarStyle),
    List(Rc<[YamlNode<'t>]>),
    /// Keys and values. Of equal keys only the last one is there.
    Map(Rc<[(YamlNode<'t>, YamlNode<'t>)]>),
    /// A list or a map with a tag that YAML does not define.
    Tagged,
}

impl From<Marker> for Position {
    fn from(marker: Marker) -> Self {
        let number = |it: usize| u32::try_from(it).unwrap_or(u32::MAX);
        Self { line: number(marker.line()), column: number(marker.col().saturating_add(1)) }
    }
}
