//! Limits files, as written: the shape of the YAML with the place of whatever can be wrong.

use std::{fmt, sync::Arc, time::Duration};

use crate::{Algorithm, Counting, OnFailure, metadata};

/// Where something stands.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The file, as it was named.
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

    /// Whether it leads to the root.
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

impl fmt::Display for Place {
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

impl Place {
    /// The place without the path to it: of what aliases repeat, only the path differs.
    pub(super) fn spot(&self) -> (&Arc<str>, usize, usize) {
        (&self.file, self.line, self.column)
    }

    /// Names the place for somebody who reads of it in `file`: `line 3` of that file, `b.yaml:3` of another.
    pub(super) fn seen_from(&self, file: &str) -> String {
        if *self.file == *file {
            format!("line {}", self.line)
        } else {
            format!("{}:{}", self.file, self.line)
        }
    }
}

/// Something, and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Placed<T> {
    /// What stands there.
    pub value: T,
    /// Where.
    pub place: Place,
}

/// One limits file.
#[derive(Clone, Debug, PartialEq)]
pub struct LimitsFile {
    /// Where the file begins.
    pub place: Place,
    /// Name of the domain.
    pub domain: Placed<String>,
    /// Key of the entry whose value is the tenant.
    pub tenant: Option<Placed<String>>,
    /// Who is charged, where a rule does not say.
    pub counting: Option<Placed<Counting>>,
    /// What answers where the store cannot and a rule does not say.
    pub on_failure: Option<Placed<OnFailure>>,
    /// How hits are counted, where a limit does not say.
    pub algorithm: Option<Placed<Algorithm>>,
    /// The tree of rules.
    pub descriptors: Vec<DescriptorNode>,
}

/// One node of the tree.
#[derive(Clone, Debug, PartialEq)]
pub struct DescriptorNode {
    /// Where the node stands.
    pub place: Place,
    /// Key of the entry that the node matches.
    pub key: String,
    /// Value of the entry, or a pattern; `None` matches every value.
    pub value: Option<Placed<String>>,
    /// What is enforced; `None` where everything may pass.
    pub limits: Option<LimitsNode>,
    /// Who is charged.
    pub counting: Option<Placed<Counting>>,
    /// What answers where the store cannot.
    pub on_failure: Option<OnFailure>,
    /// Whether the rule only simulates.
    pub shadow_mode: bool,
    /// Whether the request is refused only if every quota rule of it is over.
    pub quota_mode: bool,
    /// Whether metrics carry all values of the request.
    pub detailed_metric: bool,
    /// Whether metrics carry this level's value of the request.
    pub value_to_metric: bool,
    /// Whether all values that the pattern matches share one counter.
    pub share_threshold: bool,
    /// What callers are told about a request that the rule lets pass.
    pub metadata: Option<metadata::Map>,
    /// The next level.
    pub descriptors: Vec<Self>,
}

/// What a node enforces.
#[derive(Clone, Debug, PartialEq)]
pub enum LimitsNode {
    /// `rate_limit:`, one limit.
    One(Box<LimitNode>),
    /// `limits:`, several that are decided together.
    Several(Place, Vec<LimitNode>),
}

/// One limit.
#[derive(Clone, Debug, PartialEq)]
pub struct LimitNode {
    /// Where the limit stands.
    pub place: Place,
    /// Hits per window.
    pub requests_per_unit: Option<Placed<u32>>,
    /// Name of the unit.
    pub unit: Option<Placed<String>>,
    /// Units per window.
    pub unit_multiplier: Option<Placed<u32>>,
    /// Length of the window, in place of a unit.
    pub window: Option<Placed<Duration>>,
    /// How hits are counted.
    pub algorithm: Option<Algorithm>,
    /// Capacity of the bucket.
    pub burst: Option<Placed<u32>>,
    /// Whether everything passes.
    pub unlimited: bool,
    /// Name that callers see and `replaces` refers to.
    pub name: Option<Placed<String>>,
    /// Names of limits that do not apply to a request that meets this one.
    pub replaces: Vec<Placed<String>>,
    /// Whether something of it could not be read, which was told: what is missing may be that.
    pub broken: bool,
}
