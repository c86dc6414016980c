//! Counts of decisions and hits for each rule and domain.

use std::{collections::HashMap, sync::Arc};

use sluicegate_core::{Code, DescriptorStatus, Rule, rules::RuleSet, store::DecisionSource};

use super::{
    catalogue::{self, Counter},
    count::Count,
    hits::HitCounts,
    instruments::Observe,
    series::{Series, SeriesQuota},
};

/// The counts of one rule.
#[derive(Debug)]
pub(crate) struct RuleCounts {
    /// Decisions by source and outcome.
    decisions: [OutcomeCounts; DecisionSource::ALL.len()],
    pub(super) hits: HitCounts,
    /// Hits by values of the request. Used instead of `hits` for rules with `detailed_metric` or `value_to_metric`.
    pub(super) by_value: Series<HitCounts>,
}

/// The outcomes, as values of the label `code`.
pub(super) const CODES: [&str; 3] = ["ok", "over_limit", "shadowed"];

/// Counts by outcome.
#[derive(Debug, Default)]
pub(super) struct OutcomeCounts([Count; CODES.len()]);

impl OutcomeCounts {
    /// Counts an outcome.
    pub(super) fn add(&self, code: Code, shadowed: bool) {
        let Self([ok, over_limit, shadow]) = self;
        let count = match (code, shadowed) {
            (_, true) => shadow,
            (Code::OverLimit, false) => over_limit,
            (Code::Ok, false) => ok,
        };
        count.add(1);
    }

    /// The count of each outcome.
    fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
        CODES.into_iter().zip(&self.0).map(|(code, count)| (code, count.get()))
    }
}

impl RuleCounts {
    fn new(quota: &Arc<SeriesQuota>) -> Arc<Self> {
        let by_value = Series::new(quota);
        Arc::new(Self { decisions: <[_; _]>::default(), hits: HitCounts::default(), by_value })
    }

    /// Counts the decision on one descriptor.
    pub(super) fn count_decision(&self, status: &DescriptorStatus<'_>, source: DecisionSource) {
        let source = DecisionSource::ALL.iter().position(|it| *it == source);
        if let Some(by_code) = source.and_then(|source| self.decisions.get(source)) {
            by_code.add(status.code, status.shadowed);
        }
    }

    /// Calls `visit` with the hits by label, if there were any.
    fn visit_hits(&self, mut visit: impl FnMut(Option<&str>, &HitCounts)) {
        if self.hits.has_any() {
            visit(None, &self.hits);
        }
        self.by_value.for_each(|key, hits| {
            if hits.has_any() {
                visit(Some(key), hits);
            }
        });
    }
}

/// The counts of one domain that do not belong to one of its rules.
#[derive(Debug)]
pub(crate) struct DomainCounts {
    /// Requests by outcome.
    pub(super) requests: OutcomeCounts,
    /// Descriptors that nothing limited: they matched no rule and have no override, or other limits replaced all limits
    /// of their rule.
    pub(super) unmatched: Count,
    /// Descriptors that matched no rule, and have an override.
    pub(super) overridden: Arc<RuleCounts>,
}

/// The value of the label `rule` if an override applied and no rule matched.
pub(crate) const OVERRIDE_LABEL: &str = "(override)";

/// The counts of a rule set. The counts of rules and domains that remain are shared with the next rule set.
#[derive(Debug, Default)]
pub(crate) struct RuleSetCounts {
    /// By rule id.
    pub(super) rules: Vec<Arc<RuleCounts>>,
    pub(super) domains: HashMap<Box<str>, Arc<DomainCounts>>,
}

