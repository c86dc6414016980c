//! Settings of `sluicectl top`: number and names of the counters that it lists.

use clap::{Args, ValueEnum, builder::RangedU64ValueParser};

/// The most counters that may be recorded: each uses about 400 bytes, 100 in each of the two windows of each of the two
/// lists.
const TOP_KEYS_MAX: u64 = 100_000;

/// Settings of `sluicectl top`.
#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Top")]
pub struct TopSettings {
    /// Number of counters whose refusals the server records for sluicectl top, and of counters near their limits, at
    /// most 100000. 0: none.
    #[arg(long, env = "SLUICEGATE_TOP_KEYS", value_name = "COUNT", default_value = "1000")]
    #[arg(value_parser = RangedU64ValueParser::<usize>::new().range(0..=TOP_KEYS_MAX))]
    pub top_keys: usize,

    /// Names of counters in sluicectl top, and in the log of resets: keys, which contain values of requests, or
    /// hashes.
    #[arg(long, env = "SLUICEGATE_TOP_LABELS", value_name = "LABELS", default_value = "hashed")]
    pub top_labels: CounterNameFormat,
}

/// How counters are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CounterNameFormat {
    /// Keys.
    Plain,
    /// Hashes of keys.
    Hashed,
}
