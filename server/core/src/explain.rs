//! Tells why a request meets the limits that it meets, and how to ask for their counters without counting.
//!
//! What applies is taken from the [`Plan`] that decides such a request; only the reasons are found out here.

use std::collections::HashMap;

use crate::{
    Answers, Check, CounterKey, Counting, Plan, Request, Rule, Take,
    plan::Planned,
    request::Descriptor,
    rule::{Limits, Shown},
    rules::{Domain, RuleSet, Walk, WalkEnd},
    settle::Tally,
    store::{Group, Veto},
};

/// Why a request meets the limits that it meets.
#[derive(Debug)]
pub struct Explanation<'r> {
    /// One for each descriptor, in order.
    pub descriptors: Vec<Explained<'r>>,
    /// Whether every request may pass, because all rules only simulate.
    shadow_mode: bool,
}

/// Why one descriptor meets its limits.
#[derive(Debug)]
pub struct Explained<'r> {
    /// What came out.
    pub outcome: Outcome,
    /// The way through the tree of rules; `None` where the domain has none to go through.
    pub walk: Option<Walk<'r>>,
    /// The rule at the node of the last entry.
    pub rule: Option<&'r Rule>,
    /// Limits that apply.
    pub limits: Vec<Applied<'r>>,
    /// Limits of the rule that do not apply, because a rule of the same request replaces them.
    pub replaced: Vec<Replaced<'r>>,
    /// Whether the descriptor brings a limit along that names no window.
    pub override_ignored: bool,
}

/// How a descriptor fared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Limits of the rule apply.
    Limited,
    /// The limit that the request brings along applies.
    Overridden,
    /// The rule lets everything pass.
    Unlimited,
    /// All that the rule has is replaced by other rules of the request.
    Replaced,
    /// The domain is not configured.
    DomainNotConfigured,
    /// There are no entries.
    NoEntries,
    /// No node of the last level takes the entry.
    NoNode,
    /// Entries are left where the tree ends.
    TooDeep,
    /// The last entry's node has no limit, only nodes below.
    TooShallow,
    /// The last entry's node has neither limit nor nodes below.
    NoLimit,
}

/// A limit that applies.
#[derive(Clone, Debug)]
pub struct Applied<'r> {
    /// The numbers, as configured.
    pub shown: Shown,
    /// The name, if it has one.
    pub name: Option<&'r str>,
    /// Who is charged.
    pub counting: Counting,
    /// Whether the rule only simulates.
    pub shadow_mode: bool,
    /// Whether it refuses only together with every other quota rule of the request.
    pub quota_mode: bool,
    /// The check that would decide, as a request would ask it.
    pub check: Check,
}

/// A limit that does not apply.
#[derive(Clone, Copy, Debug)]
pub struct Replaced<'r> {
    /// Its name.
    pub name: &'r str,
    /// The rule that replaces it.
    pub by: &'r Rule,
}

impl<'r> Explanation<'r> {
    /// Explains a request.
    #[must_use]
    pub fn new(rules: &'r RuleSet, request: &Request<'_>) -> Self {
        let (plan, group) = Plan::new(rules, request);
        let walks = request.descriptors.iter().map(|descriptor| walk(&plan, descriptor)).collect();
        Self::of(rules, request, &plan, &group, walks)
    }

    /// Explains a request while somebody waits for it, which is asked before each descriptor. `None` once nobody
    /// does.
    #[must_use]
    pub fn while_wanted(
        rules: &'r RuleSet,
        request: &Request<'_>,
        wanted: impl Fn() -> bool,
    ) -> Option<Self> {
        let (plan, group) = Plan::new(rules, request);
        let descriptors = request.descriptors.iter();
        let walks = descriptors.map(|descriptor| wanted().then(|| walk(&plan, descriptor)));
        let walks = walks.collect::<Option<Vec<_>>>()?;
        Some(Self::of(rules, request, &plan, &group, walks))
    }

