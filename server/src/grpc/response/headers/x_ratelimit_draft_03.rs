//! `x-ratelimit-limit`, `-remaining` and `-reset`, as in draft-polli-ratelimit-headers-03 and Envoy: the
//! limit closest to refusing. Where a descriptor has several limits, all of them follow the first number as
//! quota policies: `20, 20;w=10, 10000;w=86400`.

use std::fmt::Write as _;

use http::HeaderName;
use sluicegate_core::{Code, plan::PlannedDescriptor, store::RefusalScope};
use sluicegate_proto::envoy::config::core::v3::HeaderValue;

use super::met::{Descriptor, descriptors, header, header_name};
use crate::{decision::DecisionRecord, grpc::response::seconds::rounded_up};

/// Names of the three headers.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    limit: Box<str>,
    remaining: Box<str>,
    reset: Box<str>,
}

impl Names {
    pub(super) fn new(
        limit: Option<&HeaderName>,
        remaining: Option<&HeaderName>,
        reset: Option<&HeaderName>,
    ) -> Self {
        Self {
            limit: header_name(limit, "x-ratelimit-limit"),
            remaining: header_name(remaining, "x-ratelimit-remaining"),
            reset: header_name(reset, "x-ratelimit-reset"),
        }
    }
}

/// The headers; none if no limit applies.
pub(super) fn headers(names: &Names, decided: &DecisionRecord<'_, '_>) -> Vec<HeaderValue> {
    let Some(Descriptor { status, asked, .. }) = closest(decided) else { return Vec::new() };
    let Some(limit) = &status.current_limit else { return Vec::new() };
    let mut text = limit.displayed.requests_per_unit.to_string();
    if asked.len() > 1 {
        for one in &asked {
            let requests = one.limit.displayed.requests_per_unit;
            // Writing to a `String` cannot fail.
            let _infallible = write!(text, ", {requests};w={}", one.window);
        }
    }
    // A limit that these hits never fit into is reset all the same.
    let speaking = status.check.and_then(|check| decided.decisions.get(check));
    let until =
        status.duration_until_reset.or_else(|| Some(speaking?.reset_after)).unwrap_or_default();
    vec![
        header(&*names.limit, text),
        header(&*names.remaining, status.remaining.to_string()),
        header(&*names.reset, rounded_up(until).to_string()),
    ]
}

/// The last descriptor that refuses, quota aside; else the first of those with the least left.
fn closest<'a, 'r>(decided: &DecisionRecord<'a, 'r>) -> Option<Descriptor<'a, 'r>> {
    let mut closest: Option<Descriptor<'a, 'r>> = None;
    let mut refused = false;
    for descriptor in descriptors(decided) {
        let Descriptor { planned, status, .. } = &descriptor;
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
