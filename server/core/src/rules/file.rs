//! Limits files as data: the structure of the YAML, with source locations for errors.

use std::{fmt, sync::Arc, time::Duration};

use crate::{Algorithm, Counting, OnFailure, metadata};

/// A location in a limits file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourceLocation {
    /// The file's name, as given.
    pub file: Arc<str>,
    /// Line, from 1; 0 for the file as a whole.
    pub line: usize,
    /// Column, from 1.
    pub column: usize,
    /// Path from the root of the document.
    pub path: NodePath,
}

/// A path from the root of a document: `descriptors[0].rate_limit.unit`. Empty for the root. Paths share the steps that they
/// have in common, because a file may have millions of nodes, deep in its tree.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodePath(Option<Arc<Step>>);

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Step {
    above: NodePath,
    to: StepTo,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum StepTo {
    Key(&'static str),
    Index(usize),
}

impl NodePath {
    /// The path to the value of a key of the node here.
    #[must_use]
    pub fn key(&self, key: &'static str) -> Self {
        self.step(StepTo::Key(key))
    }

    /// The path to an element of the list here.
    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        self.step(StepTo::Index(index))
    }

    fn step(&self, to: StepTo) -> Self {
        Self(Some(Arc::new(Step { above: self.clone(), to })))
    }

    /// Whether this is the root.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

impl fmt::Display for NodePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(step) = &self.0 else { return Ok(()) };
        step.above.fmt(f)?;
        match step.to {
            StepTo::Key(key) if step.above.is_empty() => f.write_str(key),
            StepTo::Key(key) => write!(f, ".{key}"),
            StepTo::Index(index) => write!(f, "[{index}]"),
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
    /// The place without the path to it: of what aliases repeat, only the path differs.
    pub(super) fn position(&self) -> (&Arc<str>, usize, usize) {
        (&self.file, self.line, self.column)
    }

    /// Names the place for somebody who reads of it in `file`: `line 3` of that file, `b.yaml:3` of another.
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
    /// Where.
    pub location: SourceLocation,
}

/// One limits file.
#[derive(Clone, Debug, PartialEq)]
pub struct LimitsFile {
    /// Location of the file's beginning.
    pub location: SourceLocation,
    /// Name of the domain.
    pub domain: Located<String>,
    /// Key of the entry whose value is the tenant.
    pub tenant: Option<Located<String>>,
    /// Default of `counting`.
    pub counting: Option<Located<Counting>>,
    /// Default of `on_failure`.
    pub on_failure: Option<Located<OnFailure>>,
    /// Default algorithm.
    pub algorithm: Option<Located<Algorithm>>,
    /// The tree of rules.
    pub descriptors: Vec<DescriptorNode>,
}

/// One node of the tree.
#[derive(Clone, Debug, PartialEq)]
pub struct DescriptorNode {
    /// Location of the node.
    pub location: SourceLocation,
    /// Key of the entry that the node matches.
    pub key: String,
    /// Value of the entry, or a pattern; `None` matches every value.
    pub value: Option<Located<String>>,
    /// The limits; `None` if there are none.
    pub limits: Option<LimitsNode>,
    /// `counting`.
    pub counting: Option<Located<Counting>>,
    /// `on_failure`.
    pub on_failure: Option<OnFailure>,
    /// `shadow_mode`.
    pub shadow_mode: bool,
    /// `quota_mode`: the request is refused only if all its quota rules are over.
    pub quota_mode: bool,
    /// Whether metrics carry all values of the request.
    pub detailed_metric: bool,
    /// Whether metrics carry this level's value of the request.
    pub value_to_metric: bool,
    /// Whether all values that the pattern matches share one counter.
    pub share_threshold: bool,
    /// `metadata`: returned to callers with requests that the rule allows.
    pub metadata: Option<metadata::Map>,
    /// The next level.
    pub descriptors: Vec<Self>,
}

/// The limits of a node.
#[derive(Clone, Debug, PartialEq)]
pub enum LimitsNode {
    /// `rate_limit:`, one limit.
    One(Box<LimitNode>),
    /// `limits:`, several that are decided together.
    Several(SourceLocation, Vec<LimitNode>),
}

/// One limit.
#[derive(Clone, Debug, PartialEq)]
pub struct LimitNode {
    /// Location of the limit.
    pub location: SourceLocation,
    /// Hits per window.
    pub requests_per_unit: Option<Located<u32>>,
    /// Name of the unit.
    pub unit: Option<Located<String>>,
    /// Units per window.
    pub unit_multiplier: Option<Located<u32>>,
    /// Length of the window, in place of a unit.
    pub window: Option<Located<Duration>>,
    /// The algorithm.
    pub algorithm: Option<Algorithm>,
    /// Capacity of the bucket.
    pub burst: Option<Located<u32>>,
    /// `unlimited`.
    pub unlimited: bool,
    /// Name that callers see and `replaces` refers to.
    pub name: Option<Located<String>>,
    /// Names of limits that do not apply to a request if this one does.
    pub replaces: Vec<Located<String>>,
    /// Whether a part could not be read, which was reported: a missing value may be that part.
    pub is_incomplete: bool,
}
