//! What can be seen of the server from outside.

pub(crate) mod catalogue;
mod hits;
mod log;
mod metrics;
mod punctuality;
mod series;

pub use hits::NearLimitRatio;
pub use log::LogError;
pub(crate) use log::start as start_log;
pub use metrics::MetricsError;
pub(crate) use metrics::{HITS, HitsOf, OVERRIDE, RuleSetCounters, Telemetry, visit_hits};
pub(crate) use series::OTHER;
