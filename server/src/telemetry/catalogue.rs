//! The catalogue of all metrics. Instruments are created from its entries only. `docs/metrics.md` is the same list.
//!
//! Values of labels come from configuration. Exceptions are values of requests, if a rule enables them, and names of
//! unknown domains; their number is bounded.

use std::ops::Deref;

/// A metric.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Metric {
    /// The name, the same on `/metrics` and over OTLP, with the suffixes of Prometheus' conventions.
    pub(crate) name: &'static str,
    /// The kind of metric.
    pub(crate) kind: Kind,
    /// The labels, in the order in which values are passed.
    pub(crate) labels: &'static [Label],
    /// The name in envoyproxy/ratelimit, if it has the metric. DOMAIN and KEY are placeholders.
    pub(crate) upstream: Option<&'static str>,
    /// The meaning.
    pub(crate) help: &'static str,
}

impl Metric {
    /// The unit in OpenTelemetry's notation, according to the name. Empty for counts.
    pub(crate) fn unit(&self) -> &'static str {
        let name = self.name.strip_suffix("_total").unwrap_or(self.name);
        match name {
            _ if name.ends_with("_seconds") => "s",
            _ if name.ends_with("_bytes") => "By",
            _ => "",
        }
    }
}

/// The kinds of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A number that only grows.
    Counter,
    /// A number that goes up and down.
    Gauge,
    /// The distribution of values over buckets.
    Histogram,
}

/// A label of a metric.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Label {
    pub(crate) name: &'static str,
    /// A description of its values.
    #[cfg_attr(not(test), expect(dead_code, reason = "for docs/metrics.md"))]
    pub(crate) values: &'static str,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident),*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct $kind(Metric);

        impl Deref for $kind {
            type Target = Metric;

            fn deref(&self) -> &Metric {
                &self.0
            }
        }
    )*};
}

kinds! {
    /// A metric that only grows.
    Counter,
    /// A metric that goes up and down.
    Gauge,
    /// A metric with the distribution of values.
    Histogram
}

