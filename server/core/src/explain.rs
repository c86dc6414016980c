//! Explains which limits apply to a request and why, and builds the peeks of their counters.
//!
//! The limits are those of the [`Plan`] that decides such a request. This module adds only the reasons.

use std::collections::HashMap;

use crate::{
    Answers, Charge, Check, CounterKey, Counting, Plan, Request, Rule,
    plan::PlannedDescriptor,
    request::Descriptor,
    rule::{DisplayedRate, RuleLimits},
    rules::{Domain, MatchTrace, RuleSet, TraceEnd},
    settle::RefusalTally,
    store::{Group, RefusalScope},
};

/// Explanation of which limits apply to a request, and why.
#[derive(Debug)]
pub struct Explanation<'r> {
    /// One explanation for each descriptor, in the order of the request.
    pub descriptors: Vec<ExplainedDescriptor<'r>>,
    /// Whether every request passes, because all rules are in shadow mode.
    shadow_mode: bool,
}

/// Explanation of which limits apply to one descriptor, and why.
#[derive(Debug)]
pub struct ExplainedDescriptor<'r> {
    /// The result.
    pub outcome: DescriptorOutcome,
    /// The nodes that the matcher compared, level by level; `None` if the domain is not configured.
    pub trace: Option<MatchTrace<'r>>,
    /// The rule at the node of the last entry.
    pub rule: Option<&'r Rule>,
    /// Limits that apply.
    pub limits: Vec<AppliedLimit<'r>>,
    /// The rule's limits that do not apply, because a rule that the request matches replaces them.
    pub replaced_limits: Vec<ReplacedLimit<'r>>,
    /// Whether the descriptor has an override without a valid window, which is ignored.
    pub override_ignored: bool,
}

/// Result of matching a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescriptorOutcome {
    /// Limits of the rule apply.
    Limited,
    /// The override of the request applies.
    Overridden,
    /// The rule is unlimited.
    Unlimited,
    /// Rules that the request matches replace all limits of the rule.
    Replaced,
    /// The domain is not configured.
    DomainNotConfigured,
    /// There are no entries.
    NoEntries,
    /// At the last level of the trace, no node matches the descriptor's entry.
    NoMatch,
    /// The descriptor is deeper than the tree.
    TooDeep,
    /// The last entry's node has no limit, but there are nodes below it.
    TooShallow,
    /// The last entry's node has neither a limit nor nodes below it.
    NoLimit,
}

/// A limit that applies.
#[derive(Clone, Debug)]
pub struct AppliedLimit<'r> {
    /// The rate, as configured.
    pub displayed: DisplayedRate,
    /// The name of the limit, if it has one.
    pub name: Option<&'r str>,
    /// How hits are charged.
    pub counting: Counting,
    /// Whether the rule is in shadow mode.
    pub shadow_mode: bool,
    /// Whether the rule is in quota mode: the request is refused only if all its quota rules are over their limits.
    pub quota_mode: bool,
    /// The check that the request makes for this limit.
    pub check: Check,
}

/// A limit that does not apply, because a rule that the request matches replaces it: this rule or another.
#[derive(Clone, Copy, Debug)]
pub struct ReplacedLimit<'r> {
    /// Its name.
    pub name: &'r str,
    /// The rule that replaces it.
    pub replaced_by: &'r Rule,
}

impl<'r> Explanation<'r> {
    /// Explains a request.
    #[must_use]
    pub fn new(rules: &'r RuleSet, request: &Request<'_>) -> Self {
        let (plan, group) = Plan::new(rules, request);
        let traces =
            request.descriptors.iter().map(|descriptor| trace(&plan, descriptor)).collect();
        Self::of(rules, request, &plan, &group, traces)
    }

    /// Explains a request, unless it is cancelled: calls `is_wanted` before each descriptor, and returns `None` as soon
    /// as that returns false.
    #[must_use]
    pub fn unless_cancelled(
        rules: &'r RuleSet,
        request: &Request<'_>,
        is_wanted: impl Fn() -> bool,
    ) -> Option<Self> {
        let (plan, group) = Plan::new(rules, request);
        let descriptors = request.descriptors.iter();
        let traces = descriptors.map(|descriptor| is_wanted().then(|| trace(&plan, descriptor)));
        let traces = traces.collect::<Option<Vec<_>>>()?;
        Some(Self::of(rules, request, &plan, &group, traces))
    }

