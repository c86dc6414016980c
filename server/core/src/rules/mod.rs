//! Rules: limits files as data, their compilation into a rule set, matching, and differences of rule sets.

mod compile;
mod diff;
mod file;
mod findings;
mod match_trace;
mod matcher;
mod mistake;
mod stats_key;
mod warning;

pub use compile::{CompileOptions, Report, compile};
pub use diff::{Change, ChangeCounts, ChangeKind, Edit, diff};
pub use file::{
    DescriptorNode, LimitNode, LimitsFile, Located, NodeLimits, NodePath, SourceLocation,
};
pub use findings::{FINDINGS_LISTED_MAX, Finding, Findings, QUOTED_CHARS_MAX, truncated};
pub use match_trace::{
    CANDIDATES_MAX, Candidate, CandidateOutcome, LevelTrace, MatchTrace, TraceEnd,
};
pub(crate) use matcher::SubstringSearchBudget;
pub use matcher::{Defaults, Domain, Match, Modes, RuleSet, SEARCHED_BYTES_MAX};
pub use mistake::{LocatedMistake, Mistake};
pub use stats_key::{StatsKey, StatsKeyPart, sanitize};
pub use warning::{LocatedWarning, Warning};
