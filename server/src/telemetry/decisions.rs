//! Decisions and hits of each rule: what counts them, and how they are shown.

use std::{collections::HashMap, sync::Arc};

use sluicegate_core::{Code, Rule, Status, rules::RuleSet, store::Source};

use super::{
    catalogue::{self, Counter},
    count::Count,
    hits::Hits,
    instruments::Show,
    series::{Series, SeriesQuota},
};

/// What is counted about one rule.
#[derive(Debug)]
pub(crate) struct RuleCounters {
    /// Decisions, by outcome.
    decisions: [OutcomeCounts; Source::ALL.len()],
    pub(super) hits: Hits,
    /// Hits by values of the request, in place of these, if the rule asks for that.
    pub(super) by_value: Series<Hits>,
}

/// Outcomes, as the labels show them.
pub(super) const CODES: [&str; 3] = ["ok", "over_limit", "shadowed"];

/// Counts by outcome.
#[derive(Debug, Default)]
pub(super) struct OutcomeCounts([Count; CODES.len()]);

impl OutcomeCounts {
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
    fn new(budget: &Arc<SeriesQuota>) -> Arc<Self> {
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

    /// Shows hits with their labels, if there were any.
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
    pub(super) requests: OutcomeCounts,
    /// Descriptors to which no limit applied.
    pub(super) unmatched: Count,
    /// An override applied where no rule matched.
    pub(super) overridden: Arc<RuleCounters>,
}

/// Name of the rule if an override applied and no rule matched.
pub(crate) const OVERRIDE: &str = "(override)";

/// The counters that belong to one set of rules. Those of rules that stay live on in the next set.
#[derive(Debug, Default)]
pub(crate) struct RuleSetCounters {
    /// By rule id.
    pub(super) rules: Vec<Arc<RuleCounters>>,
    pub(super) domains: HashMap<Box<str>, Arc<DomainCounters>>,
}

impl RuleSetCounters {
    /// Counters for `rules`. Those of rules with the same domain and path in `before` continue.
    pub(super) fn new(
        rules: &RuleSet,
        before: Option<(&RuleSet, &Self)>,
        detailed: &Arc<SeriesQuota>,
    ) -> Self {
        let mut known: HashMap<(&str, &str), &Arc<RuleCounters>> = HashMap::new();
        if let Some((rules, counters)) = before {
            let counters = rules.rules().zip(&counters.rules);
            known.extend(counters.map(|((domain, rule), it)| ((&*domain.name, &*rule.path), it)));
        }
        let kept = |domain: &str, path: &str| known.get(&(domain, path)).map(|it| Arc::clone(it));
        let domain = |name: &str| before?.1.domains.get(name).cloned();
        let new_rule = || RuleCounters::new(detailed);
        let new_domain = || {
            let (requests, unmatched) = (OutcomeCounts::default(), Count::default());
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
    (catalogue::HITS_REFUNDED, |hits| &hits.given_back),
];

/// What hits were counted for.
pub(crate) struct HitLabels<'a> {
    pub(crate) domain: &'a str,
    /// `None` where an override applied and no rule matched.
    pub(crate) rule: Option<&'a Rule>,
    /// Values of requests as labels, if the rule asks for that.
    pub(crate) key: Option<&'a str>,
}

/// Visits the hits of every rule, as far as there were any.
pub(crate) fn visit_hits(
    rules: &RuleSet,
    counters: &RuleSetCounters,
    mut visit: impl FnMut(HitLabels<'_>, &Hits),
) {
    for ((domain, rule), counters) in rules.rules().zip(&counters.rules) {
        let (domain, rule) = (&*domain.name, Some(rule));
        counters.show_hits(|key, hits| visit(HitLabels { domain, rule, key }, hits));
    }
    for (domain, counters) in &counters.domains {
        counters
            .overridden
            .show_hits(|key, hits| visit(HitLabels { domain, rule: None, key }, hits));
    }
}

impl RuleSetCounters {
    /// How many rules there are.
    pub(crate) fn len(&self) -> usize {
        self.rules.len()
    }

    /// Shows the hits of one kind.
    pub(crate) fn show_hits(&self, rules: &RuleSet, count: CountOf, show: Show<'_, u64>) {
        visit_hits(rules, self, |of, hits| {
            let rule = of.rule.map_or(OVERRIDE, |rule| &*rule.path);
            let hits = count(hits).get();
            match of.key {
                Some(key) => show(hits, &[of.domain, rule, key]),
                None => show(hits, &[of.domain, rule]),
            }
        });
    }

    /// Shows the requests of every domain, also without any yet, so that alerts can detect that they stopped.
    pub(crate) fn show_requests(&self, show: Show<'_, u64>) {
        for (domain, counters) in &self.domains {
            counters.requests.each().for_each(|(code, count)| show(count, &[domain, code]));
        }
    }

    /// Shows the descriptors without a limit of every domain.
    pub(crate) fn show_unmatched(&self, show: Show<'_, u64>) {
        for (domain, counters) in &self.domains {
            show(counters.unmatched.get(), &[&**domain]);
        }
    }

    /// Shows the decisions of every rule, as far as there were any.
    pub(crate) fn show_decisions(&self, rules: &RuleSet, show: Show<'_, u64>) {
        for ((domain, rule), counters) in rules.rules().zip(&self.rules) {
            show_outcomes(&domain.name, &rule.path, counters, show);
        }
        for (domain, counters) in &self.domains {
            show_outcomes(domain, OVERRIDE, &counters.overridden, show);
        }
    }
}

fn show_outcomes(domain: &str, rule: &str, counters: &RuleCounters, show: Show<'_, u64>) {
    for (source, by_code) in Source::ALL.iter().zip(&counters.decisions) {
        for (code, count) in by_code.each().filter(|(_, count)| *count > 0) {
            show(count, &[domain, rule, code, source.name()]);
        }
    }
}
