//! Every metric there is: what is not here does not exist, because instruments are made from these entries, and
//! with their labels. `docs/metrics.md` is the same list.
//!
//! Values of labels come from configuration; where a rule asks for values of requests, or an unknown domain is one,
//! they are bounded.

use std::ops::Deref;

/// One metric.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Metric {
    /// Name, the same on `/metrics` and over OTLP. It ends as Prometheus' conventions want it.
    pub(crate) name: &'static str,
    /// What kind of number it is.
    pub(crate) kind: Kind,
    /// What tells its series apart, in order.
    pub(crate) labels: &'static [Label],
    /// What envoyproxy/ratelimit calls it, if it has it: with DOMAIN and KEY, where there is one for each rule.
    pub(crate) upstream: Option<&'static str>,
    /// What it tells.
    pub(crate) help: &'static str,
}

impl Metric {
    /// What it is measured in, as OpenTelemetry writes it; the name says it too. Empty where it is counted.
    pub(crate) fn unit(&self) -> &'static str {
        let name = self.name.strip_suffix("_total").unwrap_or(self.name);
        match name {
            _ if name.ends_with("_seconds") => "s",
            _ if name.ends_with("_bytes") => "By",
            _ => "",
        }
    }
}

/// Kinds of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// How values are spread.
    Histogram,
}

/// What tells series of a metric apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Label {
    pub(crate) name: &'static str,
    /// What its values are.
    #[cfg_attr(not(test), expect(dead_code, reason = "for the document"))]
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
    /// A metric that shows how values are spread.
    Histogram
}

macro_rules! labels {
    ($($constant:ident = $name:literal: $values:literal;)*) => {
        $(#[doc = $values] const $constant: Label = Label { name: $name, values: $values };)*

        /// Every label.
        #[cfg(test)]
        const LABELS: &[Label] = &[$($constant),*];
    };
}

labels! {
    DOMAIN = "domain":
        "A domain of the limits files. In `sluicegate_requests_unknown_domain_total` one that a request named, for \
         the first 100, else `(other)`.";
    RULE = "rule":
        "A rule's path, `key=value.key`; `(override)` where a request brought its own limit and no rule matched.";
    CODE = "code":
        "What was decided: `ok`, `over_limit`, or `shadowed`: refused, but only simulated.";
    SOURCE = "source":
        "Who decided: the `store`; the `deny_cache`, which remembers what the store refused; `local`, this process \
         alone, or the failure `policy`, because the store could not; `not_asked`: the request was refused before.";
    KEY = "key":
        "Values of the request, only where a rule has `detailed_metric` or `value_to_metric`; beyond \
         `--detailed-metric-series` of them, or longer than 256 bytes together, `(other)`. A digest, `%#…`, stands for a \
         value of more than 256 bytes.";
    BOUND = "bound":
        "What there was too much of: `descriptors` (256 a request), `entries` (64 a descriptor), `bytes` of the keys and \
         values of a request (`--request-max-bytes`), `message_bytes` (`--grpc-max-message-bytes`), `searched_bytes` (16 MiB \
         of values, pattern by pattern), `large_requests` (4 are decided at once, 64 more wait), `waiting_bytes` and \
         `waiting_bytes_per_connection` of messages that have not arrived as a whole (flags of that name), or \
         `body_bytes` of all large bodies on /json (32 MiB).";
    RESULT = "result": "`success` or `failure`.";
    GRPC_BOUND = "grpc_bound":
        "`message_timeout`: a message or frame took longer than --grpc-message-timeout; `in_flight_share`: a request was \
         refused because its connection had its share of --max-in-flight; `streaming_calls` and \
         `streaming_calls_per_connection`: a call of Watch or reflection was refused; `waiting_bytes`: a call to health \
         or reflection, or an answer that the caller does not take, was refused (RESOURCE_EXHAUSTED) because of \
         --grpc-max-waiting-bytes; `connection_idle`: a connection without a call was closed; `control_frames`: one was \
         closed for frames that carry no call; `http2`: one was closed for streams beyond \
         --grpc-max-concurrent-streams, or too many reset.";
    SERVER = "server": "A Redis server that is in use, `HOST:PORT`.";
    LISTENER = "listener": "`grpc`, `http` or `admin`.";
    REASON = "reason":
        "Why a connection was dropped: `refused`: it was new, and all places were in use; `address`: its address had \
         more than --max-pending-connections-per-address without a complete request, and it was the oldest; \
         `replaced`: it was the oldest without a complete request, or the longest idle, or one of the address that had \
         most, when a new one needed its place; `timeout`: --handshake-timeout; `idle`: --http-idle-timeout.";
    REQUEST_BOUND = "request_bound":
        "`body_time`: the body took too long, 10 s over HTTP and 30 s on the admin listener; `answer_time`: \
         the peer did not take an answer over HTTP within 30 s, or no byte of it for 10 s; `held_bytes`: the large \
         messages of all calls in progress on the admin listener took 32 MiB; `lasting_calls`: 64 calls of Watch and \
         reflection were in progress there.";
    VERSION = "version": "The version of Sluicegate.";
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

        /// Every metric.
        pub(super) const ALL: &[Metric] = &[$($constant.0),*];
    };
}

