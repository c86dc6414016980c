//! Metrics of the process.
//!
//! A request updates atomics, which the exporters read, and the histogram of durations, whose buckets the SDK locks for
//! a short time.

use std::{sync::Arc, time::Duration};

use sluicegate_core::{
    Request,
    key::DigestCache,
    rules::{RuleSet, StatsKey},
};

use super::{
    bounds::{OverBoundCounts, RefusalBoundValues},
    catalogue::{self, Counter, Gauge},
    count::{Attempts, Count},
    deadline_monitor::DeadlineMonitor,
    decisions::RuleSetCounts,
    hits::HitCounts,
    instruments::{HistogramRecorder, Instruments, MetricsError, Observe},
    otlp, push,
    series::{Series, SeriesQuota},
    top::{RuleLabels, TopCounters},
};
use crate::{
    decision::DecisionRecord,
    settings::{MetricSettings, OtlpSettings},
    values::NearLimitRatio,
};

/// The most unknown domains with a series each.
const UNKNOWN_DOMAINS_MAX: usize = 100;

/// Bounds of the buckets of the decision histogram, in seconds. Envoy's default timeout is 20 ms.
const DURATION_BOUNDS: [f64; 18] = [
    0.000_001, 0.000_002, 0.000_005, 0.000_01, 0.000_02, 0.000_05, 0.000_1, 0.000_2, 0.000_5,
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5,
];

/// The counts of a rule set, and the labels of its rules.
#[derive(Debug)]
pub(crate) struct RuleSetMetrics {
    pub(crate) counts: RuleSetCounts,
    labels: RuleLabels,
}

/// The metrics of the process.
pub(crate) struct Metrics {
    instruments: Instruments,
    duration: HistogramRecorder,
    near: NearLimitRatio,
    /// The quota of series with values of requests.
    detailed: Arc<SeriesQuota>,
    pub(crate) unknown_domain: Series<Count>,
    pub(crate) shadowed: Count,
    pub(crate) invalid: Count,
    pub(crate) shed: Count,
    pub(crate) over_bounds: OverBoundCounts,
    pub(crate) overrides_ignored: Count,
    pub(crate) deferred: Count,
    pub(crate) deadlines: DeadlineMonitor,
    pub(crate) limits_loads: Attempts,
    pub(crate) tls_loads: Attempts,
    pub(crate) admin_token_loads: Attempts,
    pub(crate) usage_tenants_loads: Attempts,
    pub(crate) counters_reset: Count,
    pushes: Arc<Attempts>,
    /// The top counters; `None` with `--top-keys 0`.
    pub(crate) top: Option<TopCounters>,
}

impl Metrics {
    /// Metrics of one process, all zero.
    pub(crate) fn new(
        settings: &MetricSettings,
        otlp: &OtlpSettings,
        top_keys: usize,
        bounds: RefusalBoundValues,
    ) -> Result<Self, MetricsError> {
        let pushes = Arc::<Attempts>::default();
        let instruments = Instruments::new(&otlp::resource(), push::reader(otlp, &pushes)?)?;
        let duration =
            instruments.register_histogram(catalogue::DECISION_DURATION_SECONDS, &DURATION_BOUNDS);
        instruments.register_gauge(catalogue::BUILD_INFO, |observe| {
            observe(1, &[env!("CARGO_PKG_VERSION")]);
        });
        #[cfg(target_os = "linux")]
        super::process::register(&instruments);
        Ok(Self {
            instruments,
            duration,
            near: settings.near_limit_ratio,
            detailed: SeriesQuota::new(settings.detailed_metric_series),
            unknown_domain: Series::new(&SeriesQuota::new(UNKNOWN_DOMAINS_MAX)),
            shadowed: Count::default(),
            invalid: Count::default(),
            shed: Count::default(),
            over_bounds: OverBoundCounts::new(bounds),
            overrides_ignored: Count::default(),
            deferred: Count::default(),
            deadlines: DeadlineMonitor::default(),
            limits_loads: Attempts::default(),
            tls_loads: Attempts::default(),
            admin_token_loads: Attempts::default(),
            usage_tenants_loads: Attempts::default(),
            counters_reset: Count::default(),
            pushes,
            top: TopCounters::new(top_keys, settings.near_limit_ratio),
        })
    }