    fn of(
        rules: &RuleSet,
        request: &Request<'_>,
        plan: &Plan<'r>,
        group: &Group,
        traces: Vec<Option<MatchTrace<'r>>>,
    ) -> Self {
        let replacing_rules = replacing_rules(&request.descriptors, &traces);
        let mut checks = group.iter();
        let modes = rules.modes;
        let descriptors = request.descriptors.iter().zip(traces).zip(&plan.descriptors);
        let descriptors = descriptors.map(|((descriptor, trace), planned)| {
            let limit_override = descriptor.limit_override;
            let overridden = limit_override.is_some_and(|it| it.window().is_some());
            let rule = trace.as_ref().and_then(rule_of);
            let limits = match planned {
                PlannedDescriptor::Limited { limits, shadow_mode, .. } => limits
                    .iter()
                    .zip(checks.by_ref())
                    .map(|(limit, check)| AppliedLimit {
                        displayed: limit.displayed,
                        name: limit.name,
                        counting: counting(rule, plan.domain),
                        shadow_mode: *shadow_mode || modes.shadow_mode,
                        quota_mode: check.refusal_scope == RefusalScope::Quota
                            || (!overridden && rule.is_some_and(|rule| rule.quota_mode))
                            || modes.quota_mode,
                        check: check.clone(),
                    })
                    .collect(),
                PlannedDescriptor::NoLimitApplies | PlannedDescriptor::Unlimited(_) => Vec::new(),
            };
            let outcome = match (planned, &trace) {
                (PlannedDescriptor::Limited { .. }, _) if overridden => {
                    DescriptorOutcome::Overridden
                }
                (PlannedDescriptor::Limited { .. }, _) => DescriptorOutcome::Limited,
                (PlannedDescriptor::Unlimited(_), _) => DescriptorOutcome::Unlimited,
                (PlannedDescriptor::NoLimitApplies, None) => DescriptorOutcome::DomainNotConfigured,
                (PlannedDescriptor::NoLimitApplies, Some(trace)) => outcome_of(trace.end),
            };
            let replaced_limits = match rule {
                Some(rule) if !overridden => replaced_limits(rule, &replacing_rules),
                _ => Vec::new(),
            };
            let override_ignored = limit_override.is_some() && !overridden && trace.is_some();
            ExplainedDescriptor { outcome, trace, rule, limits, replaced_limits, override_ignored }
        });
        Self { descriptors: descriptors.collect(), shadow_mode: modes.shadow_mode }
    }

    /// Every limit that applies, in the order of the request's checks.
    pub fn limits(&self) -> impl Iterator<Item = &AppliedLimit<'r>> {
        self.descriptors.iter().flat_map(|descriptor| &descriptor.limits)
    }
}

/// The peeks that show whether an explained request would pass.
#[derive(Clone, Debug)]
pub struct PeekPlan {
    peeks: Group,
    /// By check, whether the request refunds hits there.
    is_refund: Vec<bool>,
    shadow_mode: bool,
}

impl PeekPlan {
    /// The peeks for an explained request.
    #[must_use]
    pub fn new(explanation: &Explanation<'_>) -> Self {
        let charges = explanation.limits().map(|limit| limit.check.charge);
        // By counter, the hits of earlier checks of the request, which would have been charged before.
        let mut charged: HashMap<&CounterKey, u64> = HashMap::new();
        let peeks = explanation.limits().map(|limit| {
            let before = charged.entry(&limit.check.key).or_default();
            let peek = peek(&limit.check, *before);
            *before = before.saturating_add(charged_hits(limit.check.charge));
            peek
        });
        Self {
            peeks: peeks.collect(),
            is_refund: charges.map(|charge| matches!(charge, Charge::Refund { .. })).collect(),
            shadow_mode: explanation.shadow_mode,
        }
    }

    /// The peeks to send to the store. None of them charges anything.
    #[must_use]
    pub fn peeks(&self) -> Group {
        Group::clone(&self.peeks)
    }

    /// Whether the request would pass, by the answers to [`peeks`](Self::peeks). `None` if that depends on an answer
    /// that is an error or missing.
    #[must_use]
    pub fn would_pass(&self, answers: &Answers) -> Option<bool> {
        if self.shadow_mode {
            return Some(true);
        }
        // Unanswered checks do not matter if the verdict is the same whether they are over their limits or not.
        let [refused_at_best, refused_at_worst] =
            [false, true].map(|unanswered_over| self.is_refused(answers, unanswered_over));
        (refused_at_best == refused_at_worst).then_some(!refused_at_best)
    }

    /// Whether the request is refused. `unanswered_over`: whether unanswered checks count as over their limits.
    fn is_refused(&self, answers: &Answers, unanswered_over: bool) -> bool {
        let mut tally = RefusalTally::default();
        let mut position = 0;
        for of_descriptor in self.peeks.chunk_by(|a, b| a.descriptor == b.descriptor) {
            let over = (position..position + of_descriptor.len()).any(|position| {
                let is_refund = self.is_refund.get(position).copied().unwrap_or_default();
                !is_refund
                    && match answers.get(position) {
                        Some(Ok(decision)) => !decision.allowed,
                        Some(Err(_)) | None => unanswered_over,
                    }
            });
            position += of_descriptor.len();
            tally.add(
                of_descriptor.first().map_or(RefusalScope::None, |check| check.refusal_scope),
                over,
            );
        }
        tally.refused()
    }
}

