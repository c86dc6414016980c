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
        "Descriptors decided, by domain, rule, code (ok, over_limit, shadowed) and source: the store, the \
         deny_cache, this process alone (local), the failure policy, or none, because the request was refused \
         before it was asked (not_asked).";
    DEFERRED = "sluicegate_requests_deferred":
        "Requests answered UNAVAILABLE because the store did not answer and a rule defers to the caller.";
    LATE = "sluicegate_decisions_late":
        "Requests decided after their deadline, by more than twice what the process was kept waiting by its machine.";
    SCHEDULING_DELAY = "sluicegate_scheduling_delay_max":
        "The longest time for which the process was not scheduled, as far as a pulse every 20 ms can tell.";
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
        "Counters held in this process's memory.";
    COUNTERS_MAX = "sluicegate_memory_counters_max":
        "The most counters that this process's memory holds.";
    UNANSWERED = "sluicegate_checks_unanswered":
        "Checks that the store did not answer: it was away, too slow, or had no room for another counter.";
    GIVE_BACKS_FAILED = "sluicegate_give_backs_failed":
        "Takes of refused requests that could not be given back. Each stays charged until it expires.";
    TAKES_UNKNOWN = "sluicegate_takes_unknown":
        "Takes of which Redis did not tell whether they were charged. Each may stay charged until it expires.";
    STORE_DEGRADED = "sluicegate_store_degraded":
        "1 while some counters cannot be asked and failure policies answer, else 0.";
    LIVE_REPLICAS = "sluicegate_live_replicas":
        "Processes that share the counters, as far as this one knows.";
    REDIS_CALLS = "sluicegate_redis_calls":
        "Scripts sent to Redis.";
    REDIS_CONNECTIONS = "sluicegate_redis_connections":
        "Connections made to Redis servers.";
    REDIS_SCRIPT_LOADS = "sluicegate_redis_script_loads":
        "Times that scripts were loaded because a Redis server had lost them.";
    REFUSALS = "sluicegate_deny_cache_refusals":
        "Refusals that the deny cache remembers.";
    TLS_FAILURES = "sluicegate_tls_handshakes_failed":
        "TLS handshakes that failed.";
    TLS_LOADS = "sluicegate_tls_loads":
        "Times the TLS files were loaded because they had changed, by result (success, failure).";
}
