//! What can be seen of the server from outside.

pub(crate) mod catalogue;
mod log;
mod metrics;
mod punctuality;

pub use log::LogError;
pub(crate) use log::start as start_log;
pub use metrics::MetricsError;
pub(crate) use metrics::{RuleSetCounters, Telemetry};
