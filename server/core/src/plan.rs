//! Planning: finds the limits that apply to a request, and makes a check for each.

use smallvec::SmallVec;

use crate::{
    Algorithm, Charge, Check, Counting, CurrentLimit, Limit, OnFailure, Request, Rule,
    key::KeyBuilder,
    request::{Descriptor, Hits, LimitOverride},
    rule::{DisplayedRate, RuleLimits},
    rules::{Defaults, Domain, Match, Modes, RuleSet, SubstringSearchBudget},
    store::{Group, RefusalScope},
};

/// The limits that apply to each descriptor of a request.
#[derive(Debug)]
pub struct Plan<'r> {
    /// The domain, if it is configured.
    pub domain: Option<&'r Domain>,
    /// The descriptors, in the order of the request.
    pub descriptors: SmallVec<[PlannedDescriptor<'r>; 4]>,
    /// Whether all rules are in shadow mode: the request passes even if a rule refuses it.
    pub shadow_mode: bool,
    /// Whether a quota descriptor of the request can never be over its limit. Then the request's quota rules never
    /// refuse it.
    pub quota_never_refuses: bool,
    /// Number of overrides that were ignored, because their unit or multiplier is not valid.
    pub overrides_ignored: u32,
    /// Whether matching had to search more than [`SEARCHED_BYTES_MAX`](crate::rules::SEARCHED_BYTES_MAX) bytes. If so,
    /// the request must be refused, because other rules than those found may apply.
    pub is_search_budget_exceeded: bool,
}

