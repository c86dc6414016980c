//! Command-line arguments that set how limits files are read. The server and `sluicectl` have the same.

use std::num::{NonZeroU64, NonZeroUsize};

use clap::{Arg, ArgAction, Args, ValueEnum, builder::BoolishValueParser};
use sluicegate_core::{
    Counting, OnFailure,
    rules::{CompileOptions, Modes},
};

use crate::ReadBounds;

/// The value name of flags that are on or off.
const ON_OFF: &str = "BOOL";

/// Completes flags with the value name `BOOL`: they are off by default, and `--FLAG` means `--FLAG=true`.
#[must_use]
pub fn configure_on_off_flag(flag: Arg) -> Arg {
    if flag.get_value_names().is_none_or(|names| *names != [ON_OFF]) {
        return flag;
    }
    flag.required(false)
        .default_value("false")
        .default_missing_value("true")
        .num_args(0..=1)
        .require_equals(true)
        .value_parser(BoolishValueParser::new())
}

/// Default failure policy, and modes of all rules.
#[derive(Args, Clone, Copy, Debug)]
pub struct RuleDefaultArguments {
    /// Failure policy of rules without their own, if their domain has none either: see `on_failure` in the limits
    /// files.
    #[arg(
        long,
        env = "SLUICEGATE_DEFAULT_ON_FAILURE",
        value_name = "POLICY",
        default_value = "local"
    )]
    pub default_on_failure: OnFailureArgument,

    /// Modes of all rules.
    #[command(flatten)]
    pub modes: ModeArguments,
}

/// Modes of all rules.
#[derive(Args, Clone, Copy, Debug)]
#[command(mut_args(configure_on_off_flag))]
pub struct ModeArguments {
    /// Allow every request: all rules count and report what they would refuse.
    #[arg(long, env = "SLUICEGATE_SHADOW_MODE", value_name = ON_OFF, action = ArgAction::Set)]
    pub shadow_mode: bool,

    /// Treat every rule as a quota rule: a request is refused only if all its descriptors are over their limits.
    /// Descriptors of unlimited rules do not count. A descriptor that matches no rule, or that matches a rule in
    /// shadow mode, keeps the request allowed.
    #[arg(long, env = "SLUICEGATE_QUOTA_MODE", value_name = ON_OFF, action = ArgAction::Set)]
    pub quota_mode: bool,
}

impl ModeArguments {
    /// The modes that these arguments set.
    #[must_use]
    pub const fn modes(self) -> Modes {
        let Self { shadow_mode, quota_mode } = self;
        Modes { shadow_mode, quota_mode }
    }
}

impl RuleDefaultArguments {
    /// The options of compilation that these arguments and `compile` set.
    #[must_use]
    pub fn options(self, compile: CompileArguments) -> CompileOptions {
        CompileOptions {
            default_on_failure: self.default_on_failure.into(),
            modes: self.modes.modes(),
            ..compile.options()
        }
    }
}

/// Default counting, merging of domains, and bounds of reading.
#[derive(Args, Clone, Copy, Debug)]
#[command(mut_args(configure_on_off_flag))]
pub struct CompileArguments {
    /// Counting of rules without their own, if their domain has none either: see `counting` in the limits files.
    #[arg(
        long,
        env = "SLUICEGATE_DEFAULT_COUNTING",
        value_name = "COUNTING",
        default_value = "free"
    )]
    pub default_counting: CountingArgument,

    /// Allow several files to describe one domain. Without it that is a mistake.
    #[arg(long, env = "SLUICEGATE_MERGE_DOMAINS", value_name = ON_OFF, action = ArgAction::Set)]
    pub merge_domains: bool,

    /// Bounds of reading.
    #[command(flatten)]
    pub read_bounds: ReadBoundsArguments,
}

impl CompileArguments {
    /// The options of compilation that these arguments set, with the defaults for others: enough for commands that do
    /// not decide requests.
    #[must_use]
    pub fn options(self) -> CompileOptions {
        let Self { default_counting, merge_domains, read_bounds: _ } = self;
        CompileOptions {
            default_counting: default_counting.into(),
            merge_domains,
            ..CompileOptions::default()
        }
    }
}

/// Bounds of reading limits files.
#[derive(Args, Clone, Copy, Debug)]
pub struct ReadBoundsArguments {
    /// Maximum number of limits files, in all folders. With more, none is loaded.
    #[arg(
        long,
        env = "SLUICEGATE_LIMITS_MAX_FILES",
        value_name = "N",
        default_value = "10000",
        help_heading = "Limits"
    )]
    pub limits_max_files: NonZeroUsize,

    /// Maximum bytes of all limits files together. With more, none is loaded.
    #[arg(
        long,
        env = "SLUICEGATE_LIMITS_MAX_BYTES",
        value_name = "BYTES",
        default_value = "67108864",
        help_heading = "Limits"
    )]
    pub limits_max_bytes: NonZeroU64,
}

impl ReadBoundsArguments {
    /// The bounds that these arguments set.
    #[must_use]
    pub const fn bounds(self) -> ReadBounds {
        let Self { limits_max_files, limits_max_bytes } = self;
        ReadBounds { files: limits_max_files.get(), bytes: limits_max_bytes.get() }
    }
}

/// Values of [`Counting`] on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CountingArgument {
    /// Refused hits are not charged.
    Free,
    /// Hits are charged in full, even past the limit; refused if nothing was left before.
    Debit,
    /// As envoyproxy/ratelimit: refused hits are charged too.
    Upstream,
}

impl From<CountingArgument> for Counting {
    fn from(argument: CountingArgument) -> Self {
        match argument {
            CountingArgument::Free => Self::Free,
            CountingArgument::Debit => Self::Debit,
            CountingArgument::Upstream => Self::Upstream,
        }
    }
}

/// Values of [`OnFailure`] on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnFailureArgument {
    /// Hits are allowed, uncounted.
    Allow,
    /// Hits are refused.
    Deny,
    /// Each replica decides by itself, against its share of the limit.
    Local,
    /// The caller gets UNAVAILABLE, and its own failure mode applies.
    Defer,
}

impl From<OnFailureArgument> for OnFailure {
    fn from(argument: OnFailureArgument) -> Self {
        match argument {
            OnFailureArgument::Allow => Self::Allow,
            OnFailureArgument::Deny => Self::Deny,
            OnFailureArgument::Local => Self::Local,
            OnFailureArgument::Defer => Self::Defer,
        }
    }
}
