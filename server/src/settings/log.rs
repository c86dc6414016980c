//! Settings of the log and the decision log.

use std::{num::NonZeroU32, path::PathBuf};

use clap::{Args, ValueEnum};

use crate::values::Ratio;

/// Settings of the log, which is written to the standard error stream, and of the decision log.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Log")]
pub struct LogSettings {
    /// Log level: off, error, warn, info, debug or trace, also by module (warn,h2=debug). Modules without a level use
    /// info, unless a global level is set. Resets and changes of the level are logged at every level. Can be changed at
    /// runtime (sluicectl log-level).
    #[arg(long, env = "SLUICEGATE_LOG_LEVEL", value_name = "LEVEL", default_value = "info")]
    pub log_level: String,

    /// Format of the log.
    #[arg(long, env = "SLUICEGATE_LOG_FORMAT", value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,

    /// Share of the refused requests that are logged, 0 to 1, at level info: the limit that refused, the time until a
    /// retry can pass, and a hash of the counter's key. 0: none.
    #[arg(long, env = "SLUICEGATE_DECISION_LOG_RATIO", value_name = "RATIO", default_value = "0")]
    pub decision_log_ratio: Ratio,

    /// Maximum number of logged decisions per second. Further ones are counted.
    #[arg(
        long,
        env = "SLUICEGATE_DECISION_LOG_MAX_PER_SECOND",
        value_name = "DECISIONS",
        default_value = "100",
        requires = "decision_log_ratio"
    )]
    pub decision_log_max_per_second: NonZeroU32,

    /// File whose first line is the secret for hashes of counter keys: 16 bytes or more, the same for all replicas,
    /// so that their hashes agree. Read at the start. Without it each process has its own secret.
    #[arg(long, env = "SLUICEGATE_KEY_HASH_SALT_FILE", value_name = "FILE")]
    pub key_hash_salt_file: Option<PathBuf>,
}

/// Formats of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Text lines.
    Text,
    /// One JSON object per line.
    Json,
}
