//! Who is being limited: how many are remembered, and how they are named.

use clap::{Args, ValueEnum, builder::RangedU64ValueParser};

/// The most counters that may be remembered: each takes some hundred bytes, four times over.
const TOP_KEYS_MAX: u64 = 100_000;

/// Who is being limited.
#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Top")]
pub struct TopSettings {
    /// For how many counters it is remembered how often they refuse, and for as many how near they are to their limits
    /// (sluicectl top), at most 100000. 0: none.
    #[arg(long, env = "SLUICEGATE_TOP_KEYS", value_name = "COUNT", default_value = "1000")]
    #[arg(value_parser = RangedU64ValueParser::<usize>::new().range(0..=TOP_KEYS_MAX))]
    pub top_keys: usize,

    /// How counters are named in that list, and in the log when they are reset: by their keys, which have values of
    /// requests in them, or by hashes.
    #[arg(long, env = "SLUICEGATE_TOP_LABELS", value_name = "LABELS", default_value = "hashed")]
    pub top_labels: TopLabels,
}

/// How counters are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TopLabels {
    /// By their keys.
    Plain,
    /// By hashes.
    Hashed,
}
