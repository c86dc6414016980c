//! The admin call that lists top counters: those that refuse most, and those near their limits.

use sluicegate_core::CounterKey;
use sluicegate_proto::sluicegate::admin::v1::{self as wire, TopKind};
use tonic::Status;

use super::CounterNames;
use crate::telemetry::top::{TopCounters, TopEntry, TopList, WINDOW};

/// Default number of counters.
const COUNT: usize = 20;

pub(super) fn top(
    top: Option<&TopCounters>,
    names: &CounterNames,
    request: &wire::TopRequest,
) -> Result<wire::TopResponse, Status> {
    let top = top.ok_or_else(|| {
        Status::failed_precondition("top counters are not recorded, because of --top-keys 0")
    })?;
    let kind = match request.kind() {
        TopKind::Unspecified | TopKind::Denied => TopList::Refused,
        TopKind::Near => TopList::Near,
    };
    let count = usize::try_from(request.count).ok().filter(|count| *count > 0).unwrap_or(COUNT);
    let mut listed = top.list(kind);
    if !request.domain.is_empty() {
        listed.retain(|it| *it.label.domain == *request.domain);
    }
    // By key at last, so that equal counters keep their order from one call to the next.
    listed.sort_unstable_by(|a, b| {
        let by_share = b.used_permille.cmp(&a.used_permille);
        let first = if kind == TopList::Near { by_share } else { std::cmp::Ordering::Equal };
        first.then(b.rate.total_cmp(&a.rate)).then(b.count.cmp(&a.count)).then(a.key.cmp(&b.key))
    });
    listed.truncate(count);
    let hash_id = names.salt_id();
    Ok(wire::TopResponse {
        counters: listed.iter().map(|it| counter(it, names)).collect(),
        window: WINDOW.try_into().ok(),
        hashed: hash_id.is_some(),
        hash_id: hash_id.unwrap_or_default(),
        missed: top.missed(kind),
    })
}

fn counter(listed: &TopEntry, names: &CounterNames) -> wire::TopCounter {
    let key = CounterKey::from_text(&listed.key);
    wire::TopCounter {
        domain: listed.label.domain.to_string(),
        rule: listed.label.rule.to_string(),
        key: key.map(|key| names.counter(&key)).unwrap_or_default(),
        count: listed.count,
        error: listed.error,
        rate: listed.rate,
        total: listed.total,
        last_seen: listed.age.try_into().ok(),
        used_permille: listed.used_permille,
    }
}
