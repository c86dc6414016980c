//! Mistakes in limits files, and what to do about each.
//!
//! What is read as a limits file may be something else: a private key, a list of passwords. So what a reader tells of a
//! file quotes only words of this project. Names of domains, descriptors and limits are quoted by mistakes that are
//! found in whole files of the right shape.

use std::{fmt, sync::Arc};

use thiserror::Error;

use super::file::Place;
use crate::limit::LimitError;

/// The deepest tree of rules.
pub(super) const LEVELS_MAX: usize = 64;

/// The most limits of one descriptor.
pub(super) const LIMITS_MAX: usize = 16;

/// The most bytes of the paths and domains of all rules, as metrics and explanations name them.
pub(super) const PATH_BYTES_MAX: usize = 64 << 20;

/// One mistake in a limits file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompileError {
    /// Where.
    pub place: Place,
    /// What.
    pub problem: Problem,
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.place, self.problem, self.problem.help())
    }
}

impl std::error::Error for CompileError {}

/// What can be wrong with limits files.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Problem {
    /// The file cannot be read, or there is none.
    #[error("{0}")]
    Unreadable(String),
    /// Not YAML.
    #[error("not YAML: {0}")]
    Yaml(String),
    /// A key that nothing reads.
    #[error("the key in column {column} is not known here")]
    UnknownKey {
        /// Where it stands in its line. The key itself is not told: the file may be none of limits.
        column: usize,
        /// What may have been meant.
        instead: String,
    },
    /// A key of limits files, which belongs elsewhere.
    #[error("key {key:?} is not known here")]
    MisplacedKey {
        /// The key.
        key: &'static str,
        /// Where it belongs.
        instead: &'static str,
    },
    /// A value of another type than is asked for.
    #[error("{found} cannot stand here")]
    WrongType {
        /// What kind of value is there.
        found: String,
        /// What should be.
        wanted: &'static str,
    },
    /// A required key is missing or empty.
    #[error("{0} is missing or empty")]
    Missing(&'static str),
    /// Lists and maps within each other, beyond any tree of rules.
    #[error("lists and maps are nested more than {max} deep")]
    TooNested {
        /// The deepest.
        max: usize,
    },
    /// So many keys and values that they would not fit into memory.
    #[error("there are more than {max} keys, values, lists and maps in all files")]
    TooManyNodes {
        /// The most.
        max: usize,
    },
    /// Aliases of long texts.
    #[error("aliases stand for more than {max} bytes of text in all")]
    AliasesTooLong {
        /// The most.
        max: usize,
    },
    /// Aliases that blow the file up.
    #[error("aliases stand for more than {max} nodes in all")]
    TooManyAliases {
        /// The most.
        max: usize,
    },
    /// Names that repeat long keys and values for each rule below them.
    #[error("the paths of all rules have more than {max} bytes")]
    PathsTooLong {
        /// The most.
        max: usize,
    },
    /// Deeper than the most levels of a tree.
    #[error("the tree has more than {LEVELS_MAX} levels")]
    TooDeep,
    /// A domain is spread over files.
    #[error("domain {name:?} is also defined in {other}")]
    DuplicateDomain {
        /// The domain.
        name: String,
        /// The other file.
        other: Arc<str>,
    },
    /// Files of one domain that say different things about all of it.
    #[error("{key} of the domain differs from {other}")]
    Disagreement {
        /// The key.
        key: &'static str,
        /// Where the other is.
        other: String,
    },
    /// Two nodes of one level match the same.
    #[error("{what} stands twice at this level, first in {first}")]
    DuplicateDescriptor {
        /// Path of the node.
        what: String,
        /// Where the first is.
        first: String,
    },
    /// No such unit.
    #[error("the unit is not known")]
    UnknownUnit,
    /// `unit` and `window` together, or neither.
    #[error("{0}")]
    Window(&'static str),
    /// Windows count whole seconds.
    #[error("the window is no whole number of seconds")]
    WindowNotWhole,
    /// `rate_limit` and `limits` in one descriptor.
    #[error("rate_limit and limits stand together")]
    LimitsTwice,
    /// `unlimited` beside what would limit.
    #[error("unlimited excludes {0}")]
    UnlimitedExcludes(&'static str),
    /// `unlimited` in a list of limits.
    #[error("unlimited makes no sense in a list of limits")]
    UnlimitedInList,
    /// An empty list of limits.
    #[error("limits is empty")]
    NoLimits,
    /// A list of limits that one request could not carry.
    #[error("{0} limits are more than the {LIMITS_MAX} that one descriptor may have")]
    TooManyLimits(usize),
    /// Two limits of one descriptor that would keep one counter.
    #[error("two limits with the same algorithm and window would share one counter")]
    SameCounter,
    /// A limit replaces itself.
    #[error("{0:?} replaces itself")]
    ReplacesItself(String),
    /// Sharing without a pattern.
    #[error("share_threshold needs a value with a *")]
    ShareWithoutPattern,
    /// The log keeps every hit that it admitted, and nothing else.
    #[error("sliding_window_log goes with counting: free only")]
    LogNeedsFree,
    /// The numbers of a limit do not go together.
    #[error(transparent)]
    Limit(#[from] LimitError),
}

impl Problem {
    /// What to do about it.
    #[must_use]
    pub fn help(&self) -> String {
        match self {
            Self::Unreadable(_) => {
                "name a readable limits file, or a folder that has one".to_owned()
            }
            Self::Yaml(_) => "correct the syntax".to_owned(),
            Self::UnknownKey { instead, .. } => instead.clone(),
            Self::MisplacedKey { instead, .. } => (*instead).to_owned(),
            Self::WrongType { wanted, .. } => format!("write {wanted}"),
            Self::TooNested { .. } => "nest less deeply".to_owned(),
            Self::TooManyNodes { .. } => "remove rules, or split them between servers".to_owned(),
            Self::TooManyAliases { .. } | Self::AliasesTooLong { .. } => "use fewer aliases".to_owned(),
            Self::Missing(key) => format!("give {key} a value"),
            Self::PathsTooLong { .. } => {
                "shorten keys and values that have many rules below them, or split the rules between servers"
                    .to_owned()
            }
            Self::TooDeep => "make it flatter".to_owned(),
            Self::DuplicateDomain { .. } => {
                "keep a domain in one file, or set --merge-domains".to_owned()
            }
            Self::Disagreement { key, .. } => {
                format!("give all files of the domain the same {key}, or only one of them")
            }
            Self::DuplicateDescriptor { .. } => {
                "remove one of them, or put both limits into a list under limits".to_owned()
            }
            Self::UnknownUnit => "use second, minute, hour, day, week, month or year".to_owned(),
            Self::Window(_) => "give either unit (with unit_multiplier) or window".to_owned(),
            Self::WindowNotWhole => "round it to seconds".to_owned(),
            Self::LimitsTwice => "move all limits into limits, or remove limits".to_owned(),
            Self::UnlimitedExcludes(key) => format!("remove {key} or unlimited"),
            Self::UnlimitedInList => "use rate_limit with unlimited in place of limits".to_owned(),
            Self::NoLimits => "add a limit, or remove limits".to_owned(),
            Self::TooManyLimits(_) => "remove some".to_owned(),
            Self::SameCounter => "change the algorithm or the window of one".to_owned(),
            Self::ReplacesItself(_) => "remove it from replaces".to_owned(),
            Self::ShareWithoutPattern => {
                "add a * to the value, or remove share_threshold".to_owned()
            }
            // Not "remove it": the domain or the server may have set it.
            Self::LogNeedsFree => {
                "use sliding_window_counter, or give the descriptor counting: free".to_owned()
            }
            Self::Limit(error) => error.help(),
        }
    }
}