/// The limits that apply to one descriptor.
#[derive(Debug)]
pub enum PlannedDescriptor<'r> {
    /// No limit applies.
    NoLimitApplies,
    /// An unlimited rule applies.
    Unlimited(&'r Rule),
    /// Limits apply: one check each.
    Limited {
        /// The rule that matched; `None` if none did and an override applies.
        rule: Option<&'r Rule>,
        /// The limits, in the order of the checks.
        limits: SmallVec<[CurrentLimit<'r>; 2]>,
        /// What a refusal of a check does to the request, unless all rules are in shadow mode. A refusal by a quota
        /// rule has no effect if [`Plan::quota_never_refuses`].
        refusal_scope: RefusalScope,
        /// How hits are charged.
        counting: Counting,
        /// Whether the rule is in shadow mode.
        shadow_mode: bool,
        /// Whether the limit is an override of the request.
        overridden: bool,
    },
}

impl<'r> PlannedDescriptor<'r> {
    /// The limits, in the order of the checks.
    #[must_use]
    pub fn limits(&self) -> &[CurrentLimit<'r>] {
        match self {
            Self::Limited { limits, .. } => limits,
            Self::NoLimitApplies | Self::Unlimited(_) => &[],
        }
    }

    /// Whether this is a quota descriptor that can never be over its limit.
    fn is_quota_never_over(&self, modes: Modes) -> bool {
        match self {
            Self::NoLimitApplies => modes.quota_mode,
            Self::Limited { rule, refusal_scope: RefusalScope::None, overridden, .. } => {
                modes.quota_mode || (!overridden && rule.is_some_and(|rule| rule.quota_mode))
            }
            Self::Limited { .. } | Self::Unlimited(_) => false,
        }
    }
}

impl<'r> Plan<'r> {
    /// Matches the request against the rules. Returns the plan, and a group with one check for each limit that applies.
    #[must_use]
    pub fn new(rules: &'r RuleSet, request: &Request<'_>) -> (Self, Group) {
        let plan = Self {
            domain: rules.domain(request.domain),
            descriptors: SmallVec::new(),
            shadow_mode: rules.modes.shadow_mode,
            quota_never_refuses: false,
            overrides_ignored: 0,
            is_search_budget_exceeded: false,
        };
        // The return value is built in place, because a plan is large.
        let mut planned = (plan, Group::default());
        let (plan, group) = &mut planned;
        let Some(domain) = plan.domain else {
            plan.descriptors
                .extend(request.descriptors.iter().map(|_| PlannedDescriptor::NoLimitApplies));
            return planned;
        };
        let mut matched = SmallVec::<[MatchedDescriptor<'_, '_, 'r>; 4]>::new();
        let mut search = SubstringSearchBudget::new();
        for descriptor in &request.descriptors {
            matched.push(plan.match_descriptor(domain, descriptor, &mut search));
        }
        plan.is_search_budget_exceeded = search.is_exceeded();
        let replaced = if domain.has_replacing_limits {
            ReplacedNames::collect(&matched)
        } else {
            ReplacedNames::default()
        };
        let mut pending = SmallVec::<[PendingCheck<'_, '_, '_>; 4]>::new();
        for (position, matched) in matched.iter().enumerate() {
            let planner = Planner { position, matched, quota_mode: rules.modes.quota_mode };
            plan.descriptors.push(planner.plan(&replaced, &mut pending));
        }
        plan.quota_never_refuses =
            plan.descriptors.iter().any(|it| it.is_quota_never_over(rules.modes));
        let never_refuses = |refusal_scope| {
            plan.shadow_mode || (plan.quota_never_refuses && refusal_scope == RefusalScope::Quota)
        };
        for pending in pending.iter_mut().filter(|it| never_refuses(it.refusal_scope)) {
            pending.refusal_scope = RefusalScope::None;
        }
        if !pending.is_empty() {
            let mut key_builder = KeyBuilder::empty();
            let mut built_for = None;
            // Collecting from an iterator of known length allocates the group once and builds each check in place.
            *group = pending
                .iter()
                .map(|pending| {
                    if built_for.replace(pending.position) != Some(pending.position) {
                        let tenant = domain.tenant.as_deref();
                        let MatchedDescriptor { descriptor, shared_patterns, .. } = pending.matched;
                        key_builder.set(&domain.name, tenant, &descriptor.entries, shared_patterns);
                    }
                    pending.check(&mut key_builder)
                })
                .collect();
        }
        planned
    }

    /// Finds the rule and the override of a descriptor. Counts the override as ignored if its window is not valid.
    fn match_descriptor<'p, 'q>(
        &mut self,
        domain: &'r Domain,
        descriptor: &'p Descriptor<'q>,
        search: &mut SubstringSearchBudget<'q, 'r>,
    ) -> MatchedDescriptor<'p, 'q, 'r> {
        let Match { rule, shared_patterns } = domain.find_with_budget(&descriptor.entries, search);
        let limit_override = descriptor.limit_override.and_then(|limit_override| {
            let algorithm = override_algorithm(domain, rule);
            let valid = ValidOverride::new(limit_override, algorithm);
            self.overrides_ignored += u32::from(valid.is_none());
            valid
        });
        let Defaults { counting, on_failure, .. } = domain.defaults;
        let policy = rule.map_or(RulePolicy { counting, on_failure }, |rule| RulePolicy {
            counting: rule.counting,
            on_failure: rule.on_failure,
        });
        MatchedDescriptor { descriptor, rule, shared_patterns, policy, limit_override }
    }
}

/// The algorithm of an override: that of the rule's first limit, which it replaces, or the default of the domain.
fn override_algorithm(domain: &Domain, rule: Option<&Rule>) -> Algorithm {
    let first = rule.and_then(|rule| match &rule.limits {
        RuleLimits::Limited(limits) => limits.first(),
        RuleLimits::Unlimited { .. } => None,
    });
    first.map_or(domain.defaults.algorithm, |first| first.limit.algorithm())
}

/// An override with a valid window.
struct ValidOverride {
    limit: Limit,
    displayed: DisplayedRate,
}

impl ValidOverride {
    fn new(limit_override: LimitOverride, algorithm: Algorithm) -> Option<Self> {
        let unit = limit_override.unit?;
        let unit_multiplier = limit_override.unit_multiplier.unwrap_or(1);
        let requests = limit_override.requests_per_unit;
        Some(Self {
            limit: Limit::for_override(algorithm, requests, limit_override.window()?),
            displayed: DisplayedRate { requests_per_unit: requests, unit, unit_multiplier },
        })
    }
}

/// Counting and failure policy of a rule, or of the domain if no rule matches.
#[derive(Clone, Copy)]
struct RulePolicy {
    counting: Counting,
    on_failure: OnFailure,
}

/// A descriptor with the rule that it matches.
struct MatchedDescriptor<'p, 'q, 'r> {
    descriptor: &'p Descriptor<'q>,
    rule: Option<&'r Rule>,
    /// The patterns in counter keys, as in [`Match`].
    shared_patterns: Vec<Option<&'r [u8]>>,
    policy: RulePolicy,
    /// The override of the descriptor, which replaces all limits of the rule.
    limit_override: Option<ValidOverride>,
}

/// Names of limits that do not apply to this request, because a matched rule replaces them.
#[derive(Default)]
struct ReplacedNames<'r>(SmallVec<[&'r str; 4]>);

