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
use sluicegate_core::{
    Code, Request, Rule, Status,
    rules::{RuleSet, StatsKey},
    store::Source,
};
use thiserror::Error;

use super::{
    catalogue::{self, Metric},
    hits::{Hits, NearLimitRatio},
    punctuality::Punctuality,
    series::{Budget, Series},
};
use crate::{limiter::Answered, limits::Snapshot, settings::MetricSettings};

/// The most series of one metric. Rules are configuration, so this bounds a mistake, not traffic.
const SERIES_MAX: usize = 1_000_000;

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

/// Successes and failures of something that is loaded from files.
#[derive(Debug, Default)]
pub(crate) struct Loads {
    pub(crate) success: Count,
    pub(crate) failure: Count,
}

/// What is counted about one rule.
#[derive(Debug)]
pub(crate) struct RuleCounters {
    /// Decisions, by outcome.
    decisions: [[Count; CODES.len()]; Source::ALL.len()],
    hits: Hits,
    /// Hits in place of these, where the rule tells values of the request apart.
    by_value: Series<Hits>,
}

/// Outcomes, as the labels show them.
const CODES: [&str; 3] = ["ok", "over_limit", "shadowed"];

impl RuleCounters {
    fn new(budget: &Arc<Budget>) -> Arc<Self> {
        let by_value = Series::new(budget);
        Arc::new(Self { decisions: <[_; _]>::default(), hits: Hits::default(), by_value })
    }

    fn decided(&self, status: &Status<'_>, source: Source) {
        let code = match (status.code, status.shadowed) {
            (_, true) => 2,
            (Code::OverLimit, false) => 1,
            (Code::Ok, false) => 0,
        };
        let source = Source::ALL.iter().position(|it| *it == source);
        let codes = source.and_then(|source| self.decisions.get(source));
        if let Some(count) = codes.and_then(|codes| codes.get(code)) {
            count.add(1);
        }
    }

    /// Shows the hits with what tells them apart, as far as there were any.
    fn show_hits(&self, mut show: impl FnMut(Option<&str>, &Hits)) {
        if self.hits.total.get() > 0 || self.hits.given_back.get() > 0 {
            show(None, &self.hits);
        }
        self.by_value.show(|key, hits| {
            if hits.total.get() > 0 || hits.given_back.get() > 0 {
                show(Some(key), hits);
            }
        });
    }
}

/// Counters of one domain's descriptors that no rule's counters take.
#[derive(Debug)]
pub(crate) struct DomainCounters {
    /// No limit applied.
    unmatched: Count,
    /// An override applied where no rule matched.
    overridden: Arc<RuleCounters>,
}

/// What stands for the rule where an override applied and no rule matched.
pub(crate) const OVERRIDE: &str = "(override)";

/// The counters that belong to one set of rules. Those of rules that stay live on in the next set.
#[derive(Debug, Default)]
pub(crate) struct RuleSetCounters {
    /// By rule id.
    rules: Vec<Arc<RuleCounters>>,
    domains: HashMap<Box<str>, Arc<DomainCounters>>,
}

