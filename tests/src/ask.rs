//! Builders of rate limit requests.

use sluicegate_proto::envoy::{
    extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
    service::ratelimit::v3::RateLimitRequest,
};

/// A hit on one entry in the domain `api`.
#[must_use]
pub fn hit(key: &str, value: &str) -> RateLimitRequest {
    hits(key, value, 1)
}

/// Hits on one entry in the domain `api`.
#[must_use]
pub fn hits(key: &str, value: &str, hits: u64) -> RateLimitRequest {
    let mut request = request(&[&[(key, value)]]);
    request.descriptors[0].hits_addend = Some(hits);
    request
}

/// A hit on each descriptor in the domain `api`. Values may be any bytes.
#[must_use]
pub fn request<V: AsRef<[u8]>>(descriptors: &[&[(&str, V)]]) -> RateLimitRequest {
    let entry = |(key, value): &(&str, V)| Entry {
        key: (*key).to_owned().into(),
        value: value.as_ref().to_owned().into(),
    };
    let descriptor = |entries: &&[(&str, V)]| RateLimitDescriptor {
        entries: entries.iter().map(entry).collect(),
        ..RateLimitDescriptor::default()
    };
    RateLimitRequest {
        domain: "api".to_owned(),
        descriptors: descriptors.iter().map(descriptor).collect(),
        hits_addend: 0,
    }
}

/// A hit on the first entry, on the first two, and so on.
#[must_use]
pub fn chain<V: AsRef<[u8]>>(entries: &[(&str, V)]) -> RateLimitRequest {
    let descriptors: Vec<_> = (1..=entries.len()).map(|length| &entries[..length]).collect();
    request(&descriptors)
}
