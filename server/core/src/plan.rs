//! Turns a request into the checks that decide it.

use smallvec::SmallVec;

use crate::{
    Algorithm, Check, Counting, CurrentLimit, Limit, OnFailure, Request, Rule, Take, Window,
    key::Identity,
    request::{Descriptor, Hits, LimitOverride},
    rule::{Limits, RuleLimit, Shown},
    rules::{Defaults, Domain, Match, Modes, RuleSet},
    store::{Group, Veto},
};

/// What each descriptor of a request met, and the checks that decide.
#[derive(Debug)]
pub struct Plan<'r> {
    /// The domain, if it is configured.
    pub domain: Option<&'r Domain>,
    /// In the order of the request.
    pub descriptors: SmallVec<[Planned<'r>; 4]>,
    /// Whether the whole request only simulates: whatever refuses it, it may pass.
    pub shadow_mode: bool,
    /// Whether a quota descriptor cannot be over, so that they cannot all be.
    pub has_quota_left: bool,
    /// Overrides without a usable unit or multiplier, which were ignored.
    pub overrides_ignored: u32,
}

/// What one descriptor met.
#[derive(Debug)]
pub enum Planned<'r> {
    /// No limit applies.
    Unmatched,
    /// A rule lets everything pass.
    Unlimited(&'r Rule),
    /// Limits apply: one check each.
    Limited {
        /// The rule that matched. An override can apply where none did.
        rule: Option<&'r Rule>,
        /// What is enforced, in the order of the checks.
        limits: SmallVec<[CurrentLimit<'r>; 2]>,
        /// What it does to the request if one of them is over, and the request does not only simulate.
        veto: Veto,
        /// Who is charged.
        counting: Counting,
        /// Whether the rule only simulates.
        shadow_mode: bool,
        /// Whether the request brought its own limit.
        overridden: bool,
    },
}

impl<'r> Planned<'r> {
    /// What is enforced, in the order of the checks.
    #[must_use]
    pub fn limits(&self) -> &[CurrentLimit<'r>] {
        match self {
            Self::Limited { limits, .. } => limits,
            Self::Unmatched | Self::Unlimited(_) => &[],
        }
    }

    /// Whether it is a quota descriptor that cannot be over.
    fn has_quota(&self, modes: Modes) -> bool {
        match self {
            Self::Unmatched => modes.quota_mode,
            Self::Limited { rule, veto: Veto::None, overridden, .. } => {
                modes.quota_mode || (!overridden && rule.is_some_and(|rule| rule.quota_mode))
            }
            Self::Limited { .. } | Self::Unlimited(_) => false,
        }
    }
}

impl<'r> Plan<'r> {
    /// Matches the request against the rules and plans one check for each limit that applies.
    #[must_use]
    pub fn new(rules: &'r RuleSet, request: &Request<'_>) -> (Self, Group) {
        let mut plan = Self {
            domain: None,
            descriptors: SmallVec::new(),
            shadow_mode: rules.modes.shadow_mode,
            has_quota_left: false,
            overrides_ignored: 0,
        };
        let Some(domain) = rules.domain(request.domain) else {
            plan.descriptors.extend(request.descriptors.iter().map(|_| Planned::Unmatched));
            return (plan, Group::default());
        };
        plan.domain = Some(domain);
        let matches: SmallVec<[Match<'r>; 4]> =
            request.descriptors.iter().map(|descriptor| domain.find(&descriptor.entries)).collect();
        let mut checks = Vec::new();
        let overrides: SmallVec<[_; 4]> =
            request.descriptors.iter().map(|descriptor| plan.usable(descriptor)).collect();
        let replaced = Replaced::collect(&matches, &overrides);
        for (position, descriptor) in request.descriptors.iter().enumerate() {
            let (Some(found), Some(limit_override)) =
                (matches.get(position), overrides.get(position))
            else {
                continue;
            };
            let quota_mode = rules.modes.quota_mode;
            let planner = Planner { domain, descriptor, position, found, quota_mode };
            let planned = match *limit_override {
                Some(numbers) => planner.overridden(numbers, &mut checks),
                None => planner.configured(&replaced, &mut checks),
            };
            plan.descriptors.push(planned);
        }
        plan.has_quota_left = plan.descriptors.iter().any(|it| it.has_quota(rules.modes));
        let spares = |veto| plan.shadow_mode || (plan.has_quota_left && veto == Veto::Quota);
        for check in checks.iter_mut().filter(|check| spares(check.veto)) {
            check.veto = Veto::None;
        }
        (plan, checks.into())
    }

    /// The window and numbers of the descriptor's override, if it has one that names a window.
    fn usable(&mut self, descriptor: &Descriptor<'_>) -> Option<Override> {
        let asked = descriptor.limit_override?;
        let usable = Override::new(asked);
        self.overrides_ignored += u32::from(usable.is_none());
        usable
    }
}

/// A limit from the wire whose window makes sense.
#[derive(Clone, Copy)]
struct Override {
    requests: u32,
    window: Window,
    shown: Shown,
}

impl Override {
    fn new(asked: LimitOverride) -> Option<Self> {
        let unit = asked.unit?;
        let unit_multiplier = asked.unit_multiplier.unwrap_or(1);
        let window = asked.window()?;
        let requests = asked.requests_per_unit;
        Some(Self {
            requests,
            window,
            shown: Shown { requests_per_unit: requests, unit, unit_multiplier },
        })
    }
}

/// Names of limits that do not apply to this request, because a rule it meets replaces them.
struct Replaced<'r>(SmallVec<[&'r str; 4]>);