macro_rules! labels {
    ($($constant:ident = $name:literal: $values:literal;)*) => {
        $(#[doc = $values] const $constant: Label = Label { name: $name, values: $values };)*

        /// All labels.
        #[cfg(test)]
        const LABELS: &[Label] = &[$($constant),*];
    };
}

labels! {
    DOMAIN = "domain":
        "A domain of the limits files. In `sluicegate_requests_unknown_domain_total` the domain that a request named, \
         for the first 100, then `(other)`.";
    RULE = "rule":
        "Path of the rule, `key=value.key`; `(override)` for a limit of the request where no rule matched.";
    CODE = "code":
        "The decision: `ok`, `over_limit`, or `shadowed`: refused, but not enforced.";
    SOURCE = "source":
        "Source of the decision: `store`; `deny_cache`: Redis refused within the last second; `local`: this replica, \
         because the store did not answer; `policy`: `on_failure: deny`, `allow` or `defer`, because the store did \
         not answer; `not_asked`: none, because another check had already refused the request.";
    KEY = "key":
        "Values of the request, only for rules with `detailed_metric` or `value_to_metric`. Each value longer than \
         256 bytes is replaced by its digest, `%#…`. `(other)` if the label with digests is longer than 256 bytes, or \
         if there are already --detailed-metric-series labels.";
    BOUND = "bound":
        "The exceeded bound: `descriptors` (256 per request), `entries` (64 per descriptor), `bytes` of the keys and \
         values of a request (`--request-max-bytes`), `message_bytes` (`--grpc-max-message-bytes`), `searched_bytes` \
         (16 MiB of values, summed over the patterns), `large_requests` (4 are decided at once, 64 more wait), \
         `waiting_bytes` and `waiting_bytes_per_connection` of messages that have not fully arrived \
         (--grpc-max-waiting-bytes, --grpc-max-waiting-bytes-per-connection), or `body_bytes` of all large bodies on \
         /json (32 MiB).";
    RESULT = "result": "`success` or `failure`.";
    GRPC_BOUND = "grpc_bound":
        "`message_timeout`: a message or frame took longer than --grpc-message-timeout; `in_flight_share`: a request \
         was refused because its connection had reached its share of --max-in-flight; `streaming_calls` and \
         `streaming_calls_per_connection`: a Watch or reflection call was rejected; `waiting_bytes`: a health or \
         reflection call, or a response that the caller does not read, was rejected (RESOURCE_EXHAUSTED) because of \
         --grpc-max-waiting-bytes; `connection_idle`: a connection without a call was closed; `control_frames`: a \
         connection was closed for frames that carry no call; `http2`: a connection was closed for too many streams \
         beyond --grpc-max-concurrent-streams, reset streams, frames of one header list, or small DATA frames.";
    SERVER = "server": "A Redis server in use, `HOST:PORT`.";
    STATUS = "status": "HTTP status of the response.";
    LISTENER = "listener": "`grpc`, `http`, `admin`, or `usage` if there is one.";
    REASON = "reason":
        "Reason for dropping a connection: `refused`: it was new, and no other one could be dropped for it; `address`: \
         its address had --max-pending-connections-per-address pending connections, and it was the oldest of them that \
         had sent nothing, or else the oldest; `replaced`: a new connection needed its place, and it was a pending one \
         of the address with the most of these, the one idle longest, or one of the address with the most \
         connections; `timeout`: its handshake or first request took longer than --handshake-timeout; `idle`: no byte \
         was sent or received for --http-idle-timeout.";
    REQUEST_BOUND = "request_bound":
        "`body_time`: the body took too long, 10 s over HTTP and 30 s on the admin listener; `answer_time`: the peer \
         did not read an HTTP response within 30 s, or no byte of it for 10 s; `held_bytes`: the messages of all admin \
         calls in progress reached 32 MiB; `lasting_calls`: 64 Watch and reflection calls were in progress on \
         the admin listener.";
    VERSION = "version": "Version of Sluicegate.";
}

macro_rules! catalogue {
    (@upstream) => { None };
    (@upstream $upstream:literal) => { Some($upstream) };
    ($($kind:ident $constant:ident = $name:literal [$($label:ident),*] $(as $upstream:literal)?: $help:literal;)*) => {
        $(#[doc = $help] pub(crate) const $constant: $kind = $kind(Metric {
            name: $name,
            kind: Kind::$kind,
            labels: &[$($label),*],
            upstream: catalogue!(@upstream $($upstream)?),
            help: $help,
        });)*

        /// All metrics.
        pub(super) const ALL: &[Metric] = &[$($constant.0),*];
    };
}

