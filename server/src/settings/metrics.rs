//! Settings of metrics.

use clap::{Args, builder::RangedU64ValueParser};

use crate::values::NearLimitRatio;

/// The most series of one metric. Rules come from configuration, so only a mistake reaches this bound, not traffic.
pub(crate) const SERIES_MAX: usize = 1_000_000;

/// Settings of metrics.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Metrics")]
pub struct MetricSettings {
    /// Share of a limit above which hits count as near the limit, 0 to 1.
    #[arg(long, env = "SLUICEGATE_NEAR_LIMIT_RATIO", value_name = "RATIO", default_value = "0.8")]
    pub near_limit_ratio: NearLimitRatio,

    /// Maximum number of different values that metrics distinguish for rules with `detailed_metric` or
    /// `value_to_metric`, all together, at most 1000000. Further ones are counted as (other).
    #[arg(
        long,
        env = "SLUICEGATE_DETAILED_METRIC_SERIES",
        value_name = "SERIES",
        default_value = "10000"
    )]
    #[arg(value_parser = RangedU64ValueParser::<usize>::new().range(0..=SERIES_MAX as u64))]
    pub detailed_metric_series: usize,
}
