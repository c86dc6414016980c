//! Every metric there is: what is not here does not exist. Labels come from configuration, never from
//! traffic.

/// One metric.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Metric {
    /// Name, without the suffixes that Prometheus' conventions add.
    pub(crate) name: &'static str,
    /// What it counts.
    pub(crate) help: &'static str,
}

macro_rules! catalogue {
    ($($constant:ident = $name:literal: $help:literal;)*) => {
        $(#[doc = $help] pub(crate) const $constant: Metric = Metric { name: $name, help: $help };)*
    };
}

catalogue! {
    DECISIONS = "sluicegate_decisions":
        "Descriptors decided, by domain, rule, code (ok, over_limit, shadowed) and source (store, policy).";
    UNMATCHED = "sluicegate_descriptors_unmatched":
        "Descriptors to which no limit applied, by domain.";
    UNKNOWN_DOMAIN = "sluicegate_requests_unknown_domain":
        "Requests for a domain that is not configured.";
    INVALID = "sluicegate_requests_invalid":
        "Requests that were answered with an error because they are empty or exceed a bound.";
    SHED = "sluicegate_requests_shed":
        "Requests refused without being looked at because too many were in progress.";
    IN_FLIGHT = "sluicegate_requests_in_flight":
        "Requests in progress.";
    OVERRIDES_IGNORED = "sluicegate_overrides_ignored":
        "Overrides in requests that named no usable unit or multiplier; the configured rule was applied.";
    DECISION_DURATION = "sluicegate_decision_duration":
        "Time from matching a request to its verdict.";
    CONFIG_LOADS = "sluicegate_config_loads":
        "Times the limits files were loaded because they had changed, by result (success, failure).";
    CONFIG_GENERATION = "sluicegate_config_generation":
        "Number of the limits in force: 1 after the start, one more with each change taken up.";
    RULES = "sluicegate_rules":
        "Rules in force.";
    COUNTERS = "sluicegate_memory_counters":
        "Counters held by the memory store.";
    COUNTERS_MAX = "sluicegate_memory_counters_max":
        "The most counters the memory store holds.";
    STORE_FULL = "sluicegate_memory_full":
        "Checks refused because the memory store had no room for another counter.";
    TLS_FAILURES = "sluicegate_tls_handshakes_failed":
        "TLS handshakes that failed.";
    TLS_LOADS = "sluicegate_tls_loads":
        "Times the TLS files were loaded because they had changed, by result (success, failure).";
}
