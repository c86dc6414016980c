//! What can be seen of the server from outside.

mod bounds;
pub(crate) mod catalogue;
mod connections;
mod decision_log;
mod decisions;
mod hits;
mod instruments;
mod key_hash;
mod log;
mod log_fields;
mod log_rate;
mod log_writer;
mod metrics;
mod otlp;
#[cfg(target_os = "linux")]
mod process;
mod punctuality;
mod push;
mod series;
mod store;
pub(crate) mod top;
mod trace_context;
mod traces;

pub(crate) use bounds::{Bound, BoundValues};
pub(crate) use connections::show as show_connections;
pub(crate) use decision_log::DecisionLog;
pub(crate) use decisions::{HITS, HitsOf, OVERRIDE, RuleSetCounters, visit_hits};
pub use hits::NearLimitRatio;
pub use instruments::MetricsError;
pub(crate) use instruments::SERIES_MAX;
pub(crate) use key_hash::KeyHash;
pub use key_hash::SaltError;
pub use log::LogError;
pub(crate) use log::{
    AUDIT, ChangeError, InForce, levels as log_levels, lines_dropped as log_lines_dropped,
    lines_suppressed as log_lines_suppressed, report_suppressed as report_suppressed_log_lines,
    start as start_log,
};
#[cfg(test)]
pub(crate) use log_writer::END_TIMEOUT as LOG_END_TIMEOUT;
pub(crate) use metrics::{Count, Telemetry};
pub use otlp::OtlpError;
pub(crate) use series::OTHER;
pub(crate) use store::show as show_store;
pub(crate) use traces::{RequestSpan, Traced, Traces};
