//! Compiled rules and their limits.

use std::{fmt, sync::Arc};

use crate::{
    Counting, Limit, OnFailure, Window,
    limit::Unit,
    metadata,
    response_body::ResponseBody,
    rules::{SourceLocation, StatsKey},
};

/// A compiled rule: the limits of one node of a domain's tree, with its modes.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// The path of keys and configured values, as in metrics and `/rlconfig`.
    pub path: Box<str>,
    /// Location of the node in the limits files.
    pub location: SourceLocation,
    /// Position among all rules of the rule set, from 0: identifies the rule within the rule set.
    pub id: usize,
    /// The limits.
    pub limits: RuleLimits,
    /// How hits are charged.
    pub counting: Counting,
    /// The failure policy.
    pub on_failure: OnFailure,
    /// Whether the rule is in shadow mode.
    pub shadow_mode: bool,
    /// Whether the rule is in quota mode: the request is refused only if all its quota rules are over their limits.
    pub quota_mode: bool,
    /// Whether the rule's name in metrics has the values of the request at all levels.
    pub detailed_metric: bool,
    /// Whether the names in metrics of this rule and of the rules below it have the request's value of this entry.
    pub value_to_metric: bool,
    /// Its name in metrics.
    pub stats_key: StatsKey,
    /// Metadata in the responses to requests that the rule allows.
    pub metadata: Option<metadata::Map>,
    /// Body of responses to requests that the rule refuses.
    pub response_body: Option<Arc<ResponseBody>>,
}

/// The limits of a rule.
#[derive(Clone, Debug, PartialEq)]
pub enum RuleLimits {
    /// All hits pass without counting.
    Unlimited {
        /// The name that `replaces` can refer to.
        name: Option<Box<str>>,
        /// Names of the limits that do not apply to a request if this rule does.
        replaces: Box<[Box<str>]>,
    },
    /// Limits that are decided together. Never empty.
    Limited(Box<[RuleLimit]>),
}

impl RuleLimits {
    /// Whether any of these limits replaces others of the request.
    pub(crate) fn replaces_others(&self) -> bool {
        match self {
            Self::Unlimited { replaces, .. } => !replaces.is_empty(),
            Self::Limited(limits) => limits.iter().any(|limit| !limit.replaces.is_empty()),
        }
    }
}

/// One of a rule's limits.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleLimit {
    /// The limit.
    pub limit: Limit,
    /// The rate as configured, for responses and explanations.
    pub displayed: DisplayedRate,
    /// The name that `replaces` can refer to and that responses contain.
    pub name: Option<Box<str>>,
    /// Names of the limits that do not apply to a request if this one does.
    pub replaces: Box<[Box<str>]>,
}

/// The rate of a limit as the API expresses it: requests per number of units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DisplayedRate {
    /// Hits per window.
    pub requests_per_unit: u32,
    /// The unit of the window.
    pub unit: Unit,
    /// Units per window.
    pub unit_multiplier: u32,
}

/// A limit as responses show it: `current_limit` in Envoy's API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CurrentLimit<'r> {
    /// The rate, as configured.
    pub displayed: DisplayedRate,
    /// The name, if it has one.
    pub name: Option<&'r str>,
}

impl DisplayedRate {
    /// The rate of `requests` per `window`, in the longest unit that divides the window.
    #[must_use]
    pub fn in_units(requests: u32, window: Window) -> Self {
        let (unit, unit_multiplier) = window.in_units();
        Self { requests_per_unit: requests, unit, unit_multiplier }
    }
}

impl fmt::Display for DisplayedRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requests_per_unit, unit, unit_multiplier } = self;
        match unit_multiplier {
            1 => write!(f, "{requests_per_unit} per {}", unit.name()),
            _ => write!(f, "{requests_per_unit} per {unit_multiplier} {}s", unit.name()),
        }
    }
}
