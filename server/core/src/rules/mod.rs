//! Rules: from the files as written to a set that can be matched.

mod compile;
mod file;
mod matcher;
mod stats_key;

pub use compile::{CompileError, CompileOptions, CompileWarning, Oddity, Problem, compile};
pub use file::{DescriptorNode, LimitNode, LimitsFile, LimitsNode, Place, Placed};
pub use matcher::{Defaults, Domain, Match, Modes, RuleSet};
pub use stats_key::{Part, StatsKey};
