//! `RateLimit-Policy` and `RateLimit`, as in draft-ietf-httpapi-ratelimit-headers-11: every limit that applies to the
//! request, with its quota, window and remaining hits.
//!
//! ```text
//! RateLimit-Policy: "burst";q=20;w=10, "daily";q=10000;w=86400
//! RateLimit: "burst";r=19;t=10, "daily";r=9999;t=3600
//! ```
//!
//! A limit has its name, else its numbers as name. At most [`LIMITS_TOLD_MAX`] are listed. Rules in shadow mode are not
//! listed: they must not slow clients down.

use std::fmt::Write as _;

use sluicegate_core::{CurrentLimit, plan::PlannedDescriptor};
use sluicegate_proto::envoy::config::core::v3::HeaderValue;

use super::met::{Descriptor, descriptors, header};
use crate::{decision::DecisionRecord, grpc::response::seconds::rounded_up};

/// The most limits in the headers of one answer: clients and proxies bound their headers.
const LIMITS_TOLD_MAX: usize = 32;

/// The headers; none if no limit applies.
pub(super) fn headers(decided: &DecisionRecord<'_, '_>) -> Vec<HeaderValue> {
    let (mut policies, mut limits) = (String::new(), String::new());
    let mut names: Vec<String> = Vec::new();
    for Descriptor { planned, status, asked } in descriptors(decided) {
        let shadow = matches!(planned, PlannedDescriptor::Limited { shadow_mode: true, .. });
        if shadow || status.current_limit.is_none() {
            continue;
        }
        for one in asked.into_iter().take(LIMITS_TOLD_MAX - names.len()) {
            let name = unlike(&names, name(&one.limit, one.window));
            let separator = if names.is_empty() { "" } else { ", " };
            let requests = one.limit.displayed.requests_per_unit;
            // Writing to a `String` cannot fail.
            let _infallible =
                write!(policies, "{separator}\"{name}\";q={requests};w={}", one.window);
            let _infallible = write!(limits, "{separator}\"{name}\";r={}", one.remaining());
            if let Some(until) = one.duration_until_reset() {
                let _infallible = write!(limits, ";t={}", rounded_up(until));
            }
            names.push(name);
        }
    }
    if names.is_empty() {
        return Vec::new();
    }
    vec![header("ratelimit-policy", policies), header("ratelimit", limits)]
}

/// What a limit is called, as the text of a structured field: printable ASCII.
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

/// The name, or if it is taken, the first with a number behind it that is not.
fn unlike(taken: &[String], name: String) -> String {
    if !taken.contains(&name) {
        return name;
    }
    let numbered = (2..).map(|number| format!("{name}-{number}"));
    numbered.into_iter().find(|name| !taken.contains(name)).unwrap_or(name)
}