    /// The counts and labels of a rule set. Counts of rules that are also in the rule set `before` continue.
    pub(crate) fn rule_set_metrics(
        &self,
        rules: &RuleSet,
        before: Option<(&RuleSet, &RuleSetMetrics)>,
    ) -> RuleSetMetrics {
        let before = before.map(|(rules, metrics)| (rules, &metrics.counts));
        RuleSetMetrics {
            counts: RuleSetCounts::new(rules, before, &self.detailed),
            labels: RuleLabels::new(rules),
        }
    }

    /// Counts a decided request in the counts of its rules.
    pub(crate) fn record(
        &self,
        rules: &RuleSetMetrics,
        record: &DecisionRecord<'_, '_>,
        request: &Request<'_>,
        took: Duration,
    ) {
        let DecisionRecord { plan, group, decisions, verdict } = record;
        self.duration.record(took.as_secs_f64());
        if plan.overrides_ignored > 0 {
            self.overrides_ignored.add(u64::from(plan.overrides_ignored));
        }
        if verdict.shadowed {
            self.shadowed.add(1);
        }
        let Some(domain) = plan.domain else {
            self.unknown_domain.with(request.domain(), |it| it.add(1));
            return;
        };
        let domain_counts = rules.counts.domains.get(&domain.name);
        let mut digests = DigestCache::new();
        if let Some(counts) = domain_counts {
            counts.requests.add(verdict.code, verdict.shadowed);
        }
        for (status, descriptor) in verdict.statuses.iter().zip(request.descriptors()) {
            let rule_counts = status.rule.and_then(|rule| rules.counts.rules.get(rule.id));
            let check =
                status.check_position.and_then(|at| Some((group.get(at)?, decisions.get(at)?)));
            match (check, domain_counts) {
                (Some((check, decision)), Some(domain_counts)) => {
                    let counts = rule_counts.unwrap_or(&domain_counts.overridden);
                    counts.count_decision(status, decision.source);
                    let count = |hits: &HitCounts| hits.count(self.near, check, decision, status);
                    match status.rule.map(|rule| &rule.stats_key) {
                        Some(key @ StatsKey::ByValue(_)) => {
                            counts
                                .by_value
                                .with(&key.for_entries(&descriptor.entries, &mut digests), count);
                        }
                        Some(StatsKey::Fixed(_)) | None => count(&counts.hits),
                    }
                    if let Some(top) = &self.top {
                        let label = || rules.labels.of(plan, status);
                        top.count(status, check, decision, label);
                    }
                }
                (None, Some(domain_counts)) if rule_counts.is_none() => {
                    domain_counts.unmatched.add(1);
                }
                // Descriptors of unlimited rules are not counted.
                (None | Some(_), _) => {}
            }
        }
    }

    /// The metrics in Prometheus' text format.
    pub(crate) fn render(&self) -> Result<Vec<u8>, MetricsError> {
        self.instruments.render()
    }

    /// Exports the last metrics to the collector, and shuts the export down. Blocks.
    pub(crate) fn shut_down(&self) {
        self.instruments.shut_down();
    }

    /// Registers a counter without labels.
    pub(crate) fn register_counter(
        &self,
        metric: Counter,
        read: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        self.instruments.register_counter(metric, move |observe| observe(read(), &[]));
    }

