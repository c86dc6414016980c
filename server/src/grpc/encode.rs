//! Writes a `RateLimitResponse`.

use std::time::Duration;

use sluicegate_core::{Code, CurrentLimit, Status, Verdict, limit::Unit};
use sluicegate_proto::envoy::service::ratelimit::v3::{
    RateLimitResponse,
    rate_limit_response::{self, DescriptorStatus, RateLimit, rate_limit},
};

/// The message that tells the verdict.
pub(super) fn response(verdict: &Verdict<'_>) -> RateLimitResponse {
    RateLimitResponse {
        overall_code: code(verdict.code).into(),
        statuses: verdict.statuses.iter().map(status).collect(),
        ..RateLimitResponse::default()
    }
}

/// The answer to a request that is refused without being looked at.
pub(super) fn shed(descriptors: usize) -> RateLimitResponse {
    let code = code(Code::OverLimit).into();
    let status = DescriptorStatus { code, ..DescriptorStatus::default() };
    RateLimitResponse {
        overall_code: code,
        statuses: vec![status; descriptors],
        ..RateLimitResponse::default()
    }
}

fn status(status: &Status<'_>) -> DescriptorStatus {
    DescriptorStatus {
        code: code(status.code).into(),
        current_limit: status.current_limit.as_ref().map(current_limit),
        limit_remaining: status.remaining,
        duration_until_reset: status.until_reset.map(whole_seconds),
        ..DescriptorStatus::default()
    }
}

fn current_limit(limit: &CurrentLimit<'_>) -> RateLimit {
    let multiplier = limit.shown.unit_multiplier;
    RateLimit {
        requests_per_unit: limit.shown.requests_per_unit,
        unit: unit(limit.shown.unit).into(),
        name: limit.name.unwrap_or_default().to_owned(),
        unit_multiplier: (multiplier != 1).then_some(multiplier),
    }
}

/// Rounded up, because Envoy cuts: a caller that waits as long as it is told must not come too early.
fn whole_seconds(span: Duration) -> prost_types::Duration {
    let seconds = span.as_secs().saturating_add(u64::from(span.subsec_nanos() > 0));
    prost_types::Duration { seconds: i64::try_from(seconds).unwrap_or(i64::MAX), nanos: 0 }
}

const fn code(code: Code) -> rate_limit_response::Code {
    match code {
        Code::Ok => rate_limit_response::Code::Ok,
        Code::OverLimit => rate_limit_response::Code::OverLimit,
    }
}

const fn unit(unit: Unit) -> rate_limit::Unit {
    match unit {
        Unit::Second => rate_limit::Unit::Second,
        Unit::Minute => rate_limit::Unit::Minute,
        Unit::Hour => rate_limit::Unit::Hour,
        Unit::Day => rate_limit::Unit::Day,
        Unit::Week => rate_limit::Unit::Week,
        Unit::Month => rate_limit::Unit::Month,
        Unit::Year => rate_limit::Unit::Year,
    }
}
