//! The log, and which decisions stand in it.

use std::{num::NonZeroU32, path::PathBuf};

use clap::{Args, ValueEnum};

use super::Ratio;

/// How the log is written. It goes to the standard error stream.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Log")]
pub struct LogSettings {
    /// What is logged: error, warn, info, debug or trace, also by module (warn,h2=debug). What no module stands
    /// for is logged at info if nothing else is said. Can be changed while the server runs (sluicectl log-level).
    #[arg(long, env = "SLUICEGATE_LOG_LEVEL", value_name = "LEVEL", default_value = "info")]
    pub log_level: String,

    /// How it is written.
    #[arg(long, env = "SLUICEGATE_LOG_FORMAT", value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,

    /// Which share of the refused requests is logged, 0 to 1, at level info: which limit refused, for how
    /// long, and a hash of the counter's key. 0: none.
    #[arg(long, env = "SLUICEGATE_DECISION_LOG_RATIO", value_name = "RATIO", default_value = "0")]
    pub decision_log_ratio: Ratio,

    /// The most decisions that are logged in a second. What is beyond is counted.
    #[arg(
        long,
        env = "SLUICEGATE_DECISION_LOG_MAX_PER_SECOND",
        value_name = "DECISIONS",
        default_value = "100",
        requires = "decision_log_ratio"
    )]
    pub decision_log_max_per_second: NonZeroU32,

    /// File whose first line is the secret that keys of counters are hashed with: 16 bytes or more, the same for all
    /// replicas, so that their hashes agree. Read at the start. Without it each process has a secret of its own.
    #[arg(long, env = "SLUICEGATE_KEY_HASH_SALT_FILE", value_name = "FILE")]
    pub key_hash_salt_file: Option<PathBuf>,
}

/// Formats of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// A line for people.
    Text,
    /// A JSON object a line.
    Json,
}
