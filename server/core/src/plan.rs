//! Turns a request into the checks that decide it.

use smallvec::SmallVec;

use crate::{
    Algorithm, Check, Counting, CurrentLimit, Limit, OnFailure, Request, Rule, Take,
    key::Identity,
    request::{Descriptor, Hits, LimitOverride},
    rule::{Limits, Shown},
    rules::{Defaults, Domain, Match, Modes, RuleSet, Search},
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
    /// Whether matching took more than [`SEARCHED_MAX`](crate::rules::SEARCHED_MAX). If so, the request must be denied,
    /// because it may meet other rules than those that were found.
    pub is_too_costly: bool,
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
        let plan = Self {
            domain: rules.domain(request.domain),
            descriptors: SmallVec::new(),
            shadow_mode: rules.modes.shadow_mode,
            has_quota_left: false,
            overrides_ignored: 0,
            is_too_costly: false,
        };
        // Both are made where they are returned: a plan is large.
        let mut made = (plan, Group::default());
        let (plan, group) = &mut made;
        let Some(domain) = plan.domain else {
            plan.descriptors.extend(request.descriptors.iter().map(|_| Planned::Unmatched));
            return made;
        };
        let mut met = SmallVec::<[Met<'_, '_, 'r>; 4]>::new();
        let mut search = Search::new();
        for descriptor in &request.descriptors {
            met.push(plan.meet(domain, descriptor, &mut search));
        }
        plan.is_too_costly = search.is_exceeded();
        let replaced = if domain.replaces { Replaced::collect(&met) } else { Replaced::default() };
        let mut asked = SmallVec::<[Asked<'_, '_, '_>; 4]>::new();
        for (position, met) in met.iter().enumerate() {
            let planner = Planner { position, met, quota_mode: rules.modes.quota_mode };
            plan.descriptors.push(planner.planned(&replaced, &mut asked));
        }
        plan.has_quota_left = plan.descriptors.iter().any(|it| it.has_quota(rules.modes));
        let spares = |veto| plan.shadow_mode || (plan.has_quota_left && veto == Veto::Quota);
        for asked in asked.iter_mut().filter(|asked| spares(asked.veto)) {
            asked.veto = Veto::None;
        }
        if !asked.is_empty() {
            let mut identity = Identity::empty();
            let mut identified = None;
            // From a mapped slice the group is allocated once, and each check made in its place.
            *group = asked
                .iter()
                .map(|asked| {
                    if identified.replace(asked.position) != Some(asked.position) {
                        let tenant = domain.tenant.as_deref();
                        let Met { descriptor, shared, .. } = asked.met;
                        identity.set(&domain.name, tenant, &descriptor.entries, shared);
                    }
                    asked.check(&mut identity)
                })
                .collect();
        }
        made
    }

    /// What a descriptor meets. Notes an override that names no window.
    fn meet<'p, 'q>(
        &mut self,
        domain: &'r Domain,
        descriptor: &'p Descriptor<'q>,
        search: &mut Search<'q, 'r>,
    ) -> Met<'p, 'q, 'r> {
        let Match { rule, shared } = domain.find_in(&descriptor.entries, search);
        let overridden = descriptor.limit_override.and_then(|asked| {
            let usable = Override::new(asked, inherited(domain, rule));
            self.overrides_ignored += u32::from(usable.is_none());
            usable
        });
        let Defaults { counting, on_failure, .. } = domain.defaults;
        let manner = rule.map_or(Manner { counting, on_failure }, |rule| Manner {
            counting: rule.counting,
            on_failure: rule.on_failure,
        });
        Met { descriptor, rule, shared, manner, overridden }
    }
}

/// The algorithm of an override: that of the limit whose place it takes.
fn inherited(domain: &Domain, rule: Option<&Rule>) -> Algorithm {
    let first = rule.and_then(|rule| match &rule.limits {
        Limits::Each(limits) => limits.first(),
        Limits::Unlimited { .. } => None,
    });
    first.map_or(domain.defaults.algorithm, |first| first.limit.algorithm())
}

/// A limit from the wire whose window makes sense.
struct Override {
    limit: Limit,
    shown: Shown,
}

impl Override {
    fn new(asked: LimitOverride, algorithm: Algorithm) -> Option<Self> {
        let unit = asked.unit?;
        let unit_multiplier = asked.unit_multiplier.unwrap_or(1);
        let requests = asked.requests_per_unit;
        Some(Self {
            limit: Limit::overridden(algorithm, requests, asked.window()?),
            shown: Shown { requests_per_unit: requests, unit, unit_multiplier },
        })
    }
}

/// How a rule counts, and what happens where it cannot.
#[derive(Clone, Copy)]
struct Manner {
    counting: Counting,
    on_failure: OnFailure,
}