    fn of(
        rules: &RuleSet,
        request: &Request<'_>,
        plan: &Plan<'r>,
        group: &Group,
        walks: Vec<Option<Walk<'r>>>,
    ) -> Self {
        let replacers = replacers(&request.descriptors, &walks);
        let mut checks = group.iter();
        let modes = rules.modes;
        let descriptors = request.descriptors.iter().zip(walks).zip(&plan.descriptors);
        let descriptors = descriptors.map(|((descriptor, walk), planned)| {
            let asked = descriptor.limit_override;
            let overridden = asked.is_some_and(|asked| asked.window().is_some());
            let rule = walk.as_ref().and_then(rule_of);
            let limits = match planned {
                Planned::Limited { limits, shadow_mode, .. } => limits
                    .iter()
                    .zip(checks.by_ref())
                    .map(|(limit, check)| Applied {
                        shown: limit.shown,
                        name: limit.name,
                        counting: counting(rule, plan.domain),
                        shadow_mode: *shadow_mode || modes.shadow_mode,
                        quota_mode: check.veto == Veto::Quota
                            || (!overridden && rule.is_some_and(|rule| rule.quota_mode))
                            || modes.quota_mode,
                        check: check.clone(),
                    })
                    .collect(),
                Planned::Unmatched | Planned::Unlimited(_) => Vec::new(),
            };
            let outcome = match (planned, &walk) {
                (Planned::Limited { .. }, _) if overridden => Outcome::Overridden,
                (Planned::Limited { .. }, _) => Outcome::Limited,
                (Planned::Unlimited(_), _) => Outcome::Unlimited,
                (Planned::Unmatched, None) => Outcome::DomainNotConfigured,
                (Planned::Unmatched, Some(walk)) => ended(walk.end),
            };
            let replaced = match rule {
                Some(rule) if !overridden => replaced(rule, &replacers),
                _ => Vec::new(),
            };
            let override_ignored = asked.is_some() && !overridden && walk.is_some();
            Explained { outcome, walk, rule, limits, replaced, override_ignored }
        });
        Self { descriptors: descriptors.collect(), shadow_mode: modes.shadow_mode }
    }

    /// Every limit that applies, in the order of the checks that decide.
    pub fn limits(&self) -> impl Iterator<Item = &Applied<'r>> {
        self.descriptors.iter().flat_map(|descriptor| &descriptor.limits)
    }
}

/// What decides about a request, without what it is explained by.
#[derive(Clone, Debug)]
pub struct Question {
    peeks: Group,
    gives_back: Vec<bool>,
    shadow_mode: bool,
}

impl Question {
    /// What to ask a store about an explained request.
    #[must_use]
    pub fn new(explanation: &Explanation<'_>) -> Self {
        let takes = explanation.limits().map(|limit| limit.check.take);
        // What checks before have taken from the same counter is gone when the next one is decided.
        let mut taken: HashMap<&CounterKey, u64> = HashMap::new();
        let peeks = explanation.limits().map(|limit| {
            let before = taken.entry(&limit.check.key).or_default();
            let peek = peek(&limit.check, *before);
            *before = before.saturating_add(charged(limit.check.take));
            peek
        });
        Self {
            peeks: peeks.collect(),
            gives_back: takes.map(|take| matches!(take, Take::GiveBack { .. })).collect(),
            shadow_mode: explanation.shadow_mode,
        }
    }

    /// The checks, none of which charges anything.
    #[must_use]
    pub fn peeks(&self) -> Group {
        Group::clone(&self.peeks)
    }

    /// Whether the request would pass, by the answers to [`peeks`](Self::peeks). `None` where that depends on an
    /// answer that is an error, or not there.
    #[must_use]
    pub fn would_pass(&self, answers: &Answers) -> Option<bool> {
        if self.shadow_mode {
            return Some(true);
        }
        // Unknown checks decide nothing if the request fares alike whether they are over or not.
        let refused = |unknown_over| self.refused(answers, unknown_over);
        let (best, worst) = (refused(false), refused(true));
        (best == worst).then_some(!best)
    }

    fn refused(&self, answers: &Answers, unknown_over: bool) -> bool {
        let mut tally = Tally::default();
        let mut position = 0;
        for of_descriptor in self.peeks.chunk_by(|a, b| a.descriptor == b.descriptor) {
            let over = (position..position + of_descriptor.len()).any(|position| {
                let gives_back = self.gives_back.get(position).copied().unwrap_or_default();
                !gives_back
                    && match answers.get(position) {
                        Some(Ok(decision)) => !decision.allowed,
                        Some(Err(_)) | None => unknown_over,
                    }
            });
            position += of_descriptor.len();
            tally.add(of_descriptor.first().map_or(Veto::None, |check| check.veto), over);
        }
        tally.refused()
    }
}

