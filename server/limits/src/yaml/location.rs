//! Positions in a limits file.

use sluicegate_core::rules::NodePath;

use super::node::{Node, Position};

/// Position and path of a node.
#[derive(Clone)]
pub(super) struct FileLocation {
    pub(super) line: usize,
    pub(super) column: usize,
    pub(super) path: NodePath,
}

impl FileLocation {
    pub(super) fn at(at: Position, path: NodePath) -> Self {
        Self { line: at.line as usize, column: at.column as usize, path }
    }

    /// The beginning of the file.
    pub(super) fn file_start() -> Self {
        Self { line: 1, column: 1, path: NodePath::default() }
    }

    pub(super) fn of(node: &Node<'_>, path: NodePath) -> Self {
        Self::at(node.at, path)
    }
}
