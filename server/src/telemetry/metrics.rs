//! What the process counts.
//!
//! What a request touches are plain atomics, which OpenTelemetry reads when somebody looks, and the histogram of
//! durations, whose buckets the SDK guards with a lock that is held for an addition.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use sluicegate_core::{Request, key::Digests, rules::StatsKey};

use super::{
    bounds::{BoundValues, OverBounds},
    catalogue::{self, Counter, Gauge},
    decisions::{HITS, show_decisions, show_hits, show_requests},
    hits::{Hits, NearLimitRatio},
    instruments::{Instruments, MetricsError, Recorder, Show},
    otlp,
    punctuality::Punctuality,
    push,
    series::{Budget, Series},
    top::Top,
};
use crate::{
    limiter::Answered,
    limits::Snapshot,
    settings::{MetricSettings, OtlpSettings},
};

/// The most unknown domains that are told apart.
const UNKNOWN_DOMAINS_MAX: usize = 100;

/// Bounds of the decision histogram's buckets, in seconds. Envoy gives up after 20 ms by default.
const DURATION_BOUNDS: [f64; 18] = [
    0.000_001, 0.000_002, 0.000_005, 0.000_01, 0.000_02, 0.000_05, 0.000_1, 0.000_2, 0.000_5,
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5,
];

/// Counts that can only grow.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Successes and failures of something that is done again and again.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    pub(crate) success: Count,
    pub(crate) failure: Count,
    /// Whether the last one failed.
    bad: AtomicBool,
}

impl Attempts {
    /// One has succeeded: files were loaded.
    pub(crate) fn succeeded(&self) {
        self.success.add(1);
        self.restored();
    }

    /// One has failed: files have mistakes.
    pub(crate) fn failed(&self) {
        self.failure.add(1);
        self.bad.store(true, Ordering::Relaxed);
    }

    /// The files are again as they were when they were loaded last.
    pub(crate) fn restored(&self) {
        self.bad.store(false, Ordering::Relaxed);
    }

    /// Whether the last one failed.
    pub(super) fn is_bad(&self) -> bool {
        self.bad.load(Ordering::Relaxed)
    }
}