catalogue! {
    Counter REQUESTS = "sluicegate_requests_total" [DOMAIN, CODE]:
        "Requests decided, each counted once regardless of its descriptors. Excludes requests that were shed, over a \
         bound, deferred or invalid, and requests for an unknown domain.";
    Counter DECISIONS = "sluicegate_decisions_total" [DOMAIN, RULE, CODE, SOURCE]:
        "Descriptors decided, each counted once regardless of the number of its limits. Excludes descriptors to which \
         no limit applied.";
    Counter HITS = "sluicegate_hits_total" [DOMAIN, RULE, KEY]
        as "ratelimit.service.rate_limit.DOMAIN.KEY.total_hits":
        "Hits requested, allowed or not. Without negative hits, which are refunds.";
    Counter HITS_WITHIN_LIMIT = "sluicegate_hits_within_limit_total" [DOMAIN, RULE, KEY]
        as "ratelimit.service.rate_limit.DOMAIN.KEY.within_limit":
        "Hits that the rule allowed. Not counted for a request that the deny cache refused, because the outcome of the \
         rule is unknown.";
    Counter HITS_NEAR_LIMIT = "sluicegate_hits_near_limit_total" [DOMAIN, RULE, KEY]
        as "ratelimit.service.rate_limit.DOMAIN.KEY.near_limit":
        "Hits above --near-limit-ratio of the limit and within the limit.";
    Counter HITS_OVER_LIMIT = "sluicegate_hits_over_limit_total" [DOMAIN, RULE, KEY]
        as "ratelimit.service.rate_limit.DOMAIN.KEY.over_limit":
        "Hits beyond the limit: refused, or admitted by a debit or by shadow mode. Includes all hits that a failure \
         policy refuses.";
    Counter HITS_OVER_LIMIT_FROM_DENY_CACHE = "sluicegate_hits_over_limit_from_deny_cache_total" [DOMAIN, RULE, KEY]
        as "ratelimit.service.rate_limit.DOMAIN.KEY.over_limit_with_local_cache":
        "Hits beyond the limit, refused by the deny cache.";
    Counter HITS_SHADOW_MODE = "sluicegate_hits_shadow_mode_total" [DOMAIN, RULE, KEY]
        as "ratelimit.service.rate_limit.DOMAIN.KEY.shadow_mode":
        "Hits beyond the limit of a rule in shadow mode.";
    Counter HITS_REFUNDED = "sluicegate_hits_refunded_total" [DOMAIN, RULE, KEY]
        as "ratelimit.service.rate_limit.DOMAIN.KEY.total_negative_hits":
        "Hits refunded.";
    Counter REQUESTS_SHADOWED = "sluicegate_requests_shadowed_total" [] as "ratelimit.service.global_shadow_mode":
        "Requests that would have been refused without --shadow-mode.";
    Counter REQUESTS_DEFERRED = "sluicegate_requests_deferred_total" []:
        "Requests answered UNAVAILABLE because the store did not answer and a rule has `on_failure: defer`.";
    Counter REQUESTS_INVALID = "sluicegate_requests_invalid_total" []
        as "ratelimit.service.call.should_rate_limit.service_error":
        "Requests answered with an error because they have no domain or no descriptors.";
    Counter REQUESTS_OVER_BOUND = "sluicegate_requests_over_bound_total" [BOUND]:
        "Requests refused (OVER_LIMIT; with --shadow-mode allowed) without a decision because they exceed a bound.";
    Counter REQUESTS_SHED = "sluicegate_requests_shed_total" []:
        "Requests shed: refused (OVER_LIMIT) before matching because --max-in-flight requests, or the connection's \
         share of them, were in flight.";
    Counter REQUESTS_UNKNOWN_DOMAIN = "sluicegate_requests_unknown_domain_total" [DOMAIN]
        as "ratelimit.service.rate_limit.DOMAIN.domain_not_found":
        "Requests for a domain that no limits file has.";
    Counter DESCRIPTORS_UNMATCHED = "sluicegate_descriptors_unmatched_total" [DOMAIN]:
        "Descriptors that nothing limited: they matched no rule, for example because of a misspelt key, or other \
         limits of the request replaced all of their rule. Excludes descriptors of unlimited rules.";
    Counter OVERRIDES_IGNORED = "sluicegate_overrides_ignored_total" []:
        "Overrides without a usable unit or multiplier. The configured rule applied.";
    Gauge REQUESTS_IN_FLIGHT = "sluicegate_requests_in_flight" []:
        "Requests in flight: their message has arrived, and they are not answered yet.";
    Gauge REQUESTS_IN_FLIGHT_MAX = "sluicegate_requests_in_flight_max" []:
        "Maximum number of requests in flight: --max-in-flight.";
    Counter GRPC_BOUNDS_MET = "sluicegate_grpc_bounds_met_total" [GRPC_BOUND]:
        "Times that connections and calls of the gRPC listener reached a bound.";
    Gauge GRPC_WAITING_CALLS = "sluicegate_grpc_waiting_calls" []:
        "Calls whose messages have not fully arrived.";
    Gauge GRPC_WAITING_BYTES = "sluicegate_grpc_waiting_bytes" []:
        "Bytes held by calls whose messages have not fully arrived or whose responses are not read. The first 128 KiB \
         of each connection are not counted.";
    Gauge GRPC_STREAMING_CALLS = "sluicegate_grpc_streaming_calls" []:
        "Health Watch and reflection calls in progress on the gRPC listener.";
    Histogram DECISION_DURATION_SECONDS = "sluicegate_decision_duration_seconds" []:
        "Time to decide a request: to match it, and for the store to answer. Without decoding the message and sending \
         the response. Requests that are refused without a decision or deferred are not counted.";
    Counter DECISIONS_LATE = "sluicegate_decisions_late_total" []:
        "Requests decided more than 2 ms after their deadline (--decision-timeout, or the caller's). Those of each \
         20 ms count only if the latest of them is late by more than twice the recent scheduling delay, so that delays \
         of the machine do not count. Should stay 0.";
    Gauge SCHEDULING_DELAY_MAX_SECONDS = "sluicegate_scheduling_delay_max_seconds" []:
        "Longest time since the start that the process was not scheduled, measured by a probe every 20 ms.";
    Counter CONFIG_LOADS = "sluicegate_config_loads_total" [RESULT]
        as "ratelimit.service.config_load_{success,error}":
        "Attempts to load the limits files, at start or after a change.";
    Gauge CONFIG_LAST_LOAD_SUCCESSFUL = "sluicegate_config_last_load_successful" []:
        "1 if the limits files are in force, 0 if they have mistakes and the previous limits stay in force.";
    Gauge CONFIG_GENERATION = "sluicegate_config_generation" []:
        "Number of the rule set in force: 1 after the start, one more with each change.";
    Gauge CONFIG_HASH = "sluicegate_config_hash" []:
        "Hash (below 2^53) of the limits files in force and of the settings for all limits. Equal on all replicas \
         with the same files and settings, regardless of folder names; comments count.";
    Gauge RULES = "sluicegate_rules" []:
        "Rules in force.";
    Gauge MEMORY_COUNTERS = "sluicegate_memory_counters" []:
        "Counters in the memory of this process.";
    Gauge MEMORY_COUNTERS_MAX = "sluicegate_memory_counters_max" []:
        "Maximum number of counters in the memory of this process: --memory-max-counters.";
    Gauge STORE_DEGRADED = "sluicegate_store_degraded" []:
        "1 while some counters are unavailable and failure policies apply, else 0.";
    Counter STORE_DEGRADED_SECONDS = "sluicegate_store_degraded_seconds_total" []:
        "Time that some counters were unavailable.";
    Counter REQUESTS_UNANSWERED = "sluicegate_requests_unanswered_total" []
        as "ratelimit.service.call.should_rate_limit.redis_error":
        "Requests with at least one check (question about one counter) that the store did not answer.";
    Counter CHECKS_UNANSWERED = "sluicegate_checks_unanswered_total" []:
        "Checks (questions about one counter) that the store did not answer: it was unavailable, too slow, or had no \
         room for another counter.";
    Gauge LIVE_REPLICAS = "sluicegate_live_replicas" []:
        "Replicas that share the counters, as seen by this process.";
    Counter COUNTERS_RESET = "sluicegate_counters_reset_total" []:
        "Counters that operators reset through this process.";
    Counter REFUNDS_FAILED = "sluicegate_refunds_failed_total" []:
        "Failed refunds, of charges of refused requests or of negative hits of callers. Their hits stay charged until \
         they expire, and count as unknown.";
    Counter HITS_UNKNOWN = "sluicegate_hits_unknown_total" []:
        "Hits for which no reply of Redis, even a late one, shows whether they were charged or refunded. They may stay \
         charged until they expire.";
    Gauge SETTLEMENTS_PENDING = "sluicegate_settlements_pending" []:
        "Refunds in progress, and calls to Redis whose late replies are awaited. These may still change counters and \
         the number of unknown hits.";
    Gauge SPLIT_REQUESTS_SETTLING = "sluicegate_split_requests_settling" []:
        "Multi-slot requests (with counters in more than one cluster slot) that are being settled, including those \
         whose callers have disconnected.";
    Counter SPLIT_REQUESTS_ABANDONED = "sluicegate_split_requests_abandoned_total" []:
        "Multi-slot requests that were settled after their callers had disconnected.";
    Gauge DENY_CACHE_REFUSALS = "sluicegate_deny_cache_refusals" [] as "ratelimit.localcache.entryCount":
        "Refusals in the deny cache, which remembers refusals of Redis for up to a second.";
    Gauge FALLBACK_COUNTERS = "sluicegate_fallback_counters" []:
        "Recently checked counters whose remaining hits this process knows. `on_failure: local` starts from them.";
    Counter FALLBACK_COUNTERS_EVICTED = "sluicegate_fallback_counters_evicted_total" []:
        "Counters whose remaining hits were forgotten before their reset, because more than --fallback-counters \
         counters were checked.";
    Counter FALLBACK_CHECKS_KNOWN = "sluicegate_fallback_checks_known_total" []:
        "Checks decided by this replica's share of the limit, for counters it knew.";
    Counter FALLBACK_CHECKS_UNKNOWN = "sluicegate_fallback_checks_unknown_total" []:
        "Checks decided by this replica's share of the limit, for counters it did not know. These start unused.";
    Gauge FALLBACK_HITS_UNDEBITED = "sluicegate_fallback_hits_undebited" []:
        "Hits that the local fallback admitted and has not debited in Redis yet.";
    Counter FALLBACK_HITS_DEBITED = "sluicegate_fallback_hits_debited_total" []:
        "Hits that the local fallback admitted and debited when Redis answered again.";
    Counter FALLBACK_HITS_UNKNOWN = "sluicegate_fallback_hits_unknown_total" []:
        "Hits of debits that Redis did not answer. They may be charged or not, and are not sent again.";
    Counter FALLBACK_HITS_DROPPED = "sluicegate_fallback_hits_dropped_total" []:
        "Hits that the local fallback admitted and does not debit, because debits for --fallback-counters other \
         counters are already pending.";
    Counter REDIS_CALLS = "sluicegate_redis_calls_total" []:
        "Script executions sent to Redis. Several that are sent to one server together count separately.";
    Histogram REDIS_CALL_DURATION_SECONDS = "sluicegate_redis_call_duration_seconds" []:
        "Time from sending scripts to Redis to their reply or timeout. Scripts that are sent to one server together \
         count once.";
    Histogram REDIS_BATCH_GROUPS = "sluicegate_redis_batch_groups" []:
        "Groups sent to Redis in one call. A group is the checks of one request, or of its part in one cluster slot.";
    Gauge REDIS_REQUESTS_WAITING = "sluicegate_redis_requests_waiting" []:
        "Groups that wait for the next call to Redis. A group is the checks of one request, or of its part in one \
         cluster slot.";
    Counter REDIS_CONNECTIONS = "sluicegate_redis_connections_total" [] as "ratelimit.redis_pool.cx_total":
        "Connections made to Redis servers.";
    Gauge REDIS_CONNECTIONS_OPEN = "sluicegate_redis_connections_open" [SERVER]
        as "ratelimit.redis_pool.cx_active":
        "Open connections.";
    Counter REDIS_RECONNECTS = "sluicegate_redis_reconnects_total" []:
        "Connections made to replace a lost one.";
    Gauge REDIS_BREAKER_OPEN = "sluicegate_redis_breaker_open" [SERVER]:
        "1 while calls to the server fail at once because no connection to it is open, else 0. A connection without \
         replies is closed.";
    Counter REDIS_SCRIPT_LOADS = "sluicegate_redis_script_loads_total" []:
        "Times that scripts were loaded because a Redis server had lost them.";
    Counter REDIS_REPLIES_REJECTED = "sluicegate_redis_replies_rejected_total" []:
        "Replies of Redis that were too large, malformed, or unexpected. The connection is dropped, or the call is \
         unanswered.";
    Counter REDIS_REDIRECTIONS_REFUSED = "sluicegate_redis_redirections_refused_total" []:
        "Redirections that were not followed, because their target is not part of the cluster or there is no cluster.";
    Counter REDIS_COUNTERS_UNUSABLE = "sluicegate_redis_counters_unusable_total" []:
        "Times that the key of a counter held a value that cannot be its state. The counter counts as unused, and the \
         value is replaced when charged.";
    Gauge REDIS_MEMORY_USED_BYTES = "sluicegate_redis_memory_used_bytes" [SERVER]:
        "Memory that the server uses, read every 15 s.";
    Gauge REDIS_MEMORY_MAX_BYTES = "sluicegate_redis_memory_max_bytes" [SERVER]:
        "maxmemory of the server; 0 if unbounded.";
    Counter REDIS_CPU = "sluicegate_redis_cpu_seconds_total" [SERVER]:
        "CPU time that the server has used since it started, without child processes.";
    Gauge REDIS_CLIENTS = "sluicegate_redis_clients" [SERVER]:
        "Connections of all clients to the server, including those of other applications.";
    Gauge REDIS_CLIENTS_MAX = "sluicegate_redis_clients_max" [SERVER]:
        "maxclients of the server.";
    Gauge REDIS_KEYS = "sluicegate_redis_keys" [SERVER]:
        "Keys in the database in use, including keys of other applications.";
    Counter DECISION_LOG_DROPPED = "sluicegate_decision_log_dropped_total" []:
        "Refusals not logged, because of --decision-log-max-per-second.";
    Counter LOG_LINES_DROPPED = "sluicegate_log_lines_dropped_total" []:
        "Log lines not written, because the standard error stream was blocked or writing to it failed.";
    Counter LOG_LINES_SUPPRESSED = "sluicegate_log_lines_suppressed_total" []:
        "Log lines of libraries suppressed, beyond ten in ten seconds from one place in the source.";
    Counter TRACED_REQUESTS = "sluicegate_traced_requests_total" []:
        "Requests sampled for a trace, whose spans have ended.";
    Counter TRACED_REQUESTS_SENT = "sluicegate_traced_requests_sent_total" []:
        "Requests whose trace the OpenTelemetry collector accepted. The traces of the others are queued or lost.";
    Counter METRICS_PUSHES = "sluicegate_metrics_pushes_total" [RESULT]:
        "Attempts to export the metrics to the OpenTelemetry collector.";
    Gauge CONNECTIONS_OPEN = "sluicegate_connections_open" [LISTENER]:
        "Open connections of callers.";
    Gauge CONNECTIONS_PENDING = "sluicegate_connections_pending" [LISTENER]:
        "Open connections that have not sent a complete request yet.";
    Gauge CONNECTIONS_MAX = "sluicegate_connections_max" [LISTENER]:
        "Maximum number of connections: --grpc-max-connections, --http-max-connections, and a share of the limit of \
         open files for the admin and the usage listener.";
    Counter CONNECTIONS_DROPPED = "sluicegate_connections_dropped_total" [LISTENER, REASON]:
        "Connections that a listener closed because of a bound.";
    Counter REQUEST_BOUNDS_MET = "sluicegate_request_bounds_met_total" [LISTENER, REQUEST_BOUND]:
        "Requests over HTTP, /usage included, and admin calls that were rejected or aborted because of a bound.";
    Counter TLS_HANDSHAKES_FAILED = "sluicegate_tls_handshakes_failed_total" []:
        "Failed TLS handshakes with callers.";
    Counter TLS_LOADS = "sluicegate_tls_loads_total" [RESULT]:
        "Attempts to load changed TLS files.";
    Gauge TLS_LAST_LOAD_SUCCESSFUL = "sluicegate_tls_last_load_successful" []:
        "1 if the TLS files of every listener are in force, 0 if some are unusable and the previous ones stay in \
         force.";
    Counter ADMIN_TOKEN_LOADS = "sluicegate_admin_token_loads_total" [RESULT]:
        "Attempts to load the changed admin token file.";
    Gauge ADMIN_TOKEN_LAST_LOAD_SUCCESSFUL = "sluicegate_admin_token_last_load_successful" []:
        "1 if the admin token in the file is in force, or none is required; 0 if the file is unusable and the previous \
         token stays in force.";
    Counter USAGE_REQUESTS = "sluicegate_usage_requests_total" [STATUS]:
        "Requests to the usage listener. They are not among the other requests and decisions.";
    Counter USAGE_TENANTS_LOADS = "sluicegate_usage_tenants_loads_total" [RESULT]:
        "Attempts to load the changed file of --usage-tenants-file.";
    Gauge USAGE_TENANTS_LAST_LOAD = "sluicegate_usage_tenants_last_load_successful" []:
        "1 if the tenants in the file of --usage-tenants-file are in force, or there is no such file; 0 if it has a \
         mistake and the previous tenants stay in force.";
    Gauge BUILD_INFO = "sluicegate_build_info" [VERSION]:
        "Always 1. The label has the version.";
    Counter PROCESS_CPU_SECONDS = "process_cpu_seconds_total" []:
        "CPU time used by the process.";
    Gauge PROCESS_RESIDENT_MEMORY_BYTES = "process_resident_memory_bytes" []:
        "Resident memory of the process.";
    Gauge PROCESS_VIRTUAL_MEMORY_BYTES = "process_virtual_memory_bytes" []:
        "Address space of the process.";
    Gauge PROCESS_START_TIME_SECONDS = "process_start_time_seconds" []:
        "Start time of the process, in seconds since 1970.";
    Gauge PROCESS_OPEN_FDS = "process_open_fds" []:
        "Open file descriptors.";
    Gauge PROCESS_MAX_FDS = "process_max_fds" []:
        "Maximum number of open file descriptors.";
    Gauge PROCESS_THREADS = "process_threads" []:
        "Threads of the process.";
}

