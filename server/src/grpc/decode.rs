//! Reads a `RateLimitRequest`, borrowing from the message.

use sluicegate_core::{
    InvalidRequest, Request,
    limit::Unit,
    request::{Descriptor, Entry, Hits, LimitOverride},
};
use sluicegate_proto::envoy::{
    extensions::common::ratelimit::v3::{
        RateLimitDescriptor, rate_limit_descriptor::RateLimitOverride,
    },
    service::ratelimit::v3::{RateLimitRequest, rate_limit_response::rate_limit},
};

/// The request that the message describes.
pub(crate) fn request(message: &RateLimitRequest) -> Result<Request<'_>, InvalidRequest> {
    let entries = |part: &RateLimitDescriptor| part.entries.len();
    let describe = |part| descriptor(part, message.hits_addend);
    Request::new(&message.domain, &message.descriptors, entries, describe)
}

fn descriptor(message: &RateLimitDescriptor, hits_addend: u32) -> Descriptor<'_> {
    // Zero on the request means "not set"; on a descriptor it is there or not, and zero is a peek.
    let hits = message.hits_addend.unwrap_or_else(|| u64::from(hits_addend.max(1)));
    Descriptor {
        entries: message
            .entries
            .iter()
            .map(|entry| Entry { key: &entry.key, value: &entry.value })
            .collect(),
        hits: if message.is_negative_hits { Hits::GiveBack(hits) } else { Hits::Add(hits) },
        limit_override: message.limit.as_ref().map(limit_override),
    }
}

fn limit_override(message: &RateLimitOverride) -> LimitOverride {
    LimitOverride {
        requests_per_unit: message.requests_per_unit,
        unit: unit(message.unit),
        unit_multiplier: message.unit_multiplier,
    }
}

/// The unit of that number. `RateLimitUnit` lacks WEEK, which has the number 7 in the response's enum;
/// envoyproxy/ratelimit takes it from the wire all the same.
fn unit(number: i32) -> Option<Unit> {
    use rate_limit::Unit as Wire;
    match Wire::try_from(number).ok()? {
        Wire::Unknown => None,
        Wire::Second => Some(Unit::Second),
        Wire::Minute => Some(Unit::Minute),
        Wire::Hour => Some(Unit::Hour),
        Wire::Day => Some(Unit::Day),
        Wire::Week => Some(Unit::Week),
        Wire::Month => Some(Unit::Month),
        Wire::Year => Some(Unit::Year),
    }
}