/// Traces the matching of a descriptor; `None` if the domain is not configured.
fn trace<'r>(plan: &Plan<'r>, descriptor: &Descriptor<'_>) -> Option<MatchTrace<'r>> {
    plan.domain.map(|domain| domain.trace(&descriptor.entries))
}

/// Hits that a check charges if it is allowed. A refund counts as zero, because the hits that it can refund depend on
/// usage, which is not known here.
const fn charged_hits(charge: Charge) -> u64 {
    match charge {
        Charge::IfAllowed(hits) | Charge::Always { hits, .. } => hits,
        Charge::Refund { .. } => 0,
    }
}

/// A check of the same counter that charges nothing. Allowed if the hits would pass after `before` others were charged.
fn peek(check: &Check, before: u64) -> Check {
    let needs = match check.charge {
        Charge::IfAllowed(hits) => hits,
        Charge::Always { needs, .. } => needs,
        Charge::Refund { .. } => 1,
    };
    let charge = match needs.max(1).saturating_add(before) {
        1 => Charge::IfAllowed(0),
        needs => Charge::Always { hits: 0, needs },
    };
    Check { charge, ..check.clone() }
}

fn rule_of<'r>(trace: &MatchTrace<'r>) -> Option<&'r Rule> {
    match trace.end {
        TraceEnd::Rule(rule) => Some(rule),
        _ => None,
    }
}

/// Why no limit applies to a descriptor.
const fn outcome_of(end: TraceEnd<'_>) -> DescriptorOutcome {
    match end {
        TraceEnd::NoEntries => DescriptorOutcome::NoEntries,
        TraceEnd::NoMatch => DescriptorOutcome::NoMatch,
        TraceEnd::TooDeep => DescriptorOutcome::TooDeep,
        TraceEnd::TooShallow => DescriptorOutcome::TooShallow,
        TraceEnd::NoLimit => DescriptorOutcome::NoLimit,
        TraceEnd::Rule(_) => DescriptorOutcome::Replaced,
    }
}

/// Counting of the rule, or of the domain if no rule matches.
fn counting(rule: Option<&Rule>, domain: Option<&Domain>) -> Counting {
    let of_domain = domain.map(|domain| domain.defaults.counting);
    rule.map(|rule| rule.counting).or(of_domain).unwrap_or_default()
}

/// Names of limits that rules of the request replace, each with that rule. A rule that an override replaces does not
/// replace others.
fn replacing_rules<'r>(
    descriptors: &[Descriptor<'_>],
    traces: &[Option<MatchTrace<'r>>],
) -> Vec<(&'r str, &'r Rule)> {
    let not_overridden = descriptors
        .iter()
        .zip(traces)
        .filter(|(descriptor, _)| descriptor.limit_override.is_none_or(|it| it.window().is_none()));
    let rules = not_overridden.filter_map(|(_, trace)| trace.as_ref().and_then(rule_of));
    rules.flat_map(|rule| replaced_names(rule).map(move |name| (name, rule))).collect()
}

/// Names of the limits that a rule replaces.
fn replaced_names(rule: &Rule) -> impl Iterator<Item = &str> {
    let (of_rule, limits) = match &rule.limits {
        RuleLimits::Unlimited { replaces, .. } => (Some(replaces), None),
        RuleLimits::Limited(limits) => (None, Some(limits)),
    };
    let of_limits = limits.into_iter().flatten().flat_map(|limit| limit.replaces.iter());
    of_rule.into_iter().flatten().chain(of_limits).map(AsRef::as_ref)
}

/// Limits of a rule that other rules of the request replace.
fn replaced_limits<'r>(
    rule: &'r Rule,
    replacing_rules: &[(&'r str, &'r Rule)],
) -> Vec<ReplacedLimit<'r>> {
    let names: Vec<Option<&str>> = match &rule.limits {
        RuleLimits::Unlimited { name, .. } => vec![name.as_deref()],
        RuleLimits::Limited(limits) => limits.iter().map(|limit| limit.name.as_deref()).collect(),
    };
    let by = |name| replacing_rules.iter().find(|(replaced, _)| *replaced == name);
    let found = names.into_iter().flatten().filter_map(|name| Some((name, by(name)?.1)));
    found.map(|(name, replaced_by)| ReplacedLimit { name, replaced_by }).collect()
}
