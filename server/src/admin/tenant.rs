//! The counters of one tenant, with their rules and limits.

use std::{collections::HashSet, sync::Arc, time::Instant};

use sluicegate_core::{
    Answers, Charge, Check, CounterKey,
    explain::AppliedLimit,
    key::{KeyBuilder, ParsedKey, TenantKeys},
    request::Entry,
    rule::RuleLimits,
    rules::{Domain, RuleSet},
    store::{Group, RefusalScope},
};
use sluicegate_proto::sluicegate::admin::v1::{self as wire, limit_explanation::State};
use sluicegate_store::{Stack, redis::hash_slot};
use tonic::Status;

use super::{
    CounterNames,
    message_stream::Sender,
    store_calls::{PEEK_TIMEOUT, PROGRESS_INTERVAL, status_code},
};
use crate::{explain::to_wire, limits::Snapshot};

/// Default and maximum number of listed counters.
const LISTED: usize = 1000;
const COUNTERS_LISTED_MAX: usize = 100_000;

/// The most counters in one message. They are read together.
const PAGE: usize = 100;

/// A tenant of a domain that has tenants.
pub(super) struct Tenant {
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) domain: String,
    pub(super) value: Vec<u8>,
    pub(super) keys: TenantKeys,
}

impl Tenant {
    /// # Errors
    /// The domain does not exist or has no tenants, or the value is empty.
    pub(super) fn new(
        snapshot: Arc<Snapshot>,
        domain: String,
        value: &[u8],
    ) -> Result<Self, Status> {
        match snapshot.rules.domain(&domain) {
            None => return Err(no_domain(&domain)),
            Some(Domain { tenant: None, .. }) => {
                return Err(Status::failed_precondition(format!(
                    "domain {domain} names no tenant; its counters can only be read and reset one by one"
                )));
            }
            Some(_) => {}
        }
        let keys = TenantKeys::new(&domain, value)
            .ok_or_else(|| Status::invalid_argument("tenant must not be empty"))?;
        Ok(Self { snapshot, domain, value: value.to_vec(), keys })
    }
}

/// The status of a call for a domain that no limits file has.
pub(super) fn no_domain(domain: &str) -> Status {
    Status::not_found(format!("no limits file has domain {domain}"))
}

/// Lists the counters of a tenant.
pub(super) async fn list(
    tenant: Tenant,
    limit: u32,
    store: &Stack,
    names: &CounterNames,
    sender: &Sender<wire::ListCountersResponse>,
) {
    let limit = usize::try_from(limit).ok().filter(|limit| *limit > 0).unwrap_or(LISTED);
    let limit = limit.min(COUNTERS_LISTED_MAX);
    // Hashes instead of keys, because there may be many long ones.
    let mut seen = HashSet::<u64>::new();
    let mut from = None;
    let mut more = false;
    let mut sent_at = Instant::now();
    loop {
        let step = match store.scan(&tenant.keys, from).await {
            Ok(step) => step,
            Err(error) => {
                let status = Status::new(status_code(&error), error.to_string());
                let _gone = sender.send(Err(status)).await;
                return;
            }
        };
        let mut fresh = Vec::new();
        for key in step.found {
            if seen.contains(&key.hash64()) {
                continue;
            }
            if seen.len() >= limit {
                more = true;
                break;
            }
            seen.insert(key.hash64());
            fresh.push(key);
        }
        // An empty message reports progress if no counter is found for a long time.
        let is_progress_due = fresh.is_empty() && sent_at.elapsed() >= PROGRESS_INTERVAL;
        let pages = fresh.chunks(PAGE).chain(is_progress_due.then_some([].as_slice()));
        for page in pages {
            sent_at = Instant::now();
            let counters = read_counters(&tenant, page, store, names).await;
            let page = wire::ListCountersResponse { counters, more: false };
            if sender.send(Ok(page)).await.is_err() {
                return;
            }
        }
        from = step.next;
        // Other tasks must run too, and a step in memory never waits.
        tokio::task::yield_now().await;
        if from.is_none() || more {
            break;
        }
    }
    let end = wire::ListCountersResponse { counters: Vec::new(), more };
    let _gone = sender.send(Ok(end)).await;
}

/// The counters with these keys, with their rules, limits and states.
async fn read_counters(
    tenant: &Tenant,
    keys: &[CounterKey],
    store: &Stack,
    names: &CounterNames,
) -> Vec<wire::TenantCounter> {
    let mut counters = Vec::with_capacity(keys.len());
    let mut checks = Vec::new();
    for (at, key) in keys.iter().enumerate() {
        let found = limit_of(&tenant.snapshot.rules, tenant, key);
        let (rule, limit) = found.as_ref().map_or((None, None), |(rule, applied)| {
            (Some(rule.clone()), Some(to_wire::limit(applied, names.prefix())))
        });
        checks.extend(found.map(|(_, applied)| (at, applied.check)));
        counters.push(wire::TenantCounter {
            counter_key: names.prefix().name(key),
            key_hash: names.hash(key),
            hash_slot: hash_slot(key).into(),
            rule,
            limit,
        });
    }
    let group: Group = checks.iter().map(|(_, check)| check.clone()).collect();
    let answers = if group.is_empty() {
        Answers::new()
    } else {
        store.peek(group, Some(Instant::now() + PEEK_TIMEOUT)).await
    };
    for ((at, check), answer) in checks.iter().zip(answers) {
        let Some(limit) = counters.get_mut(*at).and_then(|it| it.limit.as_mut()) else { continue };
        limit.state = Some(match answer {
            Ok(decision) => State::Counter(to_wire::counter(check.limit.capacity(), &decision)),
            Err(error) => State::Unanswered(error.to_string()),
        });
    }
    counters
}

/// The rule and the limit of a counter. `None` if the key does not identify a rule with limits, or if no limit of that
/// rule has this key now.
fn limit_of<'r>(
    rules: &'r RuleSet,
    tenant: &Tenant,
    key: &CounterKey,
) -> Option<(wire::Rule, AppliedLimit<'r>)> {
    let domain = rules.domain(&tenant.domain)?;
    let entries = ParsedKey::new(key.as_bytes())?.entries()?;
    let entries: Vec<(Vec<u8>, Vec<u8>)> = entries
        .into_iter()
        .map(|(key, text)| (key, text.unwrap_or_else(|| tenant.value.clone())))
        .collect();
    let entries: Vec<Entry<'_>> = entries.iter().map(|(key, value)| Entry { key, value }).collect();
    let found = domain.find(&entries);
    let rule = found.rule?;
    let RuleLimits::Limited(limits) = &rule.limits else { return None };
    let mut key_builder =
        KeyBuilder::new(&domain.name, domain.tenant.as_deref(), &entries, &found.shared_patterns);
    let limit = limits.iter().find(|limit| key_builder.key_for(&limit.limit) == *key)?;
    let check = Check {
        key: key.clone(),
        limit: limit.limit,
        charge: Charge::IfAllowed(0),
        descriptor: 0,
        refusal_scope: RefusalScope::None,
        on_failure: rule.on_failure,
    };
    let applied = AppliedLimit {
        displayed: limit.displayed,
        name: limit.name.as_deref(),
        counting: rule.counting,
        shadow_mode: rule.shadow_mode || rules.modes.shadow_mode,
        quota_mode: rule.quota_mode || rules.modes.quota_mode,
        check,
    };
    Some((to_wire::rule(rule), applied))
}
