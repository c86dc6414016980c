//! Every metric there is: what is not here does not exist. Labels come from configuration; where a rule asks
//! for values of requests, or an unknown domain is one, they are bounded.

/// One metric.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Metric {
    /// Name, without the suffixes that Prometheus' conventions add.
    pub(crate) name: &'static str,
    /// What envoyproxy/ratelimit calls it, if it has it: with DOMAIN and KEY, where there is one for each rule.
    pub(crate) upstream: Option<&'static str>,
    /// What it counts.
    pub(crate) help: &'static str,
}

macro_rules! catalogue {
    (@upstream) => { None };
    (@upstream $upstream:literal) => { Some($upstream) };
    ($($constant:ident = $name:literal $(as $upstream:literal)?: $help:literal;)*) => {
        $(#[doc = $help] pub(crate) const $constant: Metric = Metric {
            name: $name,
            upstream: catalogue!(@upstream $($upstream)?),
            help: $help,
        };)*

        /// Every metric.
        #[cfg(test)]
        pub(crate) const ALL: &[Metric] = &[$($constant),*];
    };
}

catalogue! {
    DECISIONS = "sluicegate_decisions":
        "Descriptors decided, by domain, rule, code (ok, over_limit, shadowed) and source: the store, the \
         deny_cache, this process alone (local), the failure policy, or none, because the request was refused \
         before it was asked (not_asked).";
    HITS = "sluicegate_hits" as "ratelimit.service.rate_limit.DOMAIN.KEY.total_hits":
        "Hits that were asked for, by domain and rule; key tells values of the request apart where the rule says so.";
    HITS_WITHIN_LIMIT = "sluicegate_hits_within_limit" as "ratelimit.service.rate_limit.DOMAIN.KEY.within_limit":
        "Hits that the rule let pass; not known, and not counted, where the deny cache had refused the request before.";
    HITS_NEAR_LIMIT = "sluicegate_hits_near_limit" as "ratelimit.service.rate_limit.DOMAIN.KEY.near_limit":
        "Hits beyond --near-limit-ratio of the limit and not beyond the limit.";
    HITS_OVER_LIMIT = "sluicegate_hits_over_limit" as "ratelimit.service.rate_limit.DOMAIN.KEY.over_limit":
        "Hits beyond the limit.";
    HITS_FROM_DENY_CACHE = "sluicegate_hits_over_limit_from_deny_cache"
        as "ratelimit.service.rate_limit.DOMAIN.KEY.over_limit_with_local_cache":
        "Hits beyond the limit that the deny cache refused.";
    HITS_SHADOW_MODE = "sluicegate_hits_shadow_mode" as "ratelimit.service.rate_limit.DOMAIN.KEY.shadow_mode":
        "Hits beyond the limit of a rule in shadow mode.";
    HITS_GIVEN_BACK = "sluicegate_hits_given_back" as "ratelimit.service.rate_limit.DOMAIN.KEY.total_negative_hits":
        "Hits given back.";
    SHADOWED = "sluicegate_requests_shadowed" as "ratelimit.service.global_shadow_mode":
        "Requests that would have been refused, were it not for --shadow-mode.";
    DEFERRED = "sluicegate_requests_deferred":
        "Requests answered UNAVAILABLE because the store did not answer and a rule defers to the caller.";
    LATE = "sluicegate_decisions_late":
        "Requests decided after their deadline, by more than twice what the process was kept waiting by its machine.";
    SCHEDULING_DELAY = "sluicegate_scheduling_delay_max":
        "The longest time for which the process was not scheduled, as far as a pulse every 20 ms can tell.";
    UNMATCHED = "sluicegate_descriptors_unmatched":
        "Descriptors to which no limit applied, by domain.";
    UNKNOWN_DOMAIN = "sluicegate_requests_unknown_domain"
        as "ratelimit.service.rate_limit.DOMAIN.domain_not_found":
        "Requests for a domain that is not configured, by domain; beyond 100 domains as (other).";
    INVALID = "sluicegate_requests_invalid" as "ratelimit.service.call.should_rate_limit.service_error":
        "Requests that were answered with an error because they are empty or exceed a bound.";
    SHED = "sluicegate_requests_shed":
        "Requests refused without being looked at because too many were in progress.";
    IN_FLIGHT = "sluicegate_requests_in_flight":
        "Requests in progress.";
    OVERRIDES_IGNORED = "sluicegate_overrides_ignored":
        "Overrides in requests that named no usable unit or multiplier; the configured rule was applied.";
    DECISION_DURATION = "sluicegate_decision_duration":
        "Time from matching a request to its verdict.";
    CONFIG_LOADS = "sluicegate_config_loads" as "ratelimit.service.config_load_{success,error}":
        "Times the limits files were loaded, at the start or because they had changed, by result (success, failure).";
    CONFIG_GENERATION = "sluicegate_config_generation":
        "Number of the limits in force: 1 after the start, one more with each change taken up.";
    RULES = "sluicegate_rules":
        "Rules in force.";
    COUNTERS = "sluicegate_memory_counters":
        "Counters held in this process's memory.";
    COUNTERS_MAX = "sluicegate_memory_counters_max":
        "The most counters that this process's memory holds.";
    REQUESTS_UNANSWERED = "sluicegate_requests_unanswered"
        as "ratelimit.service.call.should_rate_limit.redis_error":
        "Requests of which the store did not answer every check.";
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
    REDIS_WAITING = "sluicegate_redis_requests_waiting":
        "Requests, or parts of them, that wait to be sent to Redis with the next call.";
    REDIS_CONNECTIONS = "sluicegate_redis_connections" as "ratelimit.redis_pool.cx_total":
        "Connections made to Redis servers.";
    REDIS_SCRIPT_LOADS = "sluicegate_redis_script_loads":
        "Times that scripts were loaded because a Redis server had lost them.";
    REFUSALS = "sluicegate_deny_cache_refusals" as "ratelimit.localcache.entryCount":
        "Refusals that the deny cache remembers.";
    TLS_FAILURES = "sluicegate_tls_handshakes_failed":
        "TLS handshakes that failed.";
    TLS_LOADS = "sluicegate_tls_loads":
        "Times the TLS files were loaded because they had changed, by result (success, failure).";
}

#[cfg(test)]
mod tests {
    use super::ALL;

    /// What an exporter adds to the name, by what the metric is.
    fn exported(name: &str) -> String {
        let gauges = ["deny_cache_refusals"];
        let suffix = if gauges.iter().any(|it| name.ends_with(it)) { "" } else { "_total" };
        format!("{name}{suffix}")
    }

    #[test]
    fn the_migration_page_maps_upstreams_names() {
        let mut table = String::from("| upstream | Sluicegate | |\n|---|---|---|\n");
        for metric in ALL {
            if let Some(upstream) = metric.upstream {
                let name = exported(metric.name);
                table.push_str(&format!("| `{upstream}` | `{name}` | {} |\n", metric.help));
            }
        }
        let page = include_str!("../../../docs/migration.md");
        assert!(page.contains(&table), "docs/migration.md must have:\n{table}");
    }
}
