//! Refusals: which descriptor refuses a request, and until when.

use std::time::Duration;

use sluicegate_core::{Code, DescriptorStatus, plan::PlannedDescriptor, store::RefusalScope};

use super::matched::{MatchedDescriptor, descriptors};
use crate::decision::DecisionRecord;

/// The descriptor that refuses the request: of those that refuse it by themselves the one with the longest wait. If
/// only quota descriptors refuse, which they do together: the one with the shortest wait. `None` if the request is
/// allowed.
pub(super) fn refusing_descriptor<'a, 'r>(
    record: &DecisionRecord<'a, 'r>,
) -> Option<MatchedDescriptor<'a, 'r>> {
    if record.verdict.code == Code::Ok {
        return None;
    }
    let refusing = |scope| {
        descriptors(record).filter(move |descriptor| {
            let PlannedDescriptor::Limited { refusal_scope, .. } = descriptor.planned else {
                return false;
            };
            *refusal_scope == scope && descriptor.status.code == Code::OverLimit
        })
    };
    // `None` is the longest wait.
    let wait = |descriptor: &MatchedDescriptor<'_, '_>| {
        retry_after_of(record, descriptor.status).unwrap_or(Duration::MAX)
    };
    refusing(RefusalScope::Request)
        .max_by_key(wait)
        .or_else(|| refusing(RefusalScope::Quota).min_by_key(wait))
}

/// Time until a refused request would pass, if no other requests come meanwhile: the longest wait of the descriptors
/// that refuse it by themselves. If all its quota descriptors refuse, at least the shortest wait of these. `None` if it
/// never passes.
pub(super) fn retry_after(record: &DecisionRecord<'_, '_>) -> Option<Duration> {
    if record.verdict.code == Code::Ok {
        return None;
    }
    let mut longest = Duration::ZERO;
    let mut quota_waits = Vec::new();
    let mut needs_quota = !record.plan.quota_never_refuses;
    for (planned, status) in record.plan.descriptors.iter().zip(&record.verdict.statuses) {
        let PlannedDescriptor::Limited { refusal_scope, .. } = planned else { continue };
        let wait = retry_after_of(record, status);
        match (refusal_scope, status.code) {
            (RefusalScope::Request, Code::OverLimit) => longest = longest.max(wait?),
            (RefusalScope::Quota, Code::OverLimit) => quota_waits.push(wait),
            (RefusalScope::Quota, Code::Ok) => needs_quota = false,
            (RefusalScope::Request | RefusalScope::None, _) => {}
        }
    }
    if !needs_quota || quota_waits.is_empty() {
        return Some(longest);
    }
    let shortest_quota_wait = quota_waits.into_iter().flatten().min()?;
    Some(longest.max(shortest_quota_wait))
}

/// The wait of the limit that a status shows.
fn retry_after_of(
    record: &DecisionRecord<'_, '_>,
    status: &DescriptorStatus<'_>,
) -> Option<Duration> {
    let decision = status.check_position.and_then(|position| record.decisions.get(position));
    decision.and_then(|decision| decision.retry_after)
}
