//! Which limits are enforced, and how limits files are read.

use std::path::PathBuf;

use clap::{Args, ValueEnum, builder::BoolishValueParser};

use sluicegate_core::{
    Counting, OnFailure,
    rules::{CompileOptions, Modes},
};

use super::{ExplainArguments, ReadingArguments};

/// Which limits to enforce.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Limits")]
pub struct LimitsSettings {
    /// Limits files, or folders of them (every .yaml and .yml in it, but nothing hidden). Changes are
    /// taken up while the server runs; files with a mistake leave the old limits in force.
    #[arg(long, env = "SLUICEGATE_LIMITS", value_name = "PATH", required = true, num_args = 1..)]
    #[arg(value_delimiter = ',')]
    pub limits: Vec<PathBuf>,

    /// How the files are read.
    #[command(flatten)]
    pub compiling: CompileArguments,

    /// What holds where rules do not say, and for all of them.
    #[command(flatten)]
    pub holding: HoldingArguments,
}

impl LimitsSettings {
    /// What applies to all files.
    #[must_use]
    pub fn options(&self) -> CompileOptions {
        self.holding.options(self.compiling)
    }
}

/// What holds where rules do not say, and for all of them.
#[derive(Args, Clone, Copy, Debug)]
pub struct HoldingArguments {
    /// What answers when the store cannot, where neither rule nor domain says: see `on_failure` in the limits
    /// files.
    #[arg(
        long,
        env = "SLUICEGATE_DEFAULT_ON_FAILURE",
        value_name = "POLICY",
        default_value = "local"
    )]
    pub default_on_failure: OnFailureName,

    /// Refuse nobody: all rules only simulate, statuses tell what they would do.
    #[arg(
        long,
        env = "SLUICEGATE_SHADOW_MODE",
        value_name = "BOOL",
        default_value = "false",
        default_missing_value = "true",
        num_args = 0..=1,
        require_equals = true,
        value_parser = BoolishValueParser::new()
    )]
    pub shadow_mode: bool,

    /// Treat every rule as a quota rule: a request is refused only if each of its descriptors meets a rule that is
    /// over.
    #[arg(
        long,
        env = "SLUICEGATE_QUOTA_MODE",
        value_name = "BOOL",
        default_value = "false",
        default_missing_value = "true",
        num_args = 0..=1,
        require_equals = true,
        value_parser = BoolishValueParser::new()
    )]
    pub quota_mode: bool,
}

impl HoldingArguments {
    /// What applies to all files.
    #[must_use]
    pub fn options(self, compiling: CompileArguments) -> CompileOptions {
        let Self { default_on_failure, shadow_mode, quota_mode } = self;
        CompileOptions {
            default_on_failure: default_on_failure.into(),
            modes: Modes { shadow_mode, quota_mode },
            ..compiling.options()
        }
    }
}

/// How limits files are read.
#[derive(Args, Clone, Copy, Debug)]
pub struct CompileArguments {
    /// Who is charged, where neither rule nor domain says: see `counting` in the limits files.
    #[arg(
        long,
        env = "SLUICEGATE_DEFAULT_COUNTING",
        value_name = "COUNTING",
        default_value = "free"
    )]
    pub default_counting: CountingName,

    /// Let several files describe one domain. Without it that is a mistake.
    #[arg(
        long,
        env = "SLUICEGATE_MERGE_DOMAINS",
        value_name = "BOOL",
        default_value = "false",
        default_missing_value = "true",
        num_args = 0..=1,
        require_equals = true,
        value_parser = BoolishValueParser::new()
    )]
    pub merge_domains: bool,

    /// How much is read of them.
    #[command(flatten)]
    pub reading: ReadingArguments,
}

impl CompileArguments {
    /// What applies to all files, for commands that decide nothing.
    #[must_use]
    pub fn options(self) -> CompileOptions {
        let Self { default_counting, merge_domains, reading: _ } = self;
        CompileOptions {
            default_counting: default_counting.into(),
            merge_domains,
            ..CompileOptions::default()
        }
    }
}

/// Settings of `sluicegate validate`.
#[derive(Args, Clone, Debug)]
pub struct ValidateSettings {
    /// Limits files, or folders of them.
    #[arg(value_name = "PATH", required = true)]
    pub limits: Vec<PathBuf>,

    /// How the files are read.
    #[command(flatten)]
    pub compiling: CompileArguments,

    /// What holds where rules do not say, and for all of them: told with --explain.
    #[command(flatten)]
    pub holding: HoldingArguments,

    /// A request to explain.
    #[command(flatten)]
    pub explain: ExplainArguments,
}

/// Settings of `sluicegate diff`.
#[derive(Args, Clone, Debug)]
pub struct DiffSettings {
    /// The limits file, or the folder of them, that is in force.
    #[arg(value_name = "OLD")]
    pub old: PathBuf,

    /// The one that shall take its place.
    #[arg(value_name = "NEW")]
    pub new: PathBuf,

    /// How the files are read.
    #[command(flatten)]
    pub compiling: CompileArguments,
}

/// [`Counting`] on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CountingName {
    /// Refusals cost nothing.
    Free,
    /// Hits are charged in full even past the limit; refused if nothing was left before.
    Debit,
    /// As envoyproxy/ratelimit: refused hits are charged too.
    Upstream,
}

impl From<CountingName> for Counting {
    fn from(name: CountingName) -> Self {
        match name {
            CountingName::Free => Self::Free,
            CountingName::Debit => Self::Debit,
            CountingName::Upstream => Self::Upstream,
        }
    }
}

/// [`OnFailure`] on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnFailureName {
    /// Hits pass, uncounted.
    Allow,
    /// Hits are refused.
    Deny,
    /// Each replica counts for itself, against its share of the limit.
    Local,
    /// The caller gets UNAVAILABLE, and its own failure mode decides.
    Defer,
}

impl From<OnFailureName> for OnFailure {
    fn from(name: OnFailureName) -> Self {
        match name {
            OnFailureName::Allow => Self::Allow,
            OnFailureName::Deny => Self::Deny,
            OnFailureName::Local => Self::Local,
            OnFailureName::Defer => Self::Defer,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use sluicegate_core::{Counting, OnFailure, rules::Modes};

    use crate::settings::{Cli, Command};

    #[test]
    fn every_setting_of_limits_reaches_the_rules() {
        let options = |flags: &[&str]| {
            let all = [&["sluicegate", "serve", "--limits", "a.yaml"], flags].concat();
            match Cli::try_parse_from(all).unwrap().command {
                Command::Serve(settings) => settings.limits.options(),
                other => panic!("{other:?}"),
            }
        };
        let default = options(&[]);
        assert!(!default.merge_domains);
        assert_eq!(default.modes, Modes::default());
        let flags = ["--default-counting", "debit", "--default-on-failure", "deny"];
        let flags =
            [&flags[..], &["--merge-domains", "--shadow-mode", "--quota-mode=true"]].concat();
        let all = options(&flags);
        assert_eq!(
            (all.default_counting, all.default_on_failure),
            (Counting::Debit, OnFailure::Deny)
        );
        assert_eq!(all.modes, Modes { shadow_mode: true, quota_mode: true });
        assert!(all.merge_domains);
    }
}
