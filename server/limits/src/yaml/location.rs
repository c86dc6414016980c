//! Locations in a limits file.

use sluicegate_core::rules::NodePath;

use super::node::{Position, YamlNode};

/// Line, column and path of a node. Becomes a `SourceLocation` with the name of the file.
#[derive(Clone)]
pub(super) struct FileLocation {
    pub(super) line: usize,
    pub(super) column: usize,
    pub(super) path: NodePath,
}

impl FileLocation {
    /// The location at a position.
    pub(super) fn at(at: Position, path: NodePath) -> Self {
        Self { line: at.line as usize, column: at.column as usize, path }
    }

    /// The beginning of the file.
    pub(super) fn file_start() -> Self {
        Self { line: 1, column: 1, path: NodePath::default() }
    }

    /// The location of a node.
    pub(super) fn of(node: &YamlNode<'_>, path: NodePath) -> Self {
        Self::at(node.at, path)
    }
}
