//! The limits of each request, found by the server's matcher.

use sluicegate_client::{Limit, Unit};
use sluicegate_core::{
    Algorithm, Counting, CurrentLimit, Plan, Request, RequestError,
    plan::PlannedDescriptor,
    request::{Descriptor, Entry, Hits},
    rules::RuleSet,
    store::{Check, RefusalScope},
};
use sluicegate_proto::text::descriptor::Entries;

use super::{VerificationState, Verifier, counter::Counter};
use crate::load::template::DrawnNumbers;

/// The limits of all requests with the same draw.
pub(super) struct PlannedRequest {
    pub(super) descriptors: Vec<MatchedDescriptor>,
    /// Whether there is only one limit, so that no other limit causes a refund.
    pub(super) has_one_limit: bool,
}

/// The limits of one descriptor.
pub(super) struct MatchedDescriptor {
    /// The limits that are verified.
    pub(super) limits: Vec<AppliedLimit>,
    /// Whether all limits are verified.
    pub(super) is_verified: bool,
    /// The row, if no limit is verified.
    pub(super) row: usize,
    pub(super) counting: Counting,
    /// What a refusal applies to.
    pub(super) scope: RefusalScope,
}

/// One limit of a descriptor.
pub(super) struct AppliedLimit {
    pub(super) counter: usize,
    pub(super) row: usize,
    pub(super) requests_per_unit: u32,
    shown: ShownLimit,
}

/// Name and window of a limit, as answers show them. Without `requests_per_unit`, which may differ on the server.
#[derive(PartialEq, Eq)]
struct ShownLimit {
    name: String,
    unit: Option<&'static str>,
    unit_multiplier: u32,
}

impl From<&CurrentLimit<'_>> for ShownLimit {
    fn from(limit: &CurrentLimit<'_>) -> Self {
        let shown = limit.displayed;
        Self {
            name: limit.name.unwrap_or_default().to_owned(),
            unit: Some(shown.unit.name()),
            unit_multiplier: shown.unit_multiplier,
        }
    }
}

impl From<&Limit> for ShownLimit {
    fn from(limit: &Limit) -> Self {
        Self {
            name: limit.name.clone(),
            unit: limit.unit.map(Unit::name),
            unit_multiplier: limit.unit_multiplier,
        }
    }
}

impl PlannedRequest {
    /// Whether these descriptors over their limits refuse the request: any rule, or all quota rules.
    pub(super) fn should_refuse(&self, over: impl Fn(usize) -> bool) -> bool {
        let of = |scope: RefusalScope| {
            let each = self.descriptors.iter().enumerate().filter(move |(_, it)| it.scope == scope);
            each.map(|(at, _)| over(at))
        };
        of(RefusalScope::Request).any(|over| over)
            || (of(RefusalScope::Quota).count() > 0 && of(RefusalScope::Quota).all(|over| over))
    }
}

impl MatchedDescriptor {
    /// The index of the limit that an answer shows, if exactly one matches.
    pub(super) fn shown_limit(&self, answer: &Limit) -> Option<usize> {
        let shown = ShownLimit::from(answer);
        let mut same = self.limits.iter().enumerate().filter(|(_, limit)| limit.shown == shown);
        same.next().filter(|_| same.next().is_none()).map(|(at, _)| at)
    }
}

/// A request with these descriptors.
pub(super) fn request<'a>(
    domain: &'a str,
    descriptors: &'a [Entries],
    hits: u64,
) -> Result<Request<'a>, RequestError> {
    let describe = |entries: &'a Entries| Descriptor {
        entries: entries.iter().map(|(key, value)| Entry { key, value }).collect(),
        hits: Hits::Add(hits),
        limit_override: None,
    };
    Request::new(domain, descriptors, usize::MAX, Vec::len, describe)
}

/// For each descriptor of a request, whether it matches a rule.
///
/// # Errors
/// The request has too many descriptors or entries.
pub(in super::super) fn match_rules(
    rules: &RuleSet,
    domain: &str,
    descriptors: &[Entries],
) -> Result<Vec<bool>, RequestError> {
    let request = request(domain, descriptors, 1)?;
    let (plan, _) = Plan::new(rules, &request);
    Ok(plan.descriptors.iter().map(|it| !matches!(it, PlannedDescriptor::NoLimitApplies)).collect())
}

