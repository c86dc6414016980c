//! Requests as short as tests want them.

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
    let entry = Entry { key: key.to_owned().into(), value: value.to_owned().into() };
    let descriptor = RateLimitDescriptor {
        entries: vec![entry],
        hits_addend: Some(hits),
        ..RateLimitDescriptor::default()
    };
    RateLimitRequest { domain: "api".to_owned(), descriptors: vec![descriptor], hits_addend: 0 }
}
