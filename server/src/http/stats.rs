//! The text of `/stats`: counters under the names of envoyproxy/ratelimit, for scripts that read them. One line `NAME:
//! VALUE` each, sorted.

use std::{collections::BTreeMap, ops::Deref};

use sluicegate_core::rules::{StatsKey, sanitize};
use sluicegate_proto::text::printable;
use sluicegate_store::Stack;

use crate::{
    limits::Snapshot,
    telemetry::{
        HIT_METRICS, HitLabels, Metrics, OTHER_LABEL, OVERRIDE_LABEL, catalogue, visit_hits,
    },
};

/// The lines. Only rules with at least one hit have lines.
pub(super) fn render(metrics: &Metrics, snapshot: &Snapshot, store: &Stack) -> String {
    let mut lines = Lines::default();
    visit_hits(&snapshot.rules, &snapshot.rule_set_metrics.counts, |labels, hits| {
        let (key, domain) = (key(&labels), sanitize(labels.domain));
        for (metric, count) in HIT_METRICS {
            lines.add(metric, &[("KEY", &key), ("DOMAIN", &domain)], count(hits).get());
        }
    });
    metrics.unknown_domain.for_each(|domain, count| {
        if count.get() > 0 {
            lines.add(
                catalogue::REQUESTS_UNKNOWN_DOMAIN,
                &[("DOMAIN", &sanitize(domain))],
                count.get(),
            );
        }
    });
    let loads = &metrics.limits_loads;
    for (result, count) in [("success", &loads.success), ("error", &loads.failure)] {
        lines.add(catalogue::CONFIG_LOADS, &[("{success,error}", result)], count.get());
    }
    lines.add(catalogue::REQUESTS_SHADOWED, &[], metrics.shadowed.get());
    lines.add(catalogue::REQUESTS_INVALID, &[], metrics.invalid.get());
    lines.add(catalogue::REQUESTS_UNANSWERED, &[], store.requests_unanswered());
    if let Some(redis) = store.as_redis() {
        lines.add(catalogue::REDIS_CONNECTIONS, &[], redis.stats().connections.get());
        let open: usize = redis.status().iter().map(|server| server.connections).sum();
        lines.add(catalogue::REDIS_CONNECTIONS_OPEN, &[], u64::try_from(open).unwrap_or(u64::MAX));
        lines.add(
            catalogue::DENY_CACHE_REFUSALS,
            &[],
            u64::try_from(store.deny_cache_refusals()).unwrap_or(u64::MAX),
        );
    }
    lines.0.into_iter().map(|(name, value)| format!("{}: {value}\n", printable(&name))).collect()
}

/// The name of the rule in envoyproxy/ratelimit.
fn key(labels: &HitLabels<'_>) -> String {
    let Some(rule) = labels.rule else { return OVERRIDE_LABEL.to_owned() };
    match (labels.key, &rule.stats_key) {
        (Some(OTHER_LABEL), _) => format!("{}.{OTHER_LABEL}", rule.path),
        (Some(key), _) => key.to_owned(),
        (None, StatsKey::Fixed(key)) => key.to_string(),
        (None, StatsKey::ByValue(_)) => rule.path.to_string(),
    }
}

/// Values by name. Rules with the same name in envoyproxy/ratelimit are added up, as there.
#[derive(Default)]
struct Lines(BTreeMap<String, u64>);

impl Lines {
    /// Adds a value of a metric that envoyproxy/ratelimit has too. Each of `parts` replaces a placeholder in the name.
    fn add(
        &mut self,
        metric: impl Deref<Target = catalogue::Metric>,
        parts: &[(&str, &str)],
        value: u64,
    ) {
        let Some(name) = metric.upstream else { return };
        let name =
            parts.iter().fold(name.to_owned(), |name, (part, it)| name.replacen(part, it, 1));
        let sum = self.0.entry(name).or_default();
        *sum = sum.saturating_add(value);
    }
}
