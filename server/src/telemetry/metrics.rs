//! Metrics of the process.
//!
//! A request updates plain atomics, which exporters read, and the histogram of
//! durations, whose buckets the SDK guards with a short lock.

use std::{sync::Arc, time::Duration};

use sluicegate_core::{
    Request,
    key::DigestCache,
    rules::{RuleSet, StatsKey},
};

use super::{
    bounds::{BoundValues, OverBounds},
    catalogue::{self, Counter, Gauge},
    count::{Attempts, Count},
    deadline_monitor::DeadlineMonitor,
    decisions::RuleSetCounters,
    hits::Hits,
    instruments::{Instruments, MetricsError, Recorder, Show},
    otlp, push,
    series::{Series, SeriesQuota},
    top::{RuleLabels, Top},
};
use crate::{
    decision::DecisionRecord,
    settings::{MetricSettings, OtlpSettings},
    values::NearLimitRatio,
};

/// The most unknown domains with their own series.
const UNKNOWN_DOMAINS_MAX: usize = 100;

/// Bounds of the decision histogram's buckets, in seconds. Envoy gives up after 20 ms by default.
const DURATION_BOUNDS: [f64; 18] = [
    0.000_001, 0.000_002, 0.000_005, 0.000_01, 0.000_02, 0.000_05, 0.000_1, 0.000_2, 0.000_5,
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5,
];

/// What is counted about one set of rules, and what lists of counters call its rules.
#[derive(Debug)]
pub(crate) struct RuleMetrics {
    pub(crate) counters: RuleSetCounters,
    labels: RuleLabels,
}

/// What the process counts.
pub(crate) struct Telemetry {
    instruments: Instruments,
    duration: Recorder,
    near: NearLimitRatio,
    /// How many series may carry values of requests.
    detailed: Arc<SeriesQuota>,
    pub(crate) unknown_domain: Series<Count>,
    pub(crate) shadowed: Count,
    pub(crate) invalid: Count,
    pub(crate) shed: Count,
    pub(crate) over_bounds: OverBounds,
    pub(crate) overrides_ignored: Count,
    pub(crate) deferred: Count,
    pub(crate) deadlines: DeadlineMonitor,
    pub(crate) limits_loads: Attempts,
    pub(crate) tls_loads: Attempts,
    pub(crate) admin_token_loads: Attempts,
    pub(crate) counters_reset: Count,
    pushes: Arc<Attempts>,
    /// Who is being limited, if that is to be remembered.
    pub(crate) top: Option<Top>,
}

