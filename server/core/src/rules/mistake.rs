//! Mistakes in limits files, with the fix for each.
//!
//! A file that is read as a limits file may be something else, such as a private key or a list of passwords. So the
//! mistakes that the reader reports quote only keys that limits files define. Mistakes that the compiler reports, in
//! files with the right structure, also quote names of domains, descriptors and limits.

use std::{fmt, sync::Arc};

use thiserror::Error;

use super::file::SourceLocation;
use crate::{limit::LimitError, response_body::ResponseBodyError};

/// The most levels of a tree of rules.
pub(super) const LEVELS_MAX: usize = 64;

/// The most limits of one rule.
pub(super) const LIMITS_MAX: usize = 16;

/// Maximum total size of all rule paths in bytes. Each path includes the name of its domain, as in metrics and
/// explanations.
pub(super) const PATH_BYTES_MAX: usize = 64 << 20;

/// A mistake in a limits file, with its location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocatedMistake {
    /// The location.
    pub location: SourceLocation,
    /// The mistake.
    pub mistake: Mistake,
}

impl fmt::Display for LocatedMistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.location, self.mistake, self.mistake.help())
    }
}

impl std::error::Error for LocatedMistake {}

/// Kinds of mistakes. The text says what is wrong, and [`help`](Self::help) how to fix it.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Mistake {
    /// The file does not exist or cannot be read.
    #[error("{0}")]
    Unreadable(String),
    /// The file is not YAML.
    #[error("not YAML: {0}")]
    Yaml(String),
    /// A key that no map of a limits file has.
    #[error("the key in column {column} is not known here")]
    UnknownKey {
        /// Its column, from 1. The key itself is not quoted, because the file may not be a limits file.
        column: usize,
        /// The fix: the most similar key, or all keys that are allowed.
        instead: String,
    },
    /// A key of limits files in a map that does not have it.
    #[error("key {key:?} is not known here")]
    MisplacedKey {
        /// The key.
        key: &'static str,
        /// The fix: the map that it belongs to.
        instead: &'static str,
    },
    /// A value of the wrong type.
    #[error("{found} is not valid here")]
    WrongType {
        /// Description of the value, which does not quote it.
        found: String,
        /// The expected type.
        wanted: &'static str,
    },
    /// A required key is missing or empty.
    #[error("{0} is missing or empty")]
    Missing(&'static str),
    /// Lists and maps are nested deeper than any tree of rules needs.
    #[error("lists and maps are nested more than {max} deep")]
    TooNested {
        /// The most levels of nesting.
        max: usize,
    },
    /// All files together have more nodes than the bound.
    #[error("there are more than {max} keys, values, lists and maps in all files")]
    TooManyNodes {
        /// The bound.
        max: usize,
    },
    /// Aliases expand to more bytes of text than the bound.
    #[error("aliases expand to more than {max} bytes of text in all")]
    AliasesTooLong {
        /// The bound.
        max: usize,
    },
    /// Aliases expand to more nodes than the bound.
    #[error("aliases expand to more than {max} nodes in all")]
    TooManyAliases {
        /// The bound.
        max: usize,
    },
    /// The paths of all rules have more bytes than the bound. The path of each rule repeats the keys and values above
    /// it.
    #[error("the paths of all rules have more than {max} bytes")]
    PathsTooLong {
        /// The bound.
        max: usize,
    },
    /// The tree of rules has more levels than the bound.
    #[error("the tree has more than {LEVELS_MAX} levels")]
    TooDeep,
    /// Several files describe the same domain.
    #[error("domain {name:?} is also defined in {other}")]
    DuplicateDomain {
        /// The domain.
        name: String,
        /// The other file.
        other: Arc<str>,
    },
    /// Files of one domain set the same setting differently.
    #[error("{key} of the domain differs from {other}")]
    ConflictingSettings {
        /// Key of the setting.
        key: &'static str,
        /// Location of the other value.
        other: String,
    },
    /// Two nodes of one level have the same key and value.
    #[error("{what} occurs twice at this level, first in {first}")]
    DuplicateDescriptor {
        /// Path of the node.
        what: String,
        /// Location of the first.
        first: String,
    },
    /// The unit is not one of Envoy's.
    #[error("the unit is not known")]
    UnknownUnit,
    /// The window is given twice, or not at all, or `unit_multiplier` is given without `unit`.
    #[error("{0}")]
    Window(&'static str),
    /// The window is not a whole number of seconds.
    #[error("the window is not a whole number of seconds")]
    WindowNotWhole,
    /// A node has both `rate_limit` and `limits`.
    #[error("rate_limit and limits are both given")]
    LimitsTwice,
    /// A limit has both `unlimited` and a key of a limit that counts.
    #[error("unlimited excludes {0}")]
    UnlimitedExcludes(&'static str),
    /// A list of limits contains `unlimited`.
    #[error("unlimited is not allowed in a list of limits")]
    UnlimitedInList,
    /// A list of limits is empty.
    #[error("limits is empty")]
    NoLimits,
    /// A rule has more limits than the bound.
    #[error("{0} limits are more than the {LIMITS_MAX} that one descriptor may have")]
    TooManyLimits(usize),
    /// Two limits of one rule would share a counter.
    #[error("two limits with the same algorithm and window would share one counter")]
    SameCounter,
    /// A limit replaces itself.
    #[error("{0:?} replaces itself")]
    ReplacesItself(String),
    /// `share_threshold` is set on a value that is not a pattern.
    #[error("share_threshold needs a value with a *")]
    ShareWithoutPattern,
    /// A sliding window log is used without `counting: free`. It can record admitted hits only.
    #[error("sliding_window_log requires counting: free")]
    LogNeedsFree,
    /// The algorithm cannot count a limit with these numbers.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// `response_body` is not valid.
    #[error(transparent)]
    ResponseBody(#[from] ResponseBodyError),
}

impl Mistake {
    /// How to fix the mistake, in one phrase.
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
            Self::TooDeep => "reduce the number of levels".to_owned(),
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
            Self::TooManyLimits(_) => "remove some of them".to_owned(),
            Self::SameCounter => "change the algorithm or the window of one".to_owned(),
            Self::ReplacesItself(_) => "remove it from replaces".to_owned(),
            Self::ShareWithoutPattern => {
                "add a * to the value, or remove share_threshold".to_owned()
            }
            // The fix is not to remove `counting`, because the domain or the server may set it.
            Self::LogNeedsFree => {
                "use sliding_window_counter, or give the descriptor counting: free".to_owned()
            }
            Self::Limit(error) => error.help(),
            Self::ResponseBody(error) => error.help(),
        }
    }
}
