//! The answer to a request: the limits of each descriptor, and their counters.

use std::time::Duration;

use serde::Serialize;
use sluicegate_core::{
    Answers, Check, Decision, Plan, Request, Rule,
    plan::PlannedDescriptor,
    request::{Descriptor, Entry, Hits},
    rules::RuleSet,
    store::{Charge, Group, RefusalScope},
};
use sluicegate_proto::text::descriptor::Entries;
use smallvec::SmallVec;

use super::{error::UsageError, tenants::Tenant};

type DescriptorEntries<'a> = SmallVec<[Entry<'a>; 4]>;

/// The body of an answer.
#[derive(Debug, Serialize)]
pub(super) struct Usage {
    domain: String,
    /// In the order of the query.
    descriptors: Vec<DescriptorUsage>,
}

#[derive(Debug, Serialize)]
struct DescriptorUsage {
    entries: Vec<EntryText>,
    /// The path of the rule; `None` if no rule matches, or another descriptor's rule replaces all of its limits.
    rule: Option<String>,
    unlimited: bool,
    limits: Vec<LimitUsage>,
}

/// An entry. Bytes that are not UTF-8 are replaced.
#[derive(Debug, Serialize)]
struct EntryText {
    key: String,
    value: String,
}

#[derive(Debug, Serialize)]
struct LimitUsage {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    requests_per_unit: u32,
    unit: &'static str,
    unit_multiplier: u32,
    algorithm: &'static str,
    /// The most hits at once: the burst of a bucket, else the requests.
    capacity: u32,
    shadow_mode: bool,
    quota_mode: bool,
    #[serde(flatten)]
    counter: CounterUsage,
}

#[derive(Debug, Default, Serialize)]
struct CounterUsage {
    used: u64,
    remaining: u64,
    reset_seconds: f64,
    /// Whether the limit refuses one more hit. In shadow mode it would.
    refused: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_seconds: Option<f64>,
}

/// The answer without the state of the counters, and the peeks that read it.
pub(super) fn plan(
    rules: &RuleSet,
    tenant: &Tenant,
    queried: &[Entries],
    bytes_max: usize,
) -> Result<(Usage, Group), UsageError> {
    let descriptors = below_tenant(tenant, queried)?;
    let request =
        Request::new(&tenant.domain, &descriptors, bytes_max, SmallVec::len, peek_descriptor)?;
    let (plan, peeks) = Plan::new(rules, &request);
    if plan.is_search_budget_exceeded {
        return Err(UsageError::TooCostly);
    }
    // Whatever the rule counts, the question is whether one more hit would be refused.
    let peeks: Group = peeks
        .iter()
        .map(|check| Check {
            charge: Charge::IfAllowed(0),
            refusal_scope: RefusalScope::None,
            ..check.clone()
        })
        .collect();
    let mut checks = peeks.iter();
    let descriptors = descriptors.iter().zip(&plan.descriptors);
    let descriptors =
        descriptors.map(|(entries, planned)| descriptor(rules, entries, planned, &mut checks));
    let usage = Usage { domain: tenant.domain.clone(), descriptors: descriptors.collect() };
    Ok((usage, peeks))
}

/// A descriptor that charges nothing.
fn peek_descriptor<'a>(entries: &'a DescriptorEntries<'_>) -> Descriptor<'a> {
    let entries = entries.iter().copied().collect();
    Descriptor { entries, hits: Hits::Add(0), limit_override: None }
}

/// The entries of each descriptor: those of the tenant, then those that the query names. Without any in the query, the
/// tenant's own descriptor.
fn below_tenant<'a>(
    tenant: &'a Tenant,
    queried: &'a [Entries],
) -> Result<Vec<DescriptorEntries<'a>>, UsageError> {
    let entry = |(key, value): &'a (Vec<u8>, Vec<u8>)| Entry { key, value };
    let own = || tenant.entries.iter().map(entry);
    if queried.is_empty() {
        return Ok(vec![own().collect()]);
    }
    (1..)
        .zip(queried)
        .map(|(number, queried)| {
            // Harmless, because the tenant's entries come first, but certainly not what the caller means.
            if let Some((key, _)) = queried.iter().find(|(key, _)| own().any(|it| it.key == key)) {
                let key = String::from_utf8_lossy(key).into_owned();
                return Err(UsageError::TenantKey { number, key });
            }
            Ok(own().chain(queried.iter().map(entry)).collect())
        })
        .collect()
}

fn descriptor<'c>(
    rules: &RuleSet,
    entries: &[Entry<'_>],
    planned: &PlannedDescriptor<'_>,
    checks: &mut impl Iterator<Item = &'c Check>,
) -> DescriptorUsage {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let entries = entries
        .iter()
        .map(|entry| EntryText { key: text(entry.key), value: text(entry.value) })
        .collect();
    let (rule, unlimited) = match planned {
        PlannedDescriptor::NoLimitApplies => (None, false),
        PlannedDescriptor::Unlimited(rule) => (Some(*rule), true),
        PlannedDescriptor::Limited { rule, .. } => (*rule, false),
    };
    let in_mode = |mode: fn(&Rule) -> bool| rule.is_some_and(mode);
    let limits = planned.limits().iter().zip(checks).map(|(limit, check)| LimitUsage {
        name: limit.name.map(str::to_owned),
        requests_per_unit: limit.displayed.requests_per_unit,
        unit: limit.displayed.unit.name(),
        unit_multiplier: limit.displayed.unit_multiplier,
        algorithm: check.limit.algorithm().name(),
        capacity: check.limit.capacity(),
        shadow_mode: rules.modes.shadow_mode || in_mode(|rule| rule.shadow_mode),
        quota_mode: rules.modes.quota_mode || in_mode(|rule| rule.quota_mode),
        counter: CounterUsage::default(),
    });
    let limits = limits.collect();
    DescriptorUsage { entries, rule: rule.map(|rule| rule.path.to_string()), unlimited, limits }
}

impl Usage {
    /// Adds the states of the counters. The answers are those to the peeks of [`plan`].
    ///
    /// # Errors
    /// The store did not answer all of them.
    pub(super) fn add_counters(&mut self, answers: &Answers) -> Result<(), UsageError> {
        let mut answers = answers.iter();
        for limit in self.descriptors.iter_mut().flat_map(|descriptor| &mut descriptor.limits) {
            let Some(Ok(decision)) = answers.next() else { return Err(UsageError::Unanswered) };
            limit.counter = CounterUsage::new(limit.capacity, decision);
        }
        Ok(())
    }
}

impl CounterUsage {
    fn new(capacity: u32, decision: &Decision) -> Self {
        let refused = !decision.allowed;
        Self {
            used: u64::from(capacity).saturating_sub(decision.remaining) + decision.excess,
            remaining: decision.remaining,
            reset_seconds: decision.reset_after.as_secs_f64(),
            refused,
            retry_after_seconds: decision
                .retry_after
                .filter(|_| refused)
                .map(|wait: Duration| wait.as_secs_f64()),
        }
    }
}