impl<'r> Replaced<'r> {
    /// An overridden descriptor takes its rule's place, so that rule replaces nothing.
    fn collect(matches: &[Match<'r>], overrides: &[Option<Override>]) -> Self {
        let mut names = SmallVec::new();
        let met = matches.iter().zip(overrides).filter(|(_, overridden)| overridden.is_none());
        for rule in met.filter_map(|(found, _)| found.rule) {
            match &rule.limits {
                Limits::Unlimited { replaces, .. } => {
                    names.extend(replaces.iter().map(AsRef::as_ref));
                }
                Limits::Each(limits) => {
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

/// How a rule counts, and what happens where it cannot.
#[derive(Clone, Copy)]
struct Manner {
    counting: Counting,
    on_failure: OnFailure,
}

/// Plans one descriptor.
struct Planner<'p, 'q, 'r> {
    domain: &'r Domain,
    descriptor: &'p Descriptor<'q>,
    position: usize,
    found: &'p Match<'r>,
    /// Whether every rule is a quota rule.
    quota_mode: bool,
}

impl<'r> Planner<'_, '_, 'r> {
    fn configured(&self, replaced: &Replaced<'_>, checks: &mut Vec<Check>) -> Planned<'r> {
        let Some(rule) = self.found.rule else { return Planned::Unmatched };
        let limits = match &rule.limits {
            Limits::Unlimited { name, .. } if replaced.contains(name.as_deref()) => {
                return Planned::Unmatched;
            }
            Limits::Unlimited { .. } => return Planned::Unlimited(rule),
            Limits::Each(limits) => limits,
        };
        let applied = limits.iter().filter(|limit| !replaced.contains(limit.name.as_deref()));
        let applied: SmallVec<[&'r RuleLimit; 2]> = applied.collect();
        if applied.is_empty() {
            return Planned::Unmatched;
        }
        let veto = match rule {
            Rule { shadow_mode: true, .. } => Veto::None,
            Rule { quota_mode: true, .. } => Veto::Quota,
            _ => self.veto(),
        };
        let manner = Manner { counting: rule.counting, on_failure: rule.on_failure };
        let veto = self.check(checks, applied.iter().map(|limit| limit.limit), manner, veto);
        let current = |limit: &&'r RuleLimit| CurrentLimit {
            shown: limit.shown,
            name: limit.name.as_deref(),
        };
        Planned::Limited {
            rule: Some(rule),
            limits: applied.iter().map(current).collect(),
            veto,
            counting: rule.counting,
            shadow_mode: rule.shadow_mode,
            overridden: false,
        }
    }

    /// An override takes the place of all limits of the rule that matched, and keeps its algorithm and
    /// manner.
    fn overridden(&self, numbers: Override, checks: &mut Vec<Check>) -> Planned<'r> {
        let (algorithm, manner) = self.inherited();
        let limit = Limit::overridden(algorithm, numbers.requests, numbers.window);
        let veto = self.check(checks, [limit].into_iter(), manner, self.veto());
        Planned::Limited {
            rule: self.found.rule,
            limits: SmallVec::from_iter([CurrentLimit { shown: numbers.shown, name: None }]),
            veto,
            counting: manner.counting,
            shadow_mode: false,
            overridden: true,
        }
    }

    /// What a refusal does where no rule says.
    const fn veto(&self) -> Veto {
        if self.quota_mode { Veto::Quota } else { Veto::Alone }
    }

    fn inherited(&self) -> (Algorithm, Manner) {
        let Defaults { algorithm, counting, on_failure } = self.domain.defaults;
        let Some(rule) = self.found.rule else {
            return (algorithm, Manner { counting, on_failure });
        };
        let first = match &rule.limits {
            Limits::Each(limits) => limits.first().map(|limit| limit.limit.algorithm()),
            Limits::Unlimited { .. } => None,
        };
        let manner = Manner { counting: rule.counting, on_failure: rule.on_failure };
        (first.unwrap_or(algorithm), manner)
    }

    /// Adds a check for each limit. Returns what a refusal does to the request.
    fn check(
        &self,
        checks: &mut Vec<Check>,
        limits: impl Iterator<Item = Limit>,
        manner: Manner,
        veto: Veto,
    ) -> Veto {
        let identity = Identity::new(
            &self.domain.name,
            self.domain.tenant.as_deref(),
            &self.descriptor.entries,
            &self.found.shared,
        );
        let (take, veto) = match (self.descriptor.hits, manner.counting) {
            (Hits::Add(hits), Counting::Free) => (Take::Exactly(hits), veto),
            (Hits::Add(hits), Counting::Debit) => (Take::Always { hits, needs: 1 }, veto),
            (Hits::Add(hits), Counting::Upstream) => (Take::Always { hits, needs: hits }, veto),
            (Hits::GiveBack(hits), _) => (Take::GiveBack { hits, receipt: None }, Veto::None),
        };
        checks.extend(limits.map(|limit| Check {
            key: identity.counter(&limit),
            limit,
            take,
            descriptor: self.position,
            veto,
            on_failure: manner.on_failure,
        }));
        veto
    }
}