impl Telemetry {
    /// Metrics of one process, all zero.
    pub(crate) fn new(
        settings: &MetricSettings,
        otlp: &OtlpSettings,
        top_keys: usize,
        bounds: BoundValues,
    ) -> Result<Self, MetricsError> {
        let pushes = Arc::<Attempts>::default();
        let instruments = Instruments::new(&otlp::resource(), push::pushed(otlp, &pushes)?)?;
        let duration = instruments.histogram(catalogue::DECISION_DURATION, &DURATION_BOUNDS);
        instruments.gauges(catalogue::BUILD_INFO, |show| show(1, &[env!("CARGO_PKG_VERSION")]));
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
            over_bounds: OverBounds::new(bounds),
            overrides_ignored: Count::default(),
            deferred: Count::default(),
            deadlines: DeadlineMonitor::default(),
            limits_loads: Attempts::default(),
            tls_loads: Attempts::default(),
            admin_token_loads: Attempts::default(),
            counters_reset: Count::default(),
            pushes,
            top: Top::new(top_keys, settings.near_limit_ratio),
        })
    }

    /// Counters and labels for a set of rules. Counters of rules that are also in the set `before` continue.
    pub(crate) fn rules(
        &self,
        rules: &RuleSet,
        before: Option<(&RuleSet, &RuleMetrics)>,
    ) -> RuleMetrics {
        let before = before.map(|(rules, metrics)| (rules, &metrics.counters));
        RuleMetrics {
            counters: RuleSetCounters::new(rules, before, &self.detailed),
            labels: RuleLabels::new(rules),
        }
    }

    /// Counts one request, with the counters of the rules that decided it.
    pub(crate) fn record(
        &self,
        rules: &RuleMetrics,
        decided: &DecisionRecord<'_, '_>,
        request: &Request<'_>,
        took: Duration,
    ) {
        let DecisionRecord { plan, group, decisions, verdict } = decided;
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
        let of_domain = rules.counters.domains.get(&domain.name);
        let mut digests = DigestCache::new();
        if let Some(of_domain) = of_domain {
            of_domain.requests.add(verdict.code, verdict.shadowed);
        }
        for (status, descriptor) in verdict.statuses.iter().zip(request.descriptors()) {
            let of_rule = status.rule.and_then(|rule| rules.counters.rules.get(rule.id));
            let asked = status.check.and_then(|at| Some((group.get(at)?, decisions.get(at)?)));
            match (asked, of_domain) {
                (Some((check, decision)), Some(of_domain)) => {
                    let counters = of_rule.unwrap_or(&of_domain.overridden);
                    counters.decided(status, decision.source);
                    let count = |hits: &Hits| hits.count(self.near, check, decision, status);
                    match status.rule.map(|rule| &rule.stats_key) {
                        Some(key @ StatsKey::ByValue(_)) => {
                            counters
                                .by_value
                                .with(&key.for_entries(&descriptor.entries, &mut digests), count);
                        }
                        Some(StatsKey::Fixed(_)) | None => count(&counters.hits),
                    }
                    if let Some(top) = &self.top {
                        let label = || rules.labels.of(plan, status);
                        top.note(status, check, decision, label);
                    }
                }
                // Unlimited: everything passes, nothing is counted.
                (None, Some(of_domain)) if of_rule.is_none() => of_domain.unmatched.add(1),
                (None | Some(_), _) => {}
            }
        }
    }

    /// The metrics in Prometheus' text format.
    pub(crate) fn render(&self) -> Result<Vec<u8>, MetricsError> {
        self.instruments.render()
    }

    /// Pushes what was counted last, and ends. Blocks meanwhile.
    pub(crate) fn end(&self) {
        self.instruments.end();
    }

    /// Shows a number that only grows.
    pub(crate) fn register_count(
        &self,
        metric: Counter,
        read: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        self.instruments.counts(metric, move |show| show(read(), &[]));
    }

    /// Shows numbers that only grow, by label.
    pub(crate) fn register_counts(
        &self,
        metric: Counter,
        read: impl Fn(Show<'_, u64>) + Send + Sync + 'static,
    ) {
        self.instruments.counts(metric, read);
    }

    /// Shows a span of time that only grows, in seconds.
    pub(crate) fn register_seconds_count(
        &self,
        metric: Counter,
        read: impl Fn() -> Duration + Send + Sync + 'static,
    ) {
        self.instruments.seconds_count(metric, move || Some(read().as_secs_f64()));
    }

    /// Shows a number that goes up and down.
    pub(crate) fn register_gauge(
        &self,
        metric: Gauge,
        read: impl Fn() -> usize + Send + Sync + 'static,
    ) {
        self.register_gauges(metric, move |show| {
            show(u64::try_from(read()).unwrap_or(u64::MAX), &[]);
        });
    }

    /// Shows numbers that go up and down, by label.
    pub(crate) fn register_gauges(
        &self,
        metric: Gauge,
        read: impl Fn(Show<'_, u64>) + Send + Sync + 'static,
    ) {
        self.instruments.gauges(metric, read);
    }

    /// What takes values that are spread over buckets with these upper bounds.
    pub(crate) fn histogram(&self, metric: catalogue::Histogram, bounds: &[f64]) -> Recorder {
        self.instruments.histogram(metric, bounds)
    }

    /// Registers the metrics of what this struct counts.
    pub(crate) fn register_own(self: &Arc<Self>) {
        let own = |read: fn(&Self) -> &Count| {
            let telemetry = Arc::clone(self);
            move || read(&telemetry).get()
        };
        self.register_count(catalogue::SHADOWED, own(|it| &it.shadowed));
        let telemetry = Arc::clone(self);
        self.instruments.counts(catalogue::UNKNOWN_DOMAIN, move |show| {
            telemetry.unknown_domain.show(|domain, count| {
                if count.get() > 0 {
                    show(count.get(), &[domain]);
                }
            });
        });
        self.register_count(catalogue::INVALID, own(|it| &it.invalid));
        self.register_count(catalogue::SHED, own(|it| &it.shed));
        let telemetry = Arc::clone(self);
        self.instruments.counts(catalogue::OVER_BOUND, move |show| {
            telemetry.over_bounds.show(|bound, count| show(count, &[bound]));
        });
        self.register_count(catalogue::OVERRIDES_IGNORED, own(|it| &it.overrides_ignored));
        self.register_count(catalogue::DEFERRED, own(|it| &it.deferred));
        self.register_count(catalogue::COUNTERS_RESET, own(|it| &it.counters_reset));
        self.register_count(catalogue::LATE, own(|it| &it.deadlines.late));
        let telemetry = Arc::clone(self);
        self.instruments.seconds(catalogue::SCHEDULING_DELAY, move || {
            Some(telemetry.deadlines.longest_delay())
        });
        self.register_attempts(catalogue::CONFIG_LOADS, |it| &it.limits_loads);
        self.register_attempts(catalogue::TLS_LOADS, |it| &it.tls_loads);
        self.register_attempts(catalogue::ADMIN_TOKEN_LOADS, |it| &it.admin_token_loads);
        self.register_attempts(catalogue::METRICS_PUSHES, |it| &it.pushes);
        let telemetry = Arc::clone(self);
        self.register_gauge(catalogue::CONFIG_LAST_LOAD, move || {
            usize::from(!telemetry.limits_loads.is_bad())
        });
    }

    fn register_attempts(self: &Arc<Self>, metric: Counter, of: fn(&Self) -> &Attempts) {
        let telemetry = Arc::clone(self);
        self.instruments.counts(metric, move |show| {
            let attempts = of(&telemetry);
            show(attempts.success.get(), &["success"]);
            show(attempts.failure.get(), &["failure"]);
        });
    }
}
