//! Decisions and hits of each rule: what counts them, and how they are shown.

use std::{collections::HashMap, sync::Arc};

use sluicegate_core::{Code, Rule, Status, rules::RuleSet, store::Source};

use super::{
    catalogue::{self, Counter},
    hits::Hits,
    instruments::Show,
    metrics::{Count, Telemetry},
    series::{Budget, Series},
};
use crate::limits::Snapshot;

/// What is counted about one rule.
#[derive(Debug)]
pub(crate) struct RuleCounters {
    /// Decisions, by outcome.
    decisions: [ByCode; Source::ALL.len()],
    pub(super) hits: Hits,
    /// Hits in place of these, where the rule tells values of the request apart.
    pub(super) by_value: Series<Hits>,
}

/// Outcomes, as the labels show them.
pub(super) const CODES: [&str; 3] = ["ok", "over_limit", "shadowed"];

/// Counts by outcome.
#[derive(Debug, Default)]
pub(super) struct ByCode([Count; CODES.len()]);

impl ByCode {
    /// Counts one that was decided like this, and maybe only simulated.
    pub(super) fn add(&self, code: Code, shadowed: bool) {
        let Self([ok, over_limit, shadow]) = self;
        let count = match (code, shadowed) {
            (_, true) => shadow,
            (Code::OverLimit, false) => over_limit,
            (Code::Ok, false) => ok,
        };
        count.add(1);
    }

    /// Each outcome and how often it came.
    fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
        CODES.into_iter().zip(&self.0).map(|(code, count)| (code, count.get()))
    }
}

impl RuleCounters {
    fn new(budget: &Arc<Budget>) -> Arc<Self> {
        let by_value = Series::new(budget);
        Arc::new(Self { decisions: <[_; _]>::default(), hits: Hits::default(), by_value })
    }

    /// Counts what was decided of one descriptor.
    pub(super) fn decided(&self, status: &Status<'_>, source: Source) {
        let source = Source::ALL.iter().position(|it| *it == source);
        if let Some(by_code) = source.and_then(|source| self.decisions.get(source)) {
            by_code.add(status.code, status.shadowed);
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

/// What is counted about one domain, and not about one of its rules.
#[derive(Debug)]
pub(crate) struct DomainCounters {
    /// Requests.
    pub(super) requests: ByCode,
    /// Descriptors to which no limit applied.
    pub(super) unmatched: Count,
    /// An override applied where no rule matched.
    pub(super) overridden: Arc<RuleCounters>,
}

/// What stands for the rule where an override applied and no rule matched.
pub(crate) const OVERRIDE: &str = "(override)";

/// The counters that belong to one set of rules. Those of rules that stay live on in the next set.
#[derive(Debug, Default)]
pub(crate) struct RuleSetCounters {
    /// By rule id.
    pub(super) rules: Vec<Arc<RuleCounters>>,
    pub(super) domains: HashMap<Box<str>, Arc<DomainCounters>>,
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
        let new_domain = || {
            let (requests, unmatched) = (ByCode::default(), Count::default());
            Arc::new(DomainCounters { requests, unmatched, overridden: new_rule() })
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

/// Where hits of one kind are counted.
type CountOf = fn(&Hits) -> &Count;

/// Every kind of hits, and where it is counted.
pub(crate) const HITS: [(Counter, CountOf); 7] = [
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

/// Shows the hits of one kind.
pub(super) fn show_hits(snapshot: &Snapshot, count: CountOf, show: Show<'_, u64>) {
    visit_hits(snapshot, |of, hits| {
        let rule = of.rule.map_or(OVERRIDE, |rule| &*rule.path);
        let hits = count(hits).get();
        match of.key {
            Some(key) => show(hits, &[of.domain, rule, key]),
            None => show(hits, &[of.domain, rule]),
        }
    });
}

/// Shows the requests of every domain, also where there were none yet: that they have stopped can be told then.
pub(super) fn show_requests(snapshot: &Snapshot, show: Show<'_, u64>) {
    for (domain, counters) in &snapshot.counters.domains {
        counters.requests.each().for_each(|(code, count)| show(count, &[domain, code]));
    }
}

/// Shows the decisions of every rule, as far as there were any.
pub(super) fn show_decisions(snapshot: &Snapshot, show: Show<'_, u64>) {
    let of_rules = snapshot.rules.rules().zip(&snapshot.counters.rules);
    for ((domain, rule), counters) in of_rules {
        show_outcomes(&domain.name, &rule.path, counters, show);
    }
    for (domain, counters) in &snapshot.counters.domains {
        show_outcomes(domain, OVERRIDE, &counters.overridden, show);
    }
}

fn show_outcomes(domain: &str, rule: &str, counters: &RuleCounters, show: Show<'_, u64>) {
    for (source, by_code) in Source::ALL.iter().zip(&counters.decisions) {
        for (code, count) in by_code.each().filter(|(_, count)| *count > 0) {
            show(count, &[domain, rule, code, source.name()]);
        }
    }
}