impl VerificationState {
    /// The limits of requests with this draw.
    pub(super) fn plan(&mut self, verifier: &Verifier<'_>, draw: &DrawnNumbers) -> PlannedRequest {
        let descriptors = verifier.requests.descriptors(draw);
        // All draws have the same number of descriptors and entries, and one was checked before the run.
        let Ok(request) = request(verifier.domain, &descriptors, verifier.hits) else {
            return PlannedRequest { descriptors: Vec::new(), has_one_limit: false };
        };
        let (plan, group) = Plan::new(verifier.rules, &request);
        let descriptors = plan.descriptors.iter().enumerate().map(|(at, planned)| {
            let checks = group.iter().filter(move |check| check.descriptor == at);
            let not_verified = match planned {
                _ if plan.is_search_budget_exceeded => {
                    Some("matching takes too long, so the server refuses it")
                }
                PlannedDescriptor::Limited { shadow_mode, .. }
                    if *shadow_mode || plan.shadow_mode =>
                {
                    Some("in shadow mode: answers do not show what would have been refused")
                }
                _ => None,
            };
            self.matched(planned, checks, not_verified)
        });
        PlannedRequest { descriptors: descriptors.collect(), has_one_limit: group.len() == 1 }
    }

    fn matched<'c>(
        &mut self,
        planned: &PlannedDescriptor<'_>,
        checks: impl Iterator<Item = &'c Check>,
        not_verified: Option<&'static str>,
    ) -> MatchedDescriptor {
        let mut matched = MatchedDescriptor {
            limits: Vec::new(),
            is_verified: not_verified.is_none(),
            row: 0,
            counting: Counting::Free,
            scope: RefusalScope::None,
        };
        let rows = &mut self.rows;
        let (rule, limits) = match planned {
            PlannedDescriptor::NoLimitApplies => {
                matched.row = rows.position(None, "no limit applies".to_owned());
                return matched;
            }
            PlannedDescriptor::Unlimited(rule) => {
                matched.row = rows.position(Some(rule), "unlimited".to_owned());
                return matched;
            }
            PlannedDescriptor::Limited { rule, limits, counting, .. } => {
                matched.counting = *counting;
                (*rule, limits)
            }
        };
        for (check, current) in checks.zip(limits) {
            let row = self.rows.position(rule, limit_text(check, current));
            matched.row = row;
            if not_verified.is_some() {
                self.rows.update(row, |row| row.not_verified = not_verified);
                continue;
            }
            matched.scope = check.refusal_scope;
            matched.limits.push(AppliedLimit {
                counter: self.counter(check, matched.counting, row),
                row,
                requests_per_unit: current.displayed.requests_per_unit,
                shown: ShownLimit::from(current),
            });
        }
        matched
    }

    fn counter(&mut self, check: &Check, counting: Counting, row: usize) -> usize {
        let Self { counters, by_key, .. } = self;
        *by_key.entry(check.key.clone()).or_insert_with(|| {
            counters.push(Counter::new(&check.limit, counting, row));
            counters.len() - 1
        })
    }
}

/// The text of a limit in the report.
fn limit_text(check: &Check, current: &CurrentLimit<'_>) -> String {
    let CurrentLimit { displayed: shown, name } = current;
    let name = name.map(|name| format!("{name}: ")).unwrap_or_default();
    let unit = shown.unit.name();
    let per = match shown.unit_multiplier {
        1 => unit.to_owned(),
        units => format!("{units} {unit}s"),
    };
    let algorithm = check.limit.algorithm();
    let burst = match algorithm {
        Algorithm::TokenBucket | Algorithm::Gcra => format!(", burst {}", check.limit.capacity()),
        _ => String::new(),
    };
    format!("{name}{} per {per}, {}{burst}", shown.requests_per_unit, algorithm.name())
}
