//! `RateLimit-Policy` and `RateLimit` of draft-ietf-httpapi-ratelimit-headers-11: all limits that apply to the request,
//! with quota, window and remaining hits.
//!
//! ```text
//! RateLimit-Policy: "burst";q=20;w=10, "daily";q=10000;w=86400
//! RateLimit: "burst";r=19;t=10, "daily";r=9999;t=3600
//! ```
//!
//! A limit without a name is named by its numbers. At most [`LIMITS_LISTED_MAX`] limits are listed. Rules in shadow
//! mode are not listed, because clients must not slow down for them.

use std::fmt::Write as _;

use sluicegate_core::{CurrentLimit, plan::PlannedDescriptor};
use sluicegate_proto::envoy::config::core::v3::HeaderValue;

use crate::{
    decision::DecisionRecord,
    grpc::response::{
        header::header,
        matched::{MatchedDescriptor, MatchedLimit, descriptors},
        seconds::rounded_up,
    },
};

/// The most limits in the headers of one response: clients and proxies bound their headers.
const LIMITS_LISTED_MAX: usize = 32;

/// The headers; none if no limit applies.
pub(super) fn headers(record: &DecisionRecord<'_, '_>) -> Vec<HeaderValue> {
    let (mut policies, mut limits) = (String::new(), String::new());
    let mut names: Vec<String> = Vec::new();
    for one in listed_limits(record) {
        let name = unique(&names, name(&one.limit, one.window));
        let separator = if names.is_empty() { "" } else { ", " };
        let requests = one.limit.displayed.requests_per_unit;
        // Writing to a `String` cannot fail.
        let _infallible = write!(policies, "{separator}\"{name}\";q={requests};w={}", one.window);
        let _infallible = write!(limits, "{separator}\"{name}\";r={}", one.remaining());
        if let Some(until) = one.duration_until_reset() {
            let _infallible = write!(limits, ";t={}", rounded_up(until));
        }
        names.push(name);
    }
    if names.is_empty() {
        return Vec::new();
    }
    vec![header("ratelimit-policy", policies), header("ratelimit", limits)]
}

/// The limits to list, in the order of the request. If they are too many, those that refuse come first.
fn listed_limits<'a, 'r>(record: &DecisionRecord<'a, 'r>) -> Vec<MatchedLimit<'a, 'r>> {
    let is_listed = |descriptor: &MatchedDescriptor<'_, '_>| {
        let planned = descriptor.planned;
        let shadow = matches!(planned, PlannedDescriptor::Limited { shadow_mode: true, .. });
        !shadow && descriptor.status.current_limit.is_some()
    };
    let listed = descriptors(record).filter(is_listed).flat_map(|descriptor| descriptor.limits);
    let mut listed: Vec<_> = listed.collect();
    if listed.len() > LIMITS_LISTED_MAX {
        listed.sort_by_key(|limit| !limit.refuses());
        listed.truncate(LIMITS_LISTED_MAX);
    }
    listed
}

/// The name of a limit, as the content of a string of a structured field: printable ASCII, with escapes.
fn name(limit: &CurrentLimit<'_>, window: u32) -> String {
    let Some(name) = limit.name else {
        return format!("{}-per-{window}s", limit.displayed.requests_per_unit);
    };
    let mut text = String::with_capacity(name.len());
    for letter in name.chars() {
        match letter {
            '"' | '\\' => text.extend(['\\', letter]),
            ' '..='~' => text.push(letter),
            _ => text.push('?'),
        }
    }
    text
}

/// The name, with a number appended if it is already used.
fn unique(used: &[String], name: String) -> String {
    if !used.contains(&name) {
        return name;
    }
    let numbered = (2..).map(|number| format!("{name}-{number}"));
    numbered.into_iter().find(|name| !used.contains(name)).unwrap_or(name)
}
