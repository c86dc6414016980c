//! `x-ratelimit-limit`, `-remaining` and `-reset` of draft-polli-ratelimit-headers-03 and Envoy: the limit closest to
//! refusing. If a descriptor has several limits, the list of all of them follows the first number: `20, 20;w=10,
//! 10000;w=86400`.

use std::fmt::Write as _;

use sluicegate_core::{Code, plan::PlannedDescriptor, store::RefusalScope};
use sluicegate_proto::envoy::config::core::v3::HeaderValue;

use super::names::HeaderNames;
use crate::{
    decision::DecisionRecord,
    grpc::response::{
        header::header,
        matched::{MatchedDescriptor, descriptors},
        seconds::rounded_up,
    },
};

/// The headers; none if no limit applies.
pub(super) fn headers(names: &HeaderNames, record: &DecisionRecord<'_, '_>) -> Vec<HeaderValue> {
    let Some(descriptor) = closest(record) else { return Vec::new() };
    let MatchedDescriptor { status, limits, .. } = &descriptor;
    let Some(limit) = &status.current_limit else { return Vec::new() };
    let mut text = limit.displayed.requests_per_unit.to_string();
    if limits.len() > 1 {
        for one in limits {
            let requests = one.limit.displayed.requests_per_unit;
            // Writing to a `String` cannot fail.
            let _infallible = write!(text, ", {requests};w={}", one.window);
        }
    }
    vec![
        header(&*names.limit, text),
        header(&*names.remaining, status.remaining.to_string()),
        header(&*names.reset, rounded_up(descriptor.time_until_reset(record)).to_string()),
    ]
}

/// The last descriptor that refuses the request by itself. If there is none: the first of those with the fewest
/// remaining hits.
pub(super) fn closest<'a, 'r>(
    record: &DecisionRecord<'a, 'r>,
) -> Option<MatchedDescriptor<'a, 'r>> {
    let mut closest: Option<MatchedDescriptor<'a, 'r>> = None;
    let mut refused = false;
    for descriptor in descriptors(record) {
        let MatchedDescriptor { planned, status, .. } = &descriptor;
        let PlannedDescriptor::Limited { refusal_scope, .. } = planned else { continue };
        if status.current_limit.is_none() {
            continue;
        }
        let refuses = status.code == Code::OverLimit && *refusal_scope != RefusalScope::Quota;
        let closer = || closest.as_ref().is_none_or(|it| status.remaining < it.status.remaining);
        if refuses || (!refused && closer()) {
            closest = Some(descriptor);
        }
        refused |= refuses;
    }
    closest
}
