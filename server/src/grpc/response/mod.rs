//! Converts verdicts into `RateLimitResponse` messages.

mod body;
mod dynamic_metadata;
mod header;
mod headers;
mod matched;
mod refusal;
mod seconds;

use std::time::Duration;

use sluicegate_core::{Code, CurrentLimit, limit::Unit};
use sluicegate_proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse,
    rate_limit_response::{self, DescriptorStatus, RateLimit, rate_limit},
};

pub(crate) use headers::HeadersError;

use self::{
    body::{body, undecided_body},
    dynamic_metadata::dynamic_metadata,
    headers::Headers,
    seconds::rounded_up,
};
use crate::{decision::DecisionRecord, limiter::UndecidedRefusal, settings::ResponseSettings};

/// Creates responses, with headers and dynamic metadata according to the settings.
pub(crate) struct Responder {
    headers: Headers,
    dynamic_metadata: bool,
}

impl Responder {
    /// A responder with these settings.
    pub(crate) fn new(settings: &ResponseSettings) -> Result<Self, HeadersError> {
        let headers = Headers::new(settings)?;
        Ok(Self { headers, dynamic_metadata: settings.dynamic_metadata })
    }

    /// The response to a decided request.
    pub(super) fn respond(
        &self,
        message: &RateLimitRequest,
        record: &DecisionRecord<'_, '_>,
    ) -> RateLimitResponse {
        let metadata = || dynamic_metadata(message, record);
        let mut headers = self.headers.build(record);
        RateLimitResponse {
            overall_code: code(record.verdict.code).into(),
            statuses: record.verdict.statuses.iter().map(status).collect(),
            raw_body: body(&self.headers, record, &mut headers).into(),
            response_headers_to_add: headers,
            dynamic_metadata: self.dynamic_metadata.then(metadata),
            ..RateLimitResponse::default()
        }
    }
}

/// The response to a request that is refused without a decision. If it is shadowed, it is allowed all the same.
pub(super) fn undecided_refusal(
    descriptors: usize,
    domain: Option<&str>,
    refusal: &UndecidedRefusal,
) -> RateLimitResponse {
    let over = code(Code::OverLimit).into();
    let status = DescriptorStatus { code: over, ..DescriptorStatus::default() };
    let mut headers = Vec::new();
    let body = refusal.response_body.as_ref().filter(|_| !refusal.shadowed);
    let raw_body = body.map(|body| undecided_body(body, domain.unwrap_or_default(), &mut headers));
    RateLimitResponse {
        overall_code: if refusal.shadowed { code(Code::Ok).into() } else { over },
        statuses: vec![status; descriptors],
        response_headers_to_add: headers,
        raw_body: raw_body.unwrap_or_default().into(),
        ..RateLimitResponse::default()
    }
}

fn status(status: &sluicegate_core::DescriptorStatus<'_>) -> DescriptorStatus {
    DescriptorStatus {
        code: code(status.code).into(),
        current_limit: status.current_limit.as_ref().map(current_limit),
        limit_remaining: status.remaining,
        duration_until_reset: status.duration_until_reset.map(whole_seconds),
        ..DescriptorStatus::default()
    }
}

fn current_limit(limit: &CurrentLimit<'_>) -> RateLimit {
    let multiplier = limit.displayed.unit_multiplier;
    RateLimit {
        requests_per_unit: limit.displayed.requests_per_unit,
        unit: unit(limit.displayed.unit).into(),
        name: limit.name.unwrap_or_default().to_owned(),
        unit_multiplier: (multiplier != 1).then_some(multiplier),
    }
}

/// A duration in whole seconds, rounded up: Envoy truncates, and a caller that waits this long must not be too early.
fn whole_seconds(span: Duration) -> prost_types::Duration {
    prost_types::Duration { seconds: i64::try_from(rounded_up(span)).unwrap_or(i64::MAX), nanos: 0 }
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