/// What the process counts.
pub(crate) struct Telemetry {
    instruments: Instruments,
    duration: Recorder,
    near: NearLimitRatio,
    /// How many series may carry values of requests.
    pub(super) detailed: Arc<Budget>,
    pub(crate) unknown_domain: Series<Count>,
    pub(crate) shadowed: Count,
    pub(crate) invalid: Count,
    pub(crate) shed: Count,
    pub(crate) over_bounds: OverBounds,
    pub(crate) overrides_ignored: Count,
    pub(crate) deferred: Count,
    pub(crate) punctuality: Punctuality,
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
        super::process::show(&instruments);
        Ok(Self {
            instruments,
            duration,
            near: settings.near_limit_ratio,
            detailed: Budget::new(settings.detailed_metric_series),
            unknown_domain: Series::new(&Budget::new(UNKNOWN_DOMAINS_MAX)),
            shadowed: Count::default(),
            invalid: Count::default(),
            shed: Count::default(),
            over_bounds: OverBounds::new(bounds),
            overrides_ignored: Count::default(),
            deferred: Count::default(),
            punctuality: Punctuality::default(),
            limits_loads: Attempts::default(),
            tls_loads: Attempts::default(),
            admin_token_loads: Attempts::default(),
            counters_reset: Count::default(),
            pushes,
            top: Top::new(top_keys, settings.near_limit_ratio),
        })
    }

    /// Counts one request.
    pub(crate) fn record(
        &self,
        snapshot: &Snapshot,
        answered: &Answered<'_, '_>,
        request: &Request<'_>,
        took: Duration,
    ) {
        let Answered { plan, group, decisions, verdict } = answered;
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
        let of_domain = snapshot.counters.domains.get(&domain.name);
        let mut digests = Digests::new();
        if let Some(of_domain) = of_domain {
            of_domain.requests.add(verdict.code, verdict.shadowed);
        }
        for (status, descriptor) in verdict.statuses.iter().zip(request.descriptors()) {
            let of_rule = status.rule.and_then(|rule| snapshot.counters.rules.get(rule.id));
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
                                .with(&key.of(&descriptor.entries, &mut digests), count);
                        }
                        Some(StatsKey::Fixed(_)) | None => count(&counters.hits),
                    }
                    if let Some(top) = &self.top {
                        let label = || snapshot.labels.of(plan, status);
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
    pub(crate) fn show_count(
        &self,
        metric: Counter,
        read: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        self.instruments.counts(metric, move |show| show(read(), &[]));
    }

    /// Shows numbers that only grow, by label.
    pub(crate) fn show_counts(
        &self,
        metric: Counter,
        read: impl Fn(Show<'_, u64>) + Send + Sync + 'static,
    ) {
        self.instruments.counts(metric, read);
    }

    /// Shows a span of time that only grows, in seconds.
    pub(crate) fn show_seconds_count(
        &self,
        metric: Counter,
        read: impl Fn() -> Duration + Send + Sync + 'static,
    ) {
        self.instruments.seconds_count(metric, move || Some(read().as_secs_f64()));
    }

    /// Shows a number that goes up and down.
    pub(crate) fn show_gauge(
        &self,
        metric: Gauge,
        read: impl Fn() -> usize + Send + Sync + 'static,
    ) {
        self.show_gauges(metric, move |show| show(u64::try_from(read()).unwrap_or(u64::MAX), &[]));
    }

    /// Shows numbers that go up and down, by label.
    pub(crate) fn show_gauges(
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

    /// Shows what this struct and the limits in force count.
    pub(crate) fn show_own(self: &Arc<Self>, snapshot: &Arc<ArcSwap<Snapshot>>) {
        let own = |read: fn(&Self) -> &Count| {
            let telemetry = Arc::clone(self);
            move || read(&telemetry).get()
        };
        self.show_count(catalogue::SHADOWED, own(|it| &it.shadowed));
        let telemetry = Arc::clone(self);
        self.instruments.counts(catalogue::UNKNOWN_DOMAIN, move |show| {
            telemetry.unknown_domain.show(|domain, count| {
                if count.get() > 0 {
                    show(count.get(), &[domain]);
                }
            });
        });
        self.show_count(catalogue::INVALID, own(|it| &it.invalid));
        self.show_count(catalogue::SHED, own(|it| &it.shed));
        let telemetry = Arc::clone(self);
        self.instruments.counts(catalogue::OVER_BOUND, move |show| {
            telemetry.over_bounds.show(|bound, count| show(count, &[bound]));
        });
        self.show_count(catalogue::OVERRIDES_IGNORED, own(|it| &it.overrides_ignored));
        self.show_count(catalogue::DEFERRED, own(|it| &it.deferred));
        self.show_count(catalogue::COUNTERS_RESET, own(|it| &it.counters_reset));
        self.show_count(catalogue::LATE, own(|it| &it.punctuality.late));
        let telemetry = Arc::clone(self);
        self.instruments.seconds(catalogue::SCHEDULING_DELAY, move || {
            Some(telemetry.punctuality.longest_delay())
        });
        self.show_attempts(catalogue::CONFIG_LOADS, |it| &it.limits_loads);
        self.show_attempts(catalogue::TLS_LOADS, |it| &it.tls_loads);
        self.show_attempts(catalogue::ADMIN_TOKEN_LOADS, |it| &it.admin_token_loads);
        self.show_attempts(catalogue::METRICS_PUSHES, |it| &it.pushes);
        let current = Arc::clone(snapshot);
        self.instruments
            .counts(catalogue::REQUESTS, move |show| show_requests(&current.load(), show));
        let current = Arc::clone(snapshot);
        self.instruments
            .counts(catalogue::DECISIONS, move |show| show_decisions(&current.load(), show));
        for (metric, of) in HITS {
            let current = Arc::clone(snapshot);
            self.instruments.counts(metric, move |show| show_hits(&current.load(), of, show));
        }
        let current = Arc::clone(snapshot);
        self.instruments.counts(catalogue::UNMATCHED, move |show| {
            for (domain, counters) in &current.load().counters.domains {
                show(counters.unmatched.get(), &[&**domain]);
            }
        });
        let telemetry = Arc::clone(self);
        self.show_gauge(catalogue::CONFIG_LAST_LOAD, move || {
            usize::from(!telemetry.limits_loads.is_bad())
        });
        let current = Arc::clone(snapshot);
        self.show_gauge(catalogue::CONFIG_GENERATION, move || current.load().generation);
        let current = Arc::clone(snapshot);
        self.show_gauges(catalogue::CONFIG_HASH, move |show| show(current.load().hash, &[]));
        let current = Arc::clone(snapshot);
        self.show_gauge(catalogue::RULES, move || current.load().counters.rules.len());
    }

    fn show_attempts(self: &Arc<Self>, metric: Counter, of: fn(&Self) -> &Attempts) {
        let telemetry = Arc::clone(self);
        self.instruments.counts(metric, move |show| {
            let attempts = of(&telemetry);
            show(attempts.success.get(), &["success"]);
            show(attempts.failure.get(), &["failure"]);
        });
    }
}