catalogue! {
    Counter REQUESTS = "sluicegate_requests_total" [DOMAIN, CODE]:
        "Requests decided: each of them once, however many descriptors it has. Not those shed, deferred or invalid, nor \
         those for a domain that is not configured.";
    Counter DECISIONS = "sluicegate_decisions_total" [DOMAIN, RULE, CODE, SOURCE]:
        "Descriptors decided.";
    Counter HITS = "sluicegate_hits_total" [DOMAIN, RULE, KEY]
        as "ratelimit.service.rate_limit.DOMAIN.KEY.total_hits":
        "Hits that were asked for.";
    Counter HITS_WITHIN_LIMIT = "sluicegate_hits_within_limit_total" [DOMAIN, RULE, KEY]
        as "ratelimit.service.rate_limit.DOMAIN.KEY.within_limit":
        "Hits that the rule let pass; not known, and not counted, where the deny cache had refused the request before.";
    Counter HITS_NEAR_LIMIT = "sluicegate_hits_near_limit_total" [DOMAIN, RULE, KEY]
        as "ratelimit.service.rate_limit.DOMAIN.KEY.near_limit":
        "Hits beyond --near-limit-ratio of the limit and not beyond the limit.";
    Counter HITS_OVER_LIMIT = "sluicegate_hits_over_limit_total" [DOMAIN, RULE, KEY]
        as "ratelimit.service.rate_limit.DOMAIN.KEY.over_limit":
        "Hits beyond the limit.";
    Counter HITS_FROM_DENY_CACHE = "sluicegate_hits_over_limit_from_deny_cache_total" [DOMAIN, RULE, KEY]
        as "ratelimit.service.rate_limit.DOMAIN.KEY.over_limit_with_local_cache":
        "Hits beyond the limit that the deny cache refused.";
    Counter HITS_SHADOW_MODE = "sluicegate_hits_shadow_mode_total" [DOMAIN, RULE, KEY]
        as "ratelimit.service.rate_limit.DOMAIN.KEY.shadow_mode":
        "Hits beyond the limit of a rule in shadow mode.";
    Counter HITS_GIVEN_BACK = "sluicegate_hits_given_back_total" [DOMAIN, RULE, KEY]
        as "ratelimit.service.rate_limit.DOMAIN.KEY.total_negative_hits":
        "Hits given back.";
    Counter SHADOWED = "sluicegate_requests_shadowed_total" [] as "ratelimit.service.global_shadow_mode":
        "Requests that would have been refused, were it not for --shadow-mode.";
    Counter DEFERRED = "sluicegate_requests_deferred_total" []:
        "Requests answered UNAVAILABLE because the store did not answer and a rule defers to the caller.";
    Counter INVALID = "sluicegate_requests_invalid_total" []
        as "ratelimit.service.call.should_rate_limit.service_error":
        "Requests that were answered with an error because they have no domain or no descriptors.";
    Counter OVER_BOUND = "sluicegate_requests_over_bound_total" [BOUND]:
        "Requests denied (OVER_LIMIT) without being decided because they exceed a bound.";
    Counter SHED = "sluicegate_requests_shed_total" []:
        "Requests refused without being looked at because --max-in-flight were in progress, or its share of their \
         connection.";
    Counter UNKNOWN_DOMAIN = "sluicegate_requests_unknown_domain_total" [DOMAIN]
        as "ratelimit.service.rate_limit.DOMAIN.domain_not_found":
        "Requests for a domain that is not configured.";
    Counter UNMATCHED = "sluicegate_descriptors_unmatched_total" [DOMAIN]:
        "Descriptors to which no limit applied.";
    Counter OVERRIDES_IGNORED = "sluicegate_overrides_ignored_total" []:
        "Overrides in requests that named no usable unit or multiplier; the configured rule was applied.";
    Gauge IN_FLIGHT = "sluicegate_requests_in_flight" []:
        "Requests in progress.";
    Gauge IN_FLIGHT_MAX = "sluicegate_requests_in_flight_max" []:
        "The most requests that may be in progress: --max-in-flight.";
    Counter GRPC_BOUNDS_MET = "sluicegate_grpc_bounds_met_total" [GRPC_BOUND]:
        "Times that a bound of the gRPC listener's connections and calls was met.";
    Gauge GRPC_WAITING_CALLS = "sluicegate_grpc_waiting_calls" []:
        "Calls whose messages have not arrived as a whole.";
    Gauge GRPC_WAITING_BYTES = "sluicegate_grpc_waiting_bytes" []:
        "Bytes that calls hold because their messages did not arrive at once, or their answers are not taken, beyond \
         128 KiB of each connection.";
    Gauge GRPC_STREAMING_CALLS = "sluicegate_grpc_streaming_calls" []:
        "Calls of health's Watch and of reflection in progress on the gRPC listener.";
    Histogram DECISION_DURATION = "sluicegate_decision_duration_seconds" []:
        "Time from matching a request to its verdict.";
    Counter LATE = "sluicegate_decisions_late_total" []:
        "Requests decided after their deadline, by more than twice what the process was kept waiting by its machine.";
    Gauge SCHEDULING_DELAY = "sluicegate_scheduling_delay_max_seconds" []:
        "The longest time for which the process was not scheduled, as far as a pulse every 20 ms can tell.";
    Counter CONFIG_LOADS = "sluicegate_config_loads_total" [RESULT]
        as "ratelimit.service.config_load_{success,error}":
        "Times the limits files were loaded, at the start or because they had changed.";
    Gauge CONFIG_LAST_LOAD = "sluicegate_config_last_load_successful" []:
        "1 if the limits files are in force as they are, 0 if they have mistakes and the limits before them stay.";
    Gauge CONFIG_GENERATION = "sluicegate_config_generation" []:
        "Number of the limits in force: 1 after the start, one more with each change taken up.";
    Gauge CONFIG_HASH = "sluicegate_config_hash" []:
        "A number below 2^53 made from the limits in force: the same wherever the same files are in force with the \
         same settings, whatever the folders are called.";
    Gauge RULES = "sluicegate_rules" []:
        "Rules in force.";
    Gauge COUNTERS = "sluicegate_memory_counters" []:
        "Counters held in this process's memory.";
    Gauge COUNTERS_MAX = "sluicegate_memory_counters_max" []:
        "The most counters that this process's memory holds: --memory-max-counters.";
    Gauge STORE_DEGRADED = "sluicegate_store_degraded" []:
        "1 while some counters cannot be asked and failure policies answer, else 0.";
    Counter STORE_DEGRADED_SECONDS = "sluicegate_store_degraded_seconds_total" []:
        "For how long some counters could not be asked.";
    Counter REQUESTS_UNANSWERED = "sluicegate_requests_unanswered_total" []
        as "ratelimit.service.call.should_rate_limit.redis_error":
        "Requests of which the store did not answer every check.";
    Counter UNANSWERED = "sluicegate_checks_unanswered_total" []:
        "Checks that the store did not answer: it was away, too slow, or had no room for another counter.";
    Gauge LIVE_REPLICAS = "sluicegate_live_replicas" []:
        "Processes that share the counters, as far as this one knows.";
    Counter COUNTERS_RESET = "sluicegate_counters_reset_total" []:
        "Counters that operators have reset through this process.";
    Counter GIVE_BACKS_FAILED = "sluicegate_give_backs_failed_total" []:
        "Takes of refused requests that could not be given back. Each stays charged until it expires; its hits count as unknown.";
    Counter HITS_UNKNOWN = "sluicegate_hits_unknown_total" []:
        "Hits of which Redis did not tell whether it charged them, or took them back, also not late. They may stay charged until they expire.";
    Gauge SETTLEMENTS_PENDING = "sluicegate_settlements_pending" []:
        "Give-backs in progress, and calls to Redis whose late replies are awaited: what may still change counters and the number of unknown hits.";
    Gauge SPLIT_SETTLING = "sluicegate_split_requests_settling" []:
        "Requests on several slots of a cluster that are being settled, their callers there or gone.";
    Counter SPLIT_ABANDONED = "sluicegate_split_requests_abandoned_total" []:
        "Requests on several slots of a cluster that were settled after their callers had gone.";
    Gauge REFUSALS = "sluicegate_deny_cache_refusals" [] as "ratelimit.localcache.entryCount":
        "Refusals that the deny cache remembers.";
    Gauge FALLBACK_COUNTERS = "sluicegate_fallback_counters" []:
        "Recently asked counters of which this process knows what is left, so that the policy local starts from there.";
    Counter FALLBACK_EVICTED = "sluicegate_fallback_counters_evicted_total" []:
        "Counters that were forgotten before they were reset, because --fallback-counters others were asked since.";
    Counter FALLBACK_FOUND = "sluicegate_fallback_checks_known_total" []:
        "Checks held against this process's share of the limit whose counters it knew.";
    Counter FALLBACK_MISSED = "sluicegate_fallback_checks_unknown_total" []:
        "Checks held against this process's share of the limit whose counters it did not know: they start unused.";
    Gauge FALLBACK_OWED = "sluicegate_fallback_hits_owed" []:
        "Hits that this process has admitted by itself and has not debited in Redis yet.";
    Counter FALLBACK_DEBITED = "sluicegate_fallback_hits_debited_total" []:
        "Hits that this process has admitted by itself and debited when Redis answered again.";
    Counter FALLBACK_UNKNOWN = "sluicegate_fallback_hits_unknown_total" []:
        "Hits of debits that Redis did not answer. They may be charged or not, and are not sent again.";
    Counter FALLBACK_DROPPED = "sluicegate_fallback_hits_dropped_total" []:
        "Hits that this process has admitted by itself and does not debit, because --fallback-counters others are to be.";
    Counter REDIS_CALLS = "sluicegate_redis_calls_total" []:
        "Scripts sent to Redis.";
    Histogram REDIS_CALL_DURATION = "sluicegate_redis_call_duration_seconds" []:
        "Time from sending scripts to Redis until they are answered, or given up; those for one server that are sent \
         together count once.";
    Histogram REDIS_BATCH_GROUPS = "sluicegate_redis_batch_groups" []:
        "Requests, or parts of them, that went to Redis together.";
    Gauge REDIS_WAITING = "sluicegate_redis_requests_waiting" []:
        "Requests, or parts of them, that wait to be sent to Redis with the next call.";
    Counter REDIS_CONNECTIONS = "sluicegate_redis_connections_total" [] as "ratelimit.redis_pool.cx_total":
        "Connections made to Redis servers.";
    Gauge REDIS_CONNECTIONS_OPEN = "sluicegate_redis_connections_open" [SERVER]
        as "ratelimit.redis_pool.cx_active":
        "Connections that stand.";
    Counter REDIS_RECONNECTS = "sluicegate_redis_reconnects_total" []:
        "Connections made in the place of one that stood before.";
    Gauge REDIS_BREAKER_OPEN = "sluicegate_redis_breaker_open" [SERVER]:
        "1 while calls to the server fail at once because no connection stands, else 0.";
    Counter REDIS_SCRIPT_LOADS = "sluicegate_redis_script_loads_total" []:
        "Times that scripts were loaded because a Redis server had lost them.";
    Counter REDIS_REPLIES_REJECTED = "sluicegate_redis_replies_rejected_total" []:
        "Replies of Redis that were too large, malformed, or not asked for; the connection is dropped, or the call unanswered.";
    Counter REDIS_REDIRECTIONS_REFUSED = "sluicegate_redis_redirections_refused_total" []:
        "Redirections that were not followed, because the cluster does not name their target or there is no cluster.";
    Counter REDIS_COUNTERS_UNUSABLE = "sluicegate_redis_counters_unusable_total" []:
        "Times that a counter's key held something that cannot be its state. It counts as never used, and is replaced when charged.";
    Gauge REDIS_MEMORY_USED = "sluicegate_redis_memory_used_bytes" [SERVER]:
        "Memory that the server uses; asked every 15 s.";
    Gauge REDIS_MEMORY_MAX = "sluicegate_redis_memory_max_bytes" [SERVER]:
        "The most memory that the server may use, its maxmemory; 0 if there is no bound.";
    Gauge REDIS_KEYS = "sluicegate_redis_keys" [SERVER]:
        "Keys in the server's database that is in use, whoever wrote them.";
    Counter DECISION_LOG_DROPPED = "sluicegate_decision_log_dropped_total" []:
        "Refusals that were not logged because they were more than --decision-log-max-per-second.";
    Counter LOG_LINES_DROPPED = "sluicegate_log_lines_dropped_total" []:
        "Lines of the log that were not written because the standard error stream took no more.";
    Counter LOG_LINES_SUPPRESSED = "sluicegate_log_lines_suppressed_total" []:
        "Lines of libraries that were not logged because they were more than ten in ten seconds from one place.";
    Counter TRACED = "sluicegate_traced_requests_total" []:
        "Requests that were traced.";
    Counter TRACED_SENT = "sluicegate_traced_requests_sent_total" []:
        "Requests of which the OpenTelemetry collector took the trace; the others' wait, or are lost.";
    Counter METRICS_PUSHES = "sluicegate_metrics_pushes_total" [RESULT]:
        "Times that the metrics were sent to the OpenTelemetry collector.";
    Gauge CONNECTIONS = "sluicegate_connections_open" [LISTENER]:
        "Connections that callers have opened.";
    Gauge CONNECTIONS_PENDING = "sluicegate_connections_pending" [LISTENER]:
        "Open connections that have not sent a complete request yet.";
    Gauge CONNECTIONS_MAX = "sluicegate_connections_max" [LISTENER]:
        "The most connections: --grpc-max-connections, --http-max-connections, and a part of the limit of open files.";
    Counter CONNECTIONS_DROPPED = "sluicegate_connections_dropped_total" [LISTENER, REASON]:
        "Connections that a listener has closed because of a bound.";
    Counter REQUEST_BOUNDS_MET = "sluicegate_request_bounds_met_total" [LISTENER, REQUEST_BOUND]:
        "Requests over HTTP and calls to the admin listener that were refused or cut off because of a bound.";
    Counter TLS_FAILURES = "sluicegate_tls_handshakes_failed_total" []:
        "TLS handshakes with callers that failed.";
    Counter TLS_LOADS = "sluicegate_tls_loads_total" [RESULT]:
        "Times the TLS files were loaded because they had changed.";
    Gauge TLS_LAST_LOAD = "sluicegate_tls_last_load_successful" []:
        "1 if the TLS files of every listener are in force as they are, 0 if some are of no use and those before them \
         stay.";
    Counter ADMIN_TOKEN_LOADS = "sluicegate_admin_token_loads_total" [RESULT]:
        "Times the admin token's file was loaded because it had changed.";
    Gauge ADMIN_TOKEN_LAST_LOAD = "sluicegate_admin_token_last_load_successful" []:
        "1 if the admin token is in force as its file has it, or none is asked for, 0 if the file is of no use and the \
         token before it stays.";
    Gauge BUILD_INFO = "sluicegate_build_info" [VERSION]:
        "1; the label tells what runs.";
    Counter PROCESS_CPU = "process_cpu_seconds_total" []:
        "CPU time that the process has used.";
    Gauge PROCESS_MEMORY = "process_resident_memory_bytes" []:
        "Memory of the process that is in RAM.";
    Gauge PROCESS_VIRTUAL_MEMORY = "process_virtual_memory_bytes" []:
        "Address space of the process.";
    Gauge PROCESS_START = "process_start_time_seconds" []:
        "When the process started, in seconds since 1970.";
    Gauge PROCESS_FDS = "process_open_fds" []:
        "File descriptors that are open.";
    Gauge PROCESS_FDS_MAX = "process_max_fds" []:
        "The most file descriptors that may be open.";
    Gauge PROCESS_THREADS = "process_threads" []:
        "Threads of the process.";
}

#[cfg(test)]
mod tests {
    use sluicegate_core::store::Source;

    use super::{ALL, BOUND, CODE, Kind, LABELS, SOURCE};
    use crate::telemetry::{Bound, decisions::CODES};

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
        let mut table =
            String::from("| metric | kind | labels | what it tells |\n|---|---|---|---|\n");
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
    fn names_end_as_the_kind_wants_it_and_are_there_once() {
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
        Source::ALL.iter().for_each(|source| has(SOURCE.values, source.name()));
        Bound::ALL.iter().for_each(|bound| has(BOUND.values, bound.name()));
    }

    #[test]
    fn units_are_those_of_the_names() {
        let units =
            [super::PROCESS_CPU.unit(), super::REDIS_MEMORY_USED.unit(), super::HITS.unit()];
        assert_eq!(units, ["s", "By", ""]);
    }
}
