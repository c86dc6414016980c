//! What can be seen of the server from outside.

pub(crate) mod catalogue;
mod decisions;
mod hits;
mod instruments;
mod log;
mod metrics;
mod otlp;
#[cfg(target_os = "linux")]
mod process;
mod punctuality;
mod series;
mod store;

pub(crate) use decisions::{HITS, HitsOf, OVERRIDE, RuleSetCounters, visit_hits};
pub use hits::NearLimitRatio;
pub use instruments::MetricsError;
pub use log::LogError;
pub(crate) use log::start as start_log;
pub(crate) use metrics::Telemetry;
pub use otlp::OtlpError;
pub(crate) use series::OTHER;
pub(crate) use store::show as show_store;
