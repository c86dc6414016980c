//! Settings for limits files.

use std::path::PathBuf;

use clap::Args;
use sluicegate_core::rules::CompileOptions;
use sluicegate_limits::arguments::{CompileArguments, RuleDefaultArguments};

use super::ExplainArguments;

/// The limits files to enforce.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Limits")]
pub struct LimitsSettings {
    /// Limits files, or folders of them (every .yaml and .yml file, except hidden ones). Changes are reloaded at
    /// runtime; files with mistakes leave the previous limits in force.
    #[arg(long, env = "SLUICEGATE_LIMITS", value_name = "PATH", required = true, num_args = 1..)]
    #[arg(value_delimiter = ',')]
    pub limits: Vec<PathBuf>,

    /// How the files are read.
    #[command(flatten)]
    pub compile: CompileArguments,

    /// Defaults of rules, and modes of all rules.
    #[command(flatten)]
    pub defaults: RuleDefaultArguments,
}

impl LimitsSettings {
    /// The options that all files are compiled with.
    #[must_use]
    pub fn options(&self) -> CompileOptions {
        self.defaults.options(self.compile)
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
    pub compile: CompileArguments,

    /// Defaults of rules, and modes of all rules, which `--explain` shows.
    #[command(flatten)]
    pub defaults: RuleDefaultArguments,

    /// The request to explain.
    #[command(flatten)]
    pub explain: ExplainArguments,
}

/// Settings of `sluicegate diff`.
#[derive(Args, Clone, Debug)]
pub struct DiffSettings {
    /// The limits file or folder in force.
    #[arg(value_name = "OLD")]
    pub old: PathBuf,

    /// The limits file or folder to compare with it.
    #[arg(value_name = "NEW")]
    pub new: PathBuf,

    /// How the files are read.
    #[command(flatten)]
    pub compile: CompileArguments,
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