/// The way of a descriptor, in a domain that has rules to go through.
fn walk<'r>(plan: &Plan<'r>, descriptor: &Descriptor<'_>) -> Option<Walk<'r>> {
    plan.domain.map(|domain| domain.walk(&descriptor.entries))
}

/// What a take leaves charged if it is allowed. What gives hits back frees no more than was used, which is not
/// known here, so it counts as nothing.
const fn charged(take: Take) -> u64 {
    match take {
        Take::Exactly(hits) | Take::UpTo(hits) | Take::Always { hits, .. } => hits,
        Take::GiveBack { .. } => 0,
    }
}

/// The same question, as one that charges nothing: would these hits pass after those that were taken before?
fn peek(check: &Check, before: u64) -> Check {
    let needs = match check.take {
        Take::Exactly(hits) => hits,
        Take::Always { needs, .. } => needs,
        Take::UpTo(_) | Take::GiveBack { .. } => 1,
    };
    let take = match needs.max(1).saturating_add(before) {
        1 => Take::Exactly(0),
        needs => Take::Always { hits: 0, needs },
    };
    Check { take, ..check.clone() }
}

fn rule_of<'r>(walk: &Walk<'r>) -> Option<&'r Rule> {
    match walk.end {
        WalkEnd::Rule(rule) => Some(rule),
        _ => None,
    }
}

/// Why a descriptor that no limit applies to has none.
const fn ended(end: WalkEnd<'_>) -> Outcome {
    match end {
        WalkEnd::NoEntries => Outcome::NoEntries,
        WalkEnd::NoNode => Outcome::NoNode,
        WalkEnd::TooDeep => Outcome::TooDeep,
        WalkEnd::TooShallow => Outcome::TooShallow,
        WalkEnd::NoLimit => Outcome::NoLimit,
        WalkEnd::Rule(_) => Outcome::Replaced,
    }
}

/// As the rule counts; without one, as the domain does.
fn counting(rule: Option<&Rule>, domain: Option<&Domain>) -> Counting {
    let of_domain = domain.map(|domain| domain.defaults.counting);
    rule.map(|rule| rule.counting).or(of_domain).unwrap_or_default()
}

/// Which rules of a request replace which names. A rule whose limits the request overrides replaces nothing.
fn replacers<'r>(
    descriptors: &[Descriptor<'_>],
    walks: &[Option<Walk<'r>>],
) -> Vec<(&'r str, &'r Rule)> {
    let met = descriptors.iter().zip(walks).filter(|(descriptor, _)| {
        descriptor.limit_override.is_none_or(|asked| asked.window().is_none())
    });
    let rules = met.filter_map(|(_, walk)| walk.as_ref().and_then(rule_of));
    rules.flat_map(|rule| replaces(rule).map(move |name| (name, rule))).collect()
}

fn replaces(rule: &Rule) -> impl Iterator<Item = &str> {
    let (one, several) = match &rule.limits {
        Limits::Unlimited { replaces, .. } => (Some(replaces), None),
        Limits::Each(limits) => (None, Some(limits)),
    };
    let several = several.into_iter().flatten().flat_map(|limit| limit.replaces.iter());
    one.into_iter().flatten().chain(several).map(AsRef::as_ref)
}

/// What of a rule is replaced, and by which rule.
fn replaced<'r>(rule: &'r Rule, replacers: &[(&'r str, &'r Rule)]) -> Vec<Replaced<'r>> {
    let names: Vec<Option<&str>> = match &rule.limits {
        Limits::Unlimited { name, .. } => vec![name.as_deref()],
        Limits::Each(limits) => limits.iter().map(|limit| limit.name.as_deref()).collect(),
    };
    let by = |name| replacers.iter().find(|(replaced, _)| *replaced == name);
    let found = names.into_iter().flatten().filter_map(|name| Some((name, by(name)?.1)));
    found.map(|(name, by)| Replaced { name, by }).collect()
}