impl RuleSetCounters {
    /// Counters for `rules`, which go on from those in `before` that have the same domain and path.
    pub(crate) fn new(rules: &RuleSet, before: Option<&Snapshot>, telemetry: &Telemetry) -> Self {
        let mut known: HashMap<(&str, &str), &Arc<RuleCounters>> = HashMap::new();
        if let Some(before) = before {
            let counters = before.rules.rules().zip(&before.counters.rules);
            known.extend(counters.map(|((domain, rule), it)| ((&*domain.name, &*rule.path), it)));
        }
        let kept = |domain: &str, path: &str| known.get(&(domain, path)).map(|it| Arc::clone(it));
        let domain = |name: &str| before?.counters.domains.get(name).cloned();
        let new_rule = || RuleCounters::new(&telemetry.detailed);
        let new_domain =
            || Arc::new(DomainCounters { unmatched: Count::default(), overridden: new_rule() });
        Self {
            rules: rules
                .rules()
                .map(|(domain, rule)| kept(&domain.name, &rule.path).unwrap_or_else(new_rule))
                .collect(),
            domains: rules
                .domains()
                .map(|it| (it.name.clone(), domain(&it.name).unwrap_or_else(new_domain)))
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
    near: NearLimitRatio,
    /// How many series may carry values of requests.
    detailed: Arc<Budget>,
    pub(crate) unknown_domain: Series<Count>,
    pub(crate) shadowed: Count,
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
    pub(crate) fn new(settings: &MetricSettings) -> Result<Self, MetricsError> {
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
            near: settings.near_limit_ratio,
            detailed: Budget::new(settings.detailed_metric_series),
            unknown_domain: Series::new(&Budget::new(UNKNOWN_DOMAINS_MAX)),
            shadowed: Count::default(),
            invalid: Count::default(),
            shed: Count::default(),
            overrides_ignored: Count::default(),
            deferred: Count::default(),
            punctuality: Punctuality::default(),
            limits_loads: Loads::default(),
            tls_loads: Loads::default(),
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
        self.duration.record(took.as_secs_f64(), &[]);
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
                            counters.by_value.with(&key.of(&descriptor.entries), count);
                        }
                        Some(StatsKey::Fixed(_)) | None => count(&counters.hits),
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
        self.show_count(catalogue::SHADOWED, own(|it| &it.shadowed));
        let telemetry = Arc::clone(self);
        self.show_counts(catalogue::UNKNOWN_DOMAIN, move |show| {
            telemetry.unknown_domain.show(|domain, count| {
                if count.get() > 0 {
                    show(count.get(), &[KeyValue::new("domain", domain.to_owned())]);
                }
            });
        });
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
        for (metric, of) in HITS {
            let current = Arc::clone(snapshot);
            self.show_counts(metric, move |show| show_hits(&current.load(), of, show));
        }
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

/// Where hits of one kind are counted.
type CountOf = fn(&Hits) -> &Count;

/// Every kind of hits, and where it is counted.
pub(crate) const HITS: [(Metric, CountOf); 7] = [
    (catalogue::HITS, |hits| &hits.total),
    (catalogue::HITS_WITHIN_LIMIT, |hits| &hits.within_limit),
    (catalogue::HITS_NEAR_LIMIT, |hits| &hits.near_limit),
    (catalogue::HITS_OVER_LIMIT, |hits| &hits.over_limit),
    (catalogue::HITS_FROM_DENY_CACHE, |hits| &hits.from_deny_cache),
    (catalogue::HITS_SHADOW_MODE, |hits| &hits.shadow_mode),
    (catalogue::HITS_GIVEN_BACK, |hits| &hits.given_back),
];

/// What hits were counted for.
pub(crate) struct HitsOf<'a> {
    pub(crate) domain: &'a str,
    /// `None` where an override applied and no rule matched.
    pub(crate) rule: Option<&'a Rule>,
    /// Values of requests that tell them apart, where the rule asks for that.
    pub(crate) key: Option<&'a str>,
}

/// Visits the hits of every rule, as far as there were any.
pub(crate) fn visit_hits(snapshot: &Snapshot, mut visit: impl FnMut(HitsOf<'_>, &Hits)) {
    for ((domain, rule), counters) in snapshot.rules.rules().zip(&snapshot.counters.rules) {
        let (domain, rule) = (&*domain.name, Some(rule));
        counters.show_hits(|key, hits| visit(HitsOf { domain, rule, key }, hits));
    }
    for (domain, counters) in &snapshot.counters.domains {
        counters.overridden.show_hits(|key, hits| visit(HitsOf { domain, rule: None, key }, hits));
    }
}

fn show_hits(snapshot: &Snapshot, count: CountOf, show: &dyn Fn(u64, &[KeyValue])) {
    visit_hits(snapshot, |of, hits| {
        let rule = of.rule.map_or(OVERRIDE, |rule| &rule.path);
        let mut labels = vec![
            KeyValue::new("domain", of.domain.to_owned()),
            KeyValue::new("rule", rule.to_owned()),
        ];
        labels.extend(of.key.map(|key| KeyValue::new("key", key.to_owned())));
        show(count(hits).get(), &labels);
    });
}

/// Shows the decisions of every rule, as far as there were any.
fn show_decisions(snapshot: &Snapshot, show: &dyn Fn(u64, &[KeyValue])) {
    let of_rules = snapshot.rules.rules().zip(&snapshot.counters.rules);
    for ((domain, rule), counters) in of_rules {
        show_outcomes(&domain.name, &rule.path, counters, show);
    }
    for (domain, counters) in &snapshot.counters.domains {
        show_outcomes(domain, OVERRIDE, &counters.overridden, show);
    }
}

fn show_outcomes(
    domain: &str,
    rule: &str,
    counters: &RuleCounters,
    show: &dyn Fn(u64, &[KeyValue]),
) {
    for (source, codes) in Source::ALL.iter().zip(&counters.decisions) {
        for (code, count) in CODES.iter().zip(codes).filter(|(_, count)| count.get() > 0) {
            let labels = [
                KeyValue::new("domain", domain.to_owned()),
                KeyValue::new("rule", rule.to_owned()),
                KeyValue::new("code", *code),
                KeyValue::new("source", source.name()),
            ];
            show(count.get(), &labels);
        }
    }
}