impl RuleSetCounts {
    /// Counters for `rules`. Those of rules with the same domain and path in `before` continue.
    pub(super) fn new(
        rules: &RuleSet,
        before: Option<(&RuleSet, &Self)>,
        detailed: &Arc<SeriesQuota>,
    ) -> Self {
        let mut known: HashMap<(&str, &str), &Arc<RuleCounts>> = HashMap::new();
        if let Some((rules, counts)) = before {
            let counts = rules.rules().zip(&counts.rules);
            known.extend(counts.map(|((domain, rule), it)| ((&*domain.name, &*rule.path), it)));
        }
        let kept = |domain: &str, path: &str| known.get(&(domain, path)).map(|it| Arc::clone(it));
        let domain = |name: &str| before?.1.domains.get(name).cloned();
        let new_rule = || RuleCounts::new(detailed);
        let new_domain = || {
            let (requests, unmatched) = (OutcomeCounts::default(), Count::default());
            Arc::new(DomainCounts { requests, unmatched, overridden: new_rule() })
        };
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

/// Selects the count of one kind of hits.
type CountOf = fn(&HitCounts) -> &Count;

/// The metrics of hits, and the count of each.
pub(crate) const HIT_METRICS: [(Counter, CountOf); 7] = [
    (catalogue::HITS, |hits| &hits.total),
    (catalogue::HITS_WITHIN_LIMIT, |hits| &hits.within_limit),
    (catalogue::HITS_NEAR_LIMIT, |hits| &hits.near_limit),
    (catalogue::HITS_OVER_LIMIT, |hits| &hits.over_limit),
    (catalogue::HITS_OVER_LIMIT_FROM_DENY_CACHE, |hits| &hits.from_deny_cache),
    (catalogue::HITS_SHADOW_MODE, |hits| &hits.shadow_mode),
    (catalogue::HITS_REFUNDED, |hits| &hits.refunded),
];

/// The labels of hits.
pub(crate) struct HitLabels<'a> {
    pub(crate) domain: &'a str,
    /// `None` if an override applied and no rule matched.
    pub(crate) rule: Option<&'a Rule>,
    /// Values of the request, for rules with `detailed_metric` or `value_to_metric`.
    pub(crate) key: Option<&'a str>,
}

/// Calls `visit` with the hits of each rule that has counted any.
pub(crate) fn visit_hits(
    rules: &RuleSet,
    counts: &RuleSetCounts,
    mut visit: impl FnMut(HitLabels<'_>, &HitCounts),
) {
    for ((domain, rule), counts) in rules.rules().zip(&counts.rules) {
        let (domain, rule) = (&*domain.name, Some(rule));
        counts.visit_hits(|key, hits| visit(HitLabels { domain, rule, key }, hits));
    }
    for (domain, counts) in &counts.domains {
        counts
            .overridden
            .visit_hits(|key, hits| visit(HitLabels { domain, rule: None, key }, hits));
    }
}

impl RuleSetCounts {
    /// The number of rules.
    pub(crate) fn len(&self) -> usize {
        self.rules.len()
    }

    /// Observes one kind of hits.
    pub(crate) fn observe_hits(&self, rules: &RuleSet, count: CountOf, observe: Observe<'_, u64>) {
        visit_hits(rules, self, |labels, hits| {
            let rule = labels.rule.map_or(OVERRIDE_LABEL, |rule| &*rule.path);
            let hits = count(hits).get();
            match labels.key {
                Some(key) => observe(hits, &[labels.domain, rule, key]),
                None => observe(hits, &[labels.domain, rule]),
            }
        });
    }

    /// Observes the requests of all domains, also those without any, so that alerts can detect that requests stopped.
    pub(crate) fn observe_requests(&self, observe: Observe<'_, u64>) {
        for (domain, counts) in &self.domains {
            counts.requests.each().for_each(|(code, count)| observe(count, &[domain, code]));
        }
    }

    /// Observes the descriptors of all domains that nothing limited.
    pub(crate) fn observe_unmatched(&self, observe: Observe<'_, u64>) {
        for (domain, counts) in &self.domains {
            observe(counts.unmatched.get(), &[&**domain]);
        }
    }

    /// Observes the decisions of all rules that have decided any.
    pub(crate) fn observe_decisions(&self, rules: &RuleSet, observe: Observe<'_, u64>) {
        for ((domain, rule), counts) in rules.rules().zip(&self.rules) {
            observe_outcomes(&domain.name, &rule.path, counts, observe);
        }
        for (domain, counts) in &self.domains {
            observe_outcomes(domain, OVERRIDE_LABEL, &counts.overridden, observe);
        }
    }
}

fn observe_outcomes(domain: &str, rule: &str, counts: &RuleCounts, observe: Observe<'_, u64>) {
    for (source, by_code) in DecisionSource::ALL.iter().zip(&counts.decisions) {
        for (code, count) in by_code.each().filter(|(_, count)| *count > 0) {
            observe(count, &[domain, rule, code, source.name()]);
        }
    }
}