impl<'r> ReplacedNames<'r> {
    /// Collects the names. A rule that an override replaces does not replace others.
    fn collect(matched: &[MatchedDescriptor<'_, '_, 'r>]) -> Self {
        let mut names = SmallVec::new();
        let configured = matched.iter().filter(|matched| matched.limit_override.is_none());
        for rule in configured.filter_map(|matched| matched.rule) {
            match &rule.limits {
                RuleLimits::Unlimited { replaces, .. } => {
                    names.extend(replaces.iter().map(AsRef::as_ref));
                }
                RuleLimits::Limited(limits) => {
                    let replaces = limits.iter().flat_map(|limit| limit.replaces.iter());
                    names.extend(replaces.map(AsRef::as_ref));
                }
            }
        }
        Self(names)
    }

    fn contains(&self, name: Option<&str>) -> bool {
        name.is_some_and(|name| self.0.contains(&name))
    }
}

/// A check before its key is built.
struct PendingCheck<'p, 'q, 'r> {
    limit: &'p Limit,
    matched: &'p MatchedDescriptor<'p, 'q, 'r>,
    /// Position of the descriptor.
    position: usize,
    refusal_scope: RefusalScope,
}

impl PendingCheck<'_, '_, '_> {
    /// Builds the key and the check. `key_builder` is set to the descriptor.
    fn check(&self, key_builder: &mut KeyBuilder<'_>) -> Check {
        let RulePolicy { counting, on_failure } = self.matched.policy;
        let charge = match (self.matched.descriptor.hits, counting) {
            (Hits::Add(hits), Counting::Free) => Charge::IfAllowed(hits),
            (Hits::Add(hits), Counting::Debit) => Charge::Always { hits, needs: 1 },
            (Hits::Add(hits), Counting::Upstream) => Charge::Always { hits, needs: hits },
            (Hits::Refund(hits), _) => Charge::Refund { hits, receipt: None },
        };
        Check {
            key: key_builder.key_for(self.limit),
            limit: *self.limit,
            charge,
            descriptor: self.position,
            refusal_scope: self.refusal_scope,
            on_failure,
        }
    }
}

/// Plans one descriptor.
struct Planner<'p, 'q, 'r> {
    position: usize,
    matched: &'p MatchedDescriptor<'p, 'q, 'r>,
    /// Whether every rule is a quota rule.
    quota_mode: bool,
}

impl<'p, 'q, 'r: 'p> Planner<'p, 'q, 'r> {
    /// Returns the limits that apply to the descriptor, and adds a pending check for each.
    fn plan(
        &self,
        replaced: &ReplacedNames<'_>,
        pending: &mut SmallVec<[PendingCheck<'p, 'q, 'r>; 4]>,
    ) -> PlannedDescriptor<'r> {
        let &MatchedDescriptor { rule, policy: RulePolicy { counting, .. }, .. } = self.matched;
        let refusal_scope = self.refusal_scope();
        let mut limits = SmallVec::new();
        let mut add = |limit, current| {
            pending.push(PendingCheck {
                limit,
                matched: self.matched,
                position: self.position,
                refusal_scope,
            });
            limits.push(current);
        };
        // An override replaces all limits of the matched rule, and keeps its algorithm, counting
        // and failure policy.
        if let Some(ValidOverride { limit, displayed }) = &self.matched.limit_override {
            add(limit, CurrentLimit { displayed: *displayed, name: None });
            let (shadow_mode, overridden) = (false, true);
            return PlannedDescriptor::Limited {
                rule,
                limits,
                refusal_scope,
                counting,
                shadow_mode,
                overridden,
            };
        }
        let Some(rule) = rule else { return PlannedDescriptor::NoLimitApplies };
        let rule_limits = match &rule.limits {
            RuleLimits::Unlimited { name, .. } if replaced.contains(name.as_deref()) => {
                return PlannedDescriptor::NoLimitApplies;
            }
            RuleLimits::Unlimited { .. } => return PlannedDescriptor::Unlimited(rule),
            RuleLimits::Limited(rule_limits) => rule_limits,
        };
        for limit in rule_limits.iter().filter(|it| !replaced.contains(it.name.as_deref())) {
            let name = limit.name.as_deref();
            add(&limit.limit, CurrentLimit { displayed: limit.displayed, name });
        }
        if limits.is_empty() {
            return PlannedDescriptor::NoLimitApplies;
        }
        let (rule, shadow_mode, overridden) = (Some(rule), rule.shadow_mode, false);
        PlannedDescriptor::Limited {
            rule,
            limits,
            refusal_scope,
            counting,
            shadow_mode,
            overridden,
        }
    }

    /// What a refusal of a check does to the request. The modes of a rule do not apply to an override that replaces it.
    fn refusal_scope(&self) -> RefusalScope {
        let rule = self.matched.rule.filter(|_| self.matched.limit_override.is_none());
        match (self.matched.descriptor.hits, rule) {
            (Hits::Refund(_), _) | (_, Some(Rule { shadow_mode: true, .. })) => RefusalScope::None,
            (_, Some(Rule { quota_mode: true, .. })) => RefusalScope::Quota,
            _ if self.quota_mode => RefusalScope::Quota,
            _ => RefusalScope::Request,
        }
    }
}
