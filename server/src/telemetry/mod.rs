//! Metrics, traces, the log, the decision log, and top counters.

mod bounds;
pub(crate) mod catalogue;
mod count;
mod deadline_monitor;
mod decision_log;
mod decisions;
mod hits;
mod instruments;
mod key_hasher;
mod log;
mod metrics;
mod otlp;
#[cfg(target_os = "linux")]
mod process;
mod push;
mod series;
mod store;
pub(crate) mod top;
mod trace_context;
mod traces;

pub(crate) use bounds::{RefusalBound, RefusalBoundValues, RefusalReason};
pub(crate) use count::{Attempts, Count};
pub(crate) use decision_log::DecisionLog;
pub(crate) use decisions::{HIT_METRICS, HitLabels, OVERRIDE_LABEL, visit_hits};
pub use instruments::MetricsError;
pub(crate) use instruments::Observe;
pub(crate) use key_hasher::KeyHasher;
#[cfg(test)]
pub(crate) use log::END_TIMEOUT as LOG_END_TIMEOUT;
pub use log::LogError;
pub(crate) use log::{
    AUDIT_TARGET, LogLevelChangeError, LogLevelStatus, levels as log_levels,
    lines_dropped as log_lines_dropped, lines_suppressed as log_lines_suppressed,
    report_suppressed as report_suppressed_log_lines, start as start_log,
};
pub(crate) use metrics::{Metrics, RuleSetMetrics};
pub use otlp::OtlpError;
pub(crate) use otlp::check as check_otlp;
pub(crate) use series::OTHER_LABEL;
pub(crate) use store::register as register_store;
pub(crate) use traces::{RequestSpan, RequestTrace, Traces};
