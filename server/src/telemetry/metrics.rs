//! Counts, and shows what was counted in Prometheus' text format.
//!
//! What a request touches are plain atomics; OpenTelemetry reads them when somebody looks.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use opentelemetry::{
    KeyValue,
    metrics::{Histogram, Meter, MeterProvider as _},
};
use opentelemetry_sdk::metrics::{Instrument, SdkMeterProvider, Stream};
use prometheus::{Encoder, Registry, TextEncoder};
use sluicegate_core::{Code, Plan, Status, Verdict, store::Source};
use thiserror::Error;

use super::{
    catalogue::{self, Metric},
    punctuality::Punctuality,
};
use crate::limits::Snapshot;

/// The most series of one metric. Rules are configuration, so this bounds a mistake, not traffic.
const SERIES_MAX: usize = 1_000_000;

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

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Successes and failures of something that is loaded from files.
#[derive(Debug, Default)]
pub(crate) struct Loads {
    pub(crate) success: Count,
    pub(crate) failure: Count,
}

/// Decisions of one rule, by outcome.
#[derive(Debug, Default)]
pub(crate) struct RuleCounters([[Count; CODES.len()]; SOURCES.len()]);

/// Outcomes and who decided, as the labels show them.
const CODES: [&str; 3] = ["ok", "over_limit", "shadowed"];
const SOURCES: [&str; 5] = ["store", "deny_cache", "local", "policy", "not_asked"];

impl RuleCounters {
    fn count(&self, status: &Status<'_>, source: Source) {
        let code = match (status.code, status.shadowed) {
            (_, true) => 2,
            (Code::OverLimit, false) => 1,
            (Code::Ok, false) => 0,
        };
        let source = match source {
            Source::Store => 0,
            Source::DenyCache => 1,
            Source::Local => 2,
            Source::Policy => 3,
            Source::NotAsked => 4,
        };
        if let Some(count) = self.0.get(source).and_then(|codes| codes.get(code)) {
            count.add(1);
        }
    }
}

/// Counters of one domain's descriptors that no rule's counters take.
#[derive(Debug, Default)]
pub(crate) struct DomainCounters {
    /// No limit applied.
    unmatched: Count,
    /// An override applied where no rule matched.
    overridden: RuleCounters,
}

/// The counters that belong to one set of rules. Those of rules that stay live on in the next set.
#[derive(Debug, Default)]
pub(crate) struct RuleSetCounters {
    /// By rule id.
    rules: Vec<Arc<RuleCounters>>,
    domains: HashMap<Box<str>, Arc<DomainCounters>>,
}

impl RuleSetCounters {
    /// Counters for `rules`, which go on from those in `before` that have the same domain and path.
    pub(crate) fn new(rules: &sluicegate_core::rules::RuleSet, before: Option<&Snapshot>) -> Self {
        let mut known: HashMap<(&str, &str), &Arc<RuleCounters>> = HashMap::new();
        if let Some(before) = before {
            let counters = before.rules.rules().zip(&before.counters.rules);
            known.extend(counters.map(|((domain, rule), it)| ((&*domain.name, &*rule.path), it)));
        }
        let kept = |domain: &str, path: &str| known.get(&(domain, path)).map(|it| Arc::clone(it));
        let domain = |name: &str| before?.counters.domains.get(name).cloned();
        Self {
            rules: rules
                .rules()
                .map(|(domain, rule)| kept(&domain.name, &rule.path).unwrap_or_default())
                .collect(),
            domains: rules
                .domains()
                .map(|it| (it.name.clone(), domain(&it.name).unwrap_or_default()))
                .collect(),
        }
    }
}

/// What the process counts, and the registry that shows it.
pub(crate) struct Telemetry {
    registry: Registry,
    meter: Meter,
    _provider: SdkMeterProvider,
    duration: Histogram<f64>,
    pub(crate) unknown_domain: Count,
    pub(crate) invalid: Count,
    pub(crate) shed: Count,
    pub(crate) overrides_ignored: Count,
    pub(crate) deferred: Count,
    pub(crate) punctuality: Punctuality,
    pub(crate) limits_loads: Loads,
    pub(crate) tls_loads: Loads,
}

