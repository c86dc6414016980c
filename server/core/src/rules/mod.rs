//! Rules: from the files as written to a set that can be matched.

mod compile;
mod diff;
mod file;
mod findings;
mod matcher;
mod oddity;
mod problem;
mod stats_key;
mod walk;

pub use compile::{CompileOptions, Report, compile};
pub use diff::{Change, Counts, Edit, What, diff};
pub use file::{DescriptorNode, LimitNode, LimitsFile, LimitsNode, NodePath, Place, Placed};
pub use findings::{Finding, Findings, LISTED_MAX, QUOTED_MAX, quoted};
pub(crate) use matcher::Search;
pub use matcher::{Defaults, Domain, Match, Modes, RuleSet, SEARCHED_MAX};
pub use oddity::{CompileWarning, Oddity};
pub use problem::{CompileError, Problem};
pub use stats_key::{Part, StatsKey, clean};
pub use walk::{CANDIDATES_MAX, Candidate, Fit, Looked, Walk, WalkEnd};