    /// Registers a counter with labels.
    pub(crate) fn register_labelled_counter(
        &self,
        metric: Counter,
        read: impl Fn(Observe<'_, u64>) + Send + Sync + 'static,
    ) {
        self.instruments.register_counter(metric, read);
    }

    /// Registers a counter of seconds.
    pub(crate) fn register_seconds_counter(
        &self,
        metric: Counter,
        read: impl Fn() -> Duration + Send + Sync + 'static,
    ) {
        self.instruments.register_seconds_counter(metric, move || Some(read().as_secs_f64()));
    }

    /// Registers a counter of seconds with labels.
    pub(crate) fn register_labelled_seconds_counter(
        &self,
        metric: Counter,
        read: impl Fn(Observe<'_, f64>) + Send + Sync + 'static,
    ) {
        self.instruments.register_labelled_seconds_counter(metric, read);
    }

    /// Registers a gauge without labels.
    pub(crate) fn register_gauge(
        &self,
        metric: Gauge,
        read: impl Fn() -> usize + Send + Sync + 'static,
    ) {
        self.register_labelled_gauge(metric, move |observe| {
            observe(u64::try_from(read()).unwrap_or(u64::MAX), &[]);
        });
    }

    /// Registers a gauge with labels.
    pub(crate) fn register_labelled_gauge(
        &self,
        metric: Gauge,
        read: impl Fn(Observe<'_, u64>) + Send + Sync + 'static,
    ) {
        self.instruments.register_gauge(metric, read);
    }

    /// Registers a histogram whose buckets have these upper bounds.
    pub(crate) fn register_histogram(
        &self,
        metric: catalogue::Histogram,
        bounds: &[f64],
    ) -> HistogramRecorder {
        self.instruments.register_histogram(metric, bounds)
    }

    /// Registers the metrics of this struct's counts.
    pub(crate) fn register_own(self: &Arc<Self>) {
        let own = |read: fn(&Self) -> &Count| {
            let metrics = Arc::clone(self);
            move || read(&metrics).get()
        };
        self.register_counter(catalogue::REQUESTS_SHADOWED, own(|it| &it.shadowed));
        let metrics = Arc::clone(self);
        self.instruments.register_counter(catalogue::REQUESTS_UNKNOWN_DOMAIN, move |observe| {
            metrics.unknown_domain.for_each(|domain, count| {
                if count.get() > 0 {
                    observe(count.get(), &[domain]);
                }
            });
        });
        self.register_counter(catalogue::REQUESTS_INVALID, own(|it| &it.invalid));
        self.register_counter(catalogue::REQUESTS_SHED, own(|it| &it.shed));
        let metrics = Arc::clone(self);
        self.instruments.register_counter(catalogue::REQUESTS_OVER_BOUND, move |observe| {
            metrics.over_bounds.for_each(|bound, count| observe(count, &[bound]));
        });
        self.register_counter(catalogue::OVERRIDES_IGNORED, own(|it| &it.overrides_ignored));
        self.register_counter(catalogue::REQUESTS_DEFERRED, own(|it| &it.deferred));
        self.register_counter(catalogue::COUNTERS_RESET, own(|it| &it.counters_reset));
        self.register_counter(catalogue::DECISIONS_LATE, own(|it| &it.deadlines.late));
        let metrics = Arc::clone(self);
        self.instruments
            .register_seconds_gauge(catalogue::SCHEDULING_DELAY_MAX_SECONDS, move || {
                Some(metrics.deadlines.longest_delay())
            });
        self.register_attempts(catalogue::CONFIG_LOADS, |it| &it.limits_loads);
        self.register_attempts(catalogue::TLS_LOADS, |it| &it.tls_loads);
        self.register_attempts(catalogue::ADMIN_TOKEN_LOADS, |it| &it.admin_token_loads);
        self.register_attempts(catalogue::USAGE_TENANTS_LOADS, |it| &it.usage_tenants_loads);
        self.register_attempts(catalogue::METRICS_PUSHES, |it| &it.pushes);
        let metrics = Arc::clone(self);
        self.register_gauge(catalogue::CONFIG_LAST_LOAD_SUCCESSFUL, move || {
            usize::from(!metrics.limits_loads.has_last_failed())
        });
    }

    fn register_attempts(self: &Arc<Self>, metric: Counter, read: fn(&Self) -> &Attempts) {
        let metrics = Arc::clone(self);
        self.instruments.register_counter(metric, move |observe| {
            let attempts = read(&metrics);
            observe(attempts.success.get(), &["success"]);
            observe(attempts.failure.get(), &["failure"]);
        });
    }
}