/// What one descriptor goes by.
struct Met<'p, 'q, 'r> {
    descriptor: &'p Descriptor<'q>,
    rule: Option<&'r Rule>,
    /// The patterns that its counter is named by, as in [`Match`].
    shared: Vec<Option<&'r [u8]>>,
    manner: Manner,
    /// The limit that the descriptor brings along, which takes the place of all of the rule's.
    overridden: Option<Override>,
}

/// Names of limits that do not apply to this request, because a rule it meets replaces them.
#[derive(Default)]
struct Replaced<'r>(SmallVec<[&'r str; 4]>);

impl<'r> Replaced<'r> {
    /// An overridden descriptor takes its rule's place, so that rule replaces nothing.
    fn collect(met: &[Met<'_, '_, 'r>]) -> Self {
        let mut names = SmallVec::new();
        let configured = met.iter().filter(|met| met.overridden.is_none());
        for rule in configured.filter_map(|met| met.rule) {
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

/// A check whose counter has no name yet.
struct Asked<'p, 'q, 'r> {
    limit: &'p Limit,
    met: &'p Met<'p, 'q, 'r>,
    /// Of the descriptor.
    position: usize,
    veto: Veto,
}

impl Asked<'_, '_, '_> {
    fn check(&self, identity: &mut Identity<'_>) -> Check {
        let Manner { counting, on_failure } = self.met.manner;
        let take = match (self.met.descriptor.hits, counting) {
            (Hits::Add(hits), Counting::Free) => Take::Exactly(hits),
            (Hits::Add(hits), Counting::Debit) => Take::Always { hits, needs: 1 },
            (Hits::Add(hits), Counting::Upstream) => Take::Always { hits, needs: hits },
            (Hits::GiveBack(hits), _) => Take::GiveBack { hits, receipt: None },
        };
        Check {
            key: identity.counter(self.limit),
            limit: *self.limit,
            take,
            descriptor: self.position,
            veto: self.veto,
            on_failure,
        }
    }
}

/// Plans one descriptor.
struct Planner<'p, 'q, 'r> {
    position: usize,
    met: &'p Met<'p, 'q, 'r>,
    /// Whether every rule is a quota rule.
    quota_mode: bool,
}

impl<'p, 'q, 'r: 'p> Planner<'p, 'q, 'r> {
    /// What the descriptor met. Adds a check for each limit.
    fn planned(
        &self,
        replaced: &Replaced<'_>,
        asked: &mut SmallVec<[Asked<'p, 'q, 'r>; 4]>,
    ) -> Planned<'r> {
        let &Met { rule, manner: Manner { counting, .. }, .. } = self.met;
        let veto = self.veto();
        let mut limits = SmallVec::new();
        let mut ask = |limit, current| {
            asked.push(Asked { limit, met: self.met, position: self.position, veto });
            limits.push(current);
        };
        // An override takes the place of all limits of the rule that matched, and keeps its algorithm
        // and manner.
        if let Some(Override { limit, shown }) = &self.met.overridden {
            ask(limit, CurrentLimit { shown: *shown, name: None });
            let (shadow_mode, overridden) = (false, true);
            return Planned::Limited { rule, limits, veto, counting, shadow_mode, overridden };
        }
        let Some(rule) = rule else { return Planned::Unmatched };
        let each = match &rule.limits {
            Limits::Unlimited { name, .. } if replaced.contains(name.as_deref()) => {
                return Planned::Unmatched;
            }
            Limits::Unlimited { .. } => return Planned::Unlimited(rule),
            Limits::Each(each) => each,
        };
        for limit in each.iter().filter(|limit| !replaced.contains(limit.name.as_deref())) {
            let name = limit.name.as_deref();
            ask(&limit.limit, CurrentLimit { shown: limit.shown, name });
        }
        if limits.is_empty() {
            return Planned::Unmatched;
        }
        let (rule, shadow_mode, overridden) = (Some(rule), rule.shadow_mode, false);
        Planned::Limited { rule, limits, veto, counting, shadow_mode, overridden }
    }

    /// What a refusal does to the request. An override is under none of the modes of the rule whose place it
    /// takes.
    fn veto(&self) -> Veto {
        let rule = self.met.rule.filter(|_| self.met.overridden.is_none());
        match (self.met.descriptor.hits, rule) {
            (Hits::GiveBack(_), _) | (_, Some(Rule { shadow_mode: true, .. })) => Veto::None,
            (_, Some(Rule { quota_mode: true, .. })) => Veto::Quota,
            _ if self.quota_mode => Veto::Quota,
            _ => Veto::Alone,
        }
    }
}
