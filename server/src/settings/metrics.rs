//! What is counted.

use clap::{Args, builder::RangedU64ValueParser};

use crate::telemetry::{NearLimitRatio, SERIES_MAX};

/// What is counted.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Metrics")]
pub struct MetricSettings {
    /// From which share of its limit on a counter's hits are counted as near the limit, 0 to 1.
    #[arg(long, env = "SLUICEGATE_NEAR_LIMIT_RATIO", value_name = "RATIO", default_value = "0.8")]
    pub near_limit_ratio: NearLimitRatio,

    /// For how many different values rules with `detailed_metric` or `value_to_metric` are counted apart, all
    /// together, at most 1000000. Beyond, they are counted as (other).
    #[arg(
        long,
        env = "SLUICEGATE_DETAILED_METRIC_SERIES",
        value_name = "SERIES",
        default_value = "10000"
    )]
    #[arg(value_parser = RangedU64ValueParser::<usize>::new().range(0..=SERIES_MAX as u64))]
    pub detailed_metric_series: usize,
}