#[cfg(test)]
mod tests {
    use sluicegate_core::store::DecisionSource;

    use super::{ALL, BOUND, CODE, Kind, LABELS, SOURCE};
    use crate::telemetry::{RefusalBound, decisions::CODES};

    #[test]
    fn the_migration_page_maps_upstreams_names() {
        let mut table = String::from("| upstream | Sluicegate | |\n|---|---|---|\n");
        for metric in ALL {
            if let Some(upstream) = metric.upstream {
                table
                    .push_str(&format!("| `{upstream}` | `{}` | {} |\n", metric.name, metric.help));
            }
        }
        let page = include_str!("../../../docs/migration.md");
        assert!(page.contains(&table), "docs/migration.md must have:\n{table}");
    }

    #[test]
    fn the_metrics_page_is_the_catalogue() {
        let mut table = String::from("| metric | kind | labels | meaning |\n|---|---|---|---|\n");
        for metric in ALL {
            let labels: Vec<_> = metric.labels.iter().map(|it| format!("`{}`", it.name)).collect();
            let (name, labels, help) = (metric.name, labels.join(" "), metric.help);
            let kind = format!("{:?}", metric.kind).to_lowercase();
            table.push_str(&format!("| `{name}` | {kind} | {labels} | {help} |\n"));
        }
        table.push_str("\n| label | values |\n|---|---|\n");
        for label in LABELS {
            table.push_str(&format!("| `{}` | {} |\n", label.name, label.values));
        }
        let page = include_str!("../../../docs/metrics.md");
        assert!(page.contains(&table), "docs/metrics.md must have:\n{table}");
    }

    #[test]
    fn names_are_unique_and_have_the_suffix_of_their_kind() {
        for metric in ALL {
            assert_eq!(metric.name.ends_with("_total"), metric.kind == Kind::Counter, "{metric:?}");
            assert_eq!(ALL.iter().filter(|it| it.name == metric.name).count(), 1, "{metric:?}");
        }
    }

    #[test]
    fn labels_name_all_their_values() {
        let has =
            |values: &str, value: &str| assert!(values.contains(&format!("`{value}`")), "{value}");
        CODES.iter().for_each(|code| has(CODE.values, code));
        DecisionSource::ALL.iter().for_each(|source| has(SOURCE.values, source.name()));
        RefusalBound::ALL.iter().for_each(|bound| has(BOUND.values, bound.name()));
    }

    #[test]
    fn units_follow_from_the_names() {
        let units = [
            super::PROCESS_CPU_SECONDS.unit(),
            super::REDIS_MEMORY_USED_BYTES.unit(),
            super::HITS.unit(),
        ];
        assert_eq!(units, ["s", "By", ""]);
    }
}