/// Why the metrics cannot be set up or shown.
#[derive(Debug, Error)]
pub enum MetricsError {
    /// The exporter could not be made.
    #[error("cannot set up metrics: {0}")]
    Exporter(#[from] opentelemetry_sdk::error::OTelSdkError),
    /// The text could not be written.
    #[error("cannot render metrics: {0}")]
    Render(#[from] prometheus::Error),
}

impl Telemetry {
    /// Metrics of one process, all zero.
    pub(crate) fn new() -> Result<Self, MetricsError> {
        let registry = Registry::new();
        let exporter = opentelemetry_prometheus::exporter()
            .with_registry(registry.clone())
            .scope_info_enabled(false)
            .without_target_info()
            .build()?;
        let series =
            |_: &Instrument| Stream::builder().with_cardinality_limit(SERIES_MAX).build().ok();
        let provider = SdkMeterProvider::builder().with_reader(exporter).with_view(series).build();
        let meter = provider.meter("sluicegate");
        let duration = meter
            .f64_histogram(catalogue::DECISION_DURATION.name)
            .with_description(catalogue::DECISION_DURATION.help)
            .with_unit("s")
            .with_boundaries(DURATION_BOUNDS.to_vec())
            .build();
        Ok(Self {
            registry,
            meter,
            _provider: provider,
            duration,
            unknown_domain: Count::default(),
            invalid: Count::default(),
            shed: Count::default(),
            overrides_ignored: Count::default(),
            deferred: Count::default(),
            punctuality: Punctuality::default(),
            limits_loads: Loads::default(),
            tls_loads: Loads::default(),
        })
    }

    /// Records one decided request: the one place where that happens.
    pub(crate) fn record(
        &self,
        snapshot: &Snapshot,
        plan: &Plan<'_>,
        verdict: &Verdict<'_>,
        took: Duration,
    ) {
        self.duration.record(took.as_secs_f64(), &[]);
        if plan.overrides_ignored > 0 {
            self.overrides_ignored.add(u64::from(plan.overrides_ignored));
        }
        let Some(domain) = plan.domain else {
            self.unknown_domain.add(1);
            return;
        };
        let of_domain = snapshot.counters.domains.get(&domain.name);
        for status in &verdict.statuses {
            let of_rule = status.rule.and_then(|rule| snapshot.counters.rules.get(rule.id));
            match (status.source, of_rule, of_domain) {
                (Some(source), Some(counters), _) => counters.count(status, source),
                (Some(source), None, Some(counters)) => counters.overridden.count(status, source),
                (None, None, Some(counters)) => counters.unmatched.add(1),
                // Unlimited: everything passes, nothing is counted.
                (None, Some(_), _) | (_, None, None) => {}
            }
        }
    }

    /// The metrics in Prometheus' text format.
    pub(crate) fn render(&self) -> Result<Vec<u8>, MetricsError> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }

    /// Shows a number that only grows.
    pub(crate) fn show_count(
        &self,
        metric: Metric,
        read: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        self.show_counts(metric, move |show| show(read(), &[]));
    }

    /// Shows numbers that only grow, by label.
    pub(crate) fn show_counts(
        &self,
        metric: Metric,
        read: impl Fn(&dyn Fn(u64, &[KeyValue])) + Send + Sync + 'static,
    ) {
        let _registered = self
            .meter
            .u64_observable_counter(metric.name)
            .with_description(metric.help)
            .with_callback(move |observer| read(&|value, labels| observer.observe(value, labels)))
            .build();
    }

    /// Shows a number that goes up and down.
    pub(crate) fn show_gauge(
        &self,
        metric: Metric,
        read: impl Fn() -> usize + Send + Sync + 'static,
    ) {
        let _registered = self
            .meter
            .u64_observable_gauge(metric.name)
            .with_description(metric.help)
            .with_callback(move |observer| {
                observer.observe(u64::try_from(read()).unwrap_or(u64::MAX), &[]);
            })
            .build();
    }

    /// Shows a span of time.
    pub(crate) fn show_seconds(
        &self,
        metric: Metric,
        read: impl Fn() -> f64 + Send + Sync + 'static,
    ) {
        let _registered = self
            .meter
            .f64_observable_gauge(metric.name)
            .with_description(metric.help)
            .with_unit("s")
            .with_callback(move |observer| observer.observe(read(), &[]))
            .build();
    }

    /// Shows what this struct and the limits in force count.
    pub(crate) fn show_own(self: &Arc<Self>, snapshot: &Arc<ArcSwap<Snapshot>>) {
        let own = |read: fn(&Self) -> &Count| {
            let telemetry = Arc::clone(self);
            move || read(&telemetry).get()
        };
        self.show_count(catalogue::UNKNOWN_DOMAIN, own(|it| &it.unknown_domain));
        self.show_count(catalogue::INVALID, own(|it| &it.invalid));
        self.show_count(catalogue::SHED, own(|it| &it.shed));
        self.show_count(catalogue::OVERRIDES_IGNORED, own(|it| &it.overrides_ignored));
        self.show_count(catalogue::DEFERRED, own(|it| &it.deferred));
        self.show_count(catalogue::LATE, own(|it| &it.punctuality.late));
        let telemetry = Arc::clone(self);
        self.show_seconds(catalogue::SCHEDULING_DELAY, move || {
            telemetry.punctuality.longest_delay()
        });
        self.show_loads(catalogue::CONFIG_LOADS, |it| &it.limits_loads);
        self.show_loads(catalogue::TLS_LOADS, |it| &it.tls_loads);
        let current = Arc::clone(snapshot);
        self.show_counts(catalogue::DECISIONS, move |show| show_decisions(&current.load(), show));
        let current = Arc::clone(snapshot);
        self.show_counts(catalogue::UNMATCHED, move |show| {
            for (domain, counters) in &current.load().counters.domains {
                show(counters.unmatched.get(), &[KeyValue::new("domain", domain.to_string())]);
            }
        });
        let current = Arc::clone(snapshot);
        self.show_gauge(catalogue::CONFIG_GENERATION, move || current.load().generation);
        let current = Arc::clone(snapshot);
        self.show_gauge(catalogue::RULES, move || current.load().counters.rules.len());
    }

    fn show_loads(self: &Arc<Self>, metric: Metric, of: fn(&Self) -> &Loads) {
        let telemetry = Arc::clone(self);
        self.show_counts(metric, move |show| {
            let Loads { success, failure } = of(&telemetry);
            show(success.get(), &[KeyValue::new("result", "success")]);
            show(failure.get(), &[KeyValue::new("result", "failure")]);
        });
    }
}

/// Shows the decisions of every rule, as far as there were any.
fn show_decisions(snapshot: &Snapshot, show: &dyn Fn(u64, &[KeyValue])) {
    let of_rules = snapshot.rules.rules().zip(&snapshot.counters.rules);
    for ((domain, rule), counters) in of_rules {
        show_outcomes(&domain.name, &rule.path, counters, show);
    }
    for (domain, counters) in &snapshot.counters.domains {
        show_outcomes(domain, "(override)", &counters.overridden, show);
    }
}

fn show_outcomes(
    domain: &str,
    rule: &str,
    counters: &RuleCounters,
    show: &dyn Fn(u64, &[KeyValue]),
) {
    for (source, codes) in SOURCES.iter().zip(&counters.0) {
        for (code, count) in CODES.iter().zip(codes).filter(|(_, count)| count.get() > 0) {
            let labels = [
                KeyValue::new("domain", domain.to_owned()),
                KeyValue::new("rule", rule.to_owned()),
                KeyValue::new("code", *code),
                KeyValue::new("source", *source),
            ];
            show(count.get(), &labels);
        }
    }
}
