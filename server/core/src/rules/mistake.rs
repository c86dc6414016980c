//! Mistakes in limits files, with the fix for each.
//!
//! A file that is read as a limits file may be something else: a private key, a list of passwords. So errors of the
//! reader quote only keys that we define. Errors in complete files with the right structure also quote names of
//! domains, descriptors and limits.

use std::{fmt, sync::Arc};

use thiserror::Error;

use super::file::SourceLocation;
use crate::limit::LimitError;

/// The deepest tree of rules.
pub(super) const LEVELS_MAX: usize = 64;

/// The most limits of one descriptor.
pub(super) const LIMITS_MAX: usize = 16;

/// The most bytes of the paths and domains of all rules, as metrics and explanations show them.
pub(super) const PATH_BYTES_MAX: usize = 64 << 20;

/// One mistake in a limits file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompileError {
    /// Where.
    pub location: SourceLocation,
    /// What.
    pub mistake: Mistake,
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.location, self.mistake, self.mistake.help())
    }
}

impl std::error::Error for CompileError {}

/// Kinds of mistakes.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Mistake {
    /// The file cannot be read or does not exist.
    #[error("{0}")]
    Unreadable(String),
    /// Not YAML.
    #[error("not YAML: {0}")]
    Yaml(String),
    /// An unknown key.
    #[error("the key in column {column} is not known here")]
    UnknownKey {
        /// Its column. The key itself is not quoted: the file may not be a limits file.
        column: usize,
        /// The most similar known key.
        instead: String,
    },
    /// A known key in the wrong place.
    #[error("key {key:?} is not known here")]
    MisplacedKey {
        /// The key.
        key: &'static str,
        /// Where it belongs.
        instead: &'static str,
    },
    /// A value of the wrong type.
    #[error("{found} is not valid here")]
    WrongType {
        /// The kind of the value.
        found: String,
        /// The expected kind.
        wanted: &'static str,
    },
    /// A required key is missing or empty.
    #[error("{0} is missing or empty")]
    Missing(&'static str),
    /// Lists and maps nested deeper than any tree of rules.
    #[error("lists and maps are nested more than {max} deep")]
    TooNested {
        /// The deepest nesting.
        max: usize,
    },
    /// More keys and values than fit into memory.
    #[error("there are more than {max} keys, values, lists and maps in all files")]
    TooManyNodes {
        /// The most.
        max: usize,
    },
    /// Aliases of long texts.
    #[error("aliases expand to more than {max} bytes of text in all")]
    AliasesTooLong {
        /// The most.
        max: usize,
    },
    /// Aliases that expand to too many nodes.
    #[error("aliases expand to more than {max} nodes in all")]
    TooManyAliases {
        /// The most.
        max: usize,
    },
    /// Long keys and values, which the path of each rule below repeats.
    #[error("the paths of all rules have more than {max} bytes")]
    PathsTooLong {
        /// The most.
        max: usize,
    },
    /// More levels than a tree may have.
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
    /// Files of one domain with different settings of the domain.
    #[error("{key} of the domain differs from {other}")]
    ConflictingSettings {
        /// The key.
        key: &'static str,
        /// Location of the other.
        other: String,
    },
    /// Two nodes of one level match the same.
    #[error("{what} occurs twice at this level, first in {first}")]
    DuplicateDescriptor {
        /// Path of the node.
        what: String,
        /// Location of the first.
        first: String,
    },
    /// An unknown unit.
    #[error("the unit is not known")]
    UnknownUnit,
    /// `unit` and `window` together, or neither.
    #[error("{0}")]
    Window(&'static str),
    /// Windows count whole seconds.
    #[error("the window is no whole number of seconds")]
    WindowNotWhole,
    /// `rate_limit` and `limits` in one descriptor.
    #[error("rate_limit and limits are both given")]
    LimitsTwice,
    /// `unlimited` beside a limit.
    #[error("unlimited excludes {0}")]
    UnlimitedExcludes(&'static str),
    /// `unlimited` in a list of limits.
    #[error("unlimited makes no sense in a list of limits")]
    UnlimitedInList,
    /// An empty list of limits.
    #[error("limits is empty")]
    NoLimits,
    /// More limits than one call can check.
    #[error("{0} limits are more than the {LIMITS_MAX} that one descriptor may have")]
    TooManyLimits(usize),
    /// Two limits of one descriptor that would share a counter.
    #[error("two limits with the same algorithm and window would share one counter")]
    SameCounter,
    /// A limit replaces itself.
    #[error("{0:?} replaces itself")]
    ReplacesItself(String),
    /// Sharing without a pattern.
    #[error("share_threshold needs a value with a *")]
    ShareWithoutPattern,
    /// A sliding window log without `counting: free`. It records admitted hits only.
    #[error("sliding_window_log requires counting: free")]
    LogNeedsFree,
    /// The numbers of a limit do not fit together.
    #[error(transparent)]
    Limit(#[from] LimitError),
}

impl Mistake {
    /// The fix.
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
            Self::ConflictingSettings { key, .. } => {
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
            // Not "remove it": the domain or the server may set it.
            Self::LogNeedsFree => {
                "use sliding_window_counter, or give the descriptor counting: free".to_owned()
            }
            Self::Limit(error) => error.help(),
        }
    }
}
