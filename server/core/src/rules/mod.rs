//! Rules: from the files as written to a set that can be matched.

mod compile;
mod file;
mod matcher;

pub use compile::{CompileError, CompileOptions, CompileWarning, Oddity, Problem, compile};
pub use file::{DescriptorNode, LimitNode, LimitsFile, LimitsNode, Place, Placed};
pub use matcher::{Defaults, Domain, Match, Modes, RuleSet};
