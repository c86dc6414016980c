//! Limits as configured, compiled and ready to match.

use std::fmt;

use crate::{
    Limit, Window,
    limit::Unit,
    metadata,
    rules::{Place, StatsKey},
};

/// Who is charged, and when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Counting {
    /// Refusals are free: a request that any enforced rule refuses is charged nowhere.
    #[default]
    Free,
    /// For costs known afterwards: hits are charged in full even past the limit, and the answer is
    /// whether anything was left before.
    Debit,
    /// As envoyproxy/ratelimit counts: each descriptor for itself, refused hits included.
    Upstream,
}

impl Counting {
    /// Every way of counting.
    pub const ALL: [Self; 3] = [Self::Free, Self::Debit, Self::Upstream];

    /// The name in limits files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Debit => "debit",
            Self::Upstream => "upstream",
        }
    }
}

/// What answers where the store cannot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnFailure {
    /// The hits pass, uncounted.
    Allow,
    /// The hits are refused.
    Deny,
    /// This process counts by itself, against its share of the limit.
    #[default]
    Local,
    /// The caller's own failure mode decides: the request is answered with an error.
    Defer,
}

impl OnFailure {
    /// Every policy.
    pub const ALL: [Self; 4] = [Self::Allow, Self::Deny, Self::Local, Self::Defer];

    /// The name in limits files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Local => "local",
            Self::Defer => "defer",
        }
    }
}

/// What stands at one node of a domain's tree.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// The path of keys and configured values that leads here, as metrics and `/rlconfig` show it.
    pub path: Box<str>,
    /// Where it stands in the limits files.
    pub place: Place,
    /// Position among all rules of the rule set, from 0.
    pub id: usize,
    /// What is enforced. Empty where everything may pass.
    pub limits: Limits,
    /// Who is charged.
    pub counting: Counting,
    /// What answers where the store cannot.
    pub on_failure: OnFailure,
    /// Whether the rule only simulates.
    pub shadow_mode: bool,
    /// Whether the request is refused only if every quota rule of it is over.
    pub quota_mode: bool,
    /// Whether metrics carry the values of the request at every level.
    pub detailed_metric: bool,
    /// Whether metrics carry the value of the request at this level.
    pub value_to_metric: bool,
    /// What metrics call it.
    pub stats_key: StatsKey,
    /// What callers are told about a request that the rule lets pass.
    pub metadata: Option<metadata::Map>,
}

/// What a rule enforces.
#[derive(Clone, Debug, PartialEq)]
pub enum Limits {
    /// Everything passes, and is not counted.
    Unlimited {
        /// The name that `replaces` can refer to.
        name: Option<Box<str>>,
        /// Names of the limits that do not apply to a request that meets this rule.
        replaces: Box<[Box<str>]>,
    },
    /// Every one of these, decided together. Never empty.
    Each(Box<[RuleLimit]>),
}

impl Limits {
    /// Whether others do not apply to a request that meets these.
    pub(crate) fn replace(&self) -> bool {
        match self {
            Self::Unlimited { replaces, .. } => !replaces.is_empty(),
            Self::Each(limits) => limits.iter().any(|limit| !limit.replaces.is_empty()),
        }
    }
}

/// One of a rule's limits.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleLimit {
    /// What is counted.
    pub limit: Limit,
    /// How the limit is shown to callers.
    pub shown: Shown,
    /// The name that `replaces` can refer to and that callers see.
    pub name: Option<Box<str>>,
    /// Names of the limits that do not apply to a request that meets this one.
    pub replaces: Box<[Box<str>]>,
}

/// A limit in the words of the API: requests per so many units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Hits per window.
    pub requests_per_unit: u32,
    /// The unit of the window.
    pub unit: Unit,
    /// Units per window.
    pub unit_multiplier: u32,
}

impl Shown {
    /// A limit of `requests` per `window`, in the longest unit that divides it.
    #[must_use]
    pub fn in_units(requests: u32, window: Window) -> Self {
        let (unit, unit_multiplier) = window.in_units();
        Self { requests_per_unit: requests, unit, unit_multiplier }
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requests_per_unit, unit, unit_multiplier } = self;
        match unit_multiplier {
            1 => write!(f, "{requests_per_unit} per {}", unit.name()),
            _ => write!(f, "{requests_per_unit} per {unit_multiplier} {}s", unit.name()),
        }
    }
}
