//! Limits files as data: the content of the YAML, with source locations for mistakes and warnings.

use std::{fmt, sync::Arc, time::Duration};

use crate::{Algorithm, Counting, OnFailure, ResponseBody, metadata};

/// A location in a limits file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourceLocation {
    /// The file's path, as given.
    pub file: Arc<str>,
    /// Line, from 1; 0 for the file as a whole.
    pub line: usize,
    /// Column, from 1; 0 for the file as a whole.
    pub column: usize,
    /// Path of the node from the root of the document.
    pub path: NodePath,
}

/// A path from the root of a document to a node, such as `descriptors[0].rate_limit.unit`; empty for the root.
///
/// Paths share the beginning that they have in common, because a file may have millions of nodes at great depth.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodePath(Option<Arc<Step>>);

/// The last step of a path, and the path before it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Step {
    parent: NodePath,
    child: Child,
}

/// A child of a map or a list.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Child {
    Key(&'static str),
    Index(usize),
}

impl NodePath {
    /// The path to the value of a key, in the map at this path.
    #[must_use]
    pub fn key(&self, key: &'static str) -> Self {
        self.child(Child::Key(key))
    }

    /// The path to an element, in the list at this path.
    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        self.child(Child::Index(index))
    }

    fn child(&self, child: Child) -> Self {
        Self(Some(Arc::new(Step { parent: self.clone(), child })))
    }

    /// Whether this is the path of the root.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

impl fmt::Display for NodePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(step) = &self.0 else { return Ok(()) };
        step.parent.fmt(f)?;
        match step.child {
            Child::Key(key) if step.parent.is_empty() => f.write_str(key),
            Child::Key(key) => write!(f, ".{key}"),
            Child::Index(index) => write!(f, "[{index}]"),
        }
    }
}

impl fmt::Display for SourceLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        if !self.path.is_empty() {
            write!(f, ": {}", self.path)?;
        }
        Ok(())
    }
}

impl SourceLocation {
    /// File, line and column, without the path. A node that is repeated by YAML aliases has several paths.
    pub(super) fn position(&self) -> (&Arc<str>, usize, usize) {
        (&self.file, self.line, self.column)
    }

    /// The location as a message about `file` shows it: `line 3` if it is in that file, else `b.yaml:3`.
    pub(super) fn relative_to(&self, file: &str) -> String {
        if *self.file == *file {
            format!("line {}", self.line)
        } else {
            format!("{}:{}", self.file, self.line)
        }
    }
}

/// A value with its location.
#[derive(Clone, Debug, PartialEq)]
pub struct Located<T> {
    /// The value.
    pub value: T,
    /// Its location.
    pub location: SourceLocation,
}

/// A limits file: the settings and the tree of rules of one domain.
#[derive(Clone, Debug, PartialEq)]
pub struct LimitsFile {
    /// Location of the file's beginning.
    pub location: SourceLocation,
    /// Name of the domain.
    pub domain: Located<String>,
    /// `tenant`: key of the entry whose value is the tenant.
    pub tenant: Option<Located<String>>,
    /// `counting`: default for the rules.
    pub counting: Option<Located<Counting>>,
    /// `on_failure`: default for the rules.
    pub on_failure: Option<Located<OnFailure>>,
    /// `defaults.algorithm`: default for the limits.
    pub algorithm: Option<Located<Algorithm>>,
    /// `response_body`: default for the rules. The value is `None` for `none`.
    pub response_body: Option<Located<Option<Arc<ResponseBody>>>>,
    /// `descriptors`: the first level of the tree of rules.
    pub descriptors: Vec<DescriptorNode>,
}

/// A node of the tree of rules: one element of `descriptors`.
#[derive(Clone, Debug, PartialEq)]
pub struct DescriptorNode {
    /// Location of the node.
    pub location: SourceLocation,
    /// `key` of the entry that the node matches.
    pub key: String,
    /// `value` of the entry, or a pattern; `None` matches every value.
    pub value: Option<Located<String>>,
    /// `rate_limit` or `limits`; `None` if the node has neither.
    pub limits: Option<NodeLimits>,
    /// `counting`.
    pub counting: Option<Located<Counting>>,
    /// `on_failure`.
    pub on_failure: Option<OnFailure>,
    /// `shadow_mode`.
    pub shadow_mode: bool,
    /// `quota_mode`: the request is refused only if all its quota rules are over their limits.
    pub quota_mode: bool,
    /// `detailed_metric`: whether the rule's name in metrics has the values of the request at all levels.
    pub detailed_metric: bool,
    /// `value_to_metric`: whether the names in metrics of this rule and of the rules below it have the request's value
    /// of this entry.
    pub value_to_metric: bool,
    /// `share_threshold`: whether all values that the pattern matches share one counter.
    pub share_threshold: bool,
    /// `metadata`: in the responses to requests that the rule allows.
    pub metadata: Option<metadata::Map>,
    /// `response_body`: of responses to requests that the rule refuses. The value is `None` for `none`.
    pub response_body: Option<Located<Option<Arc<ResponseBody>>>>,
    /// `descriptors`: the next level.
    pub descriptors: Vec<Self>,
}

/// The limits of a node.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeLimits {
    /// `rate_limit`: one limit.
    One(Box<LimitNode>),
    /// `limits`: a list of limits that are decided together, with its location.
    Several(SourceLocation, Vec<LimitNode>),
}

/// A limit of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct LimitNode {
    /// Location of the limit.
    pub location: SourceLocation,
    /// `requests_per_unit`: hits per window.
    pub requests_per_unit: Option<Located<u32>>,
    /// `unit`: the name, which may be unknown.
    pub unit: Option<Located<String>>,
    /// `unit_multiplier`: units per window.
    pub unit_multiplier: Option<Located<u32>>,
    /// `window`: length of the window, instead of a unit.
    pub window: Option<Located<Duration>>,
    /// `algorithm`.
    pub algorithm: Option<Algorithm>,
    /// `burst`: capacity of the bucket.
    pub burst: Option<Located<u32>>,
    /// `unlimited`.
    pub unlimited: bool,
    /// `name`, which responses contain and `replaces` refers to.
    pub name: Option<Located<String>>,
    /// `replaces`: names of limits that do not apply to a request if this one does.
    pub replaces: Vec<Located<String>>,
    /// Whether some part of the limit could not be read, which was reported. A value that is missing here may be that
    /// part.
    pub is_incomplete: bool,
}
