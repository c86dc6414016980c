//! Bodies of responses to refused requests, by `response_body` of the limits files.

use sluicegate_core::{Code, ResponseBody, response_body::ResponseBodyValues};
use sluicegate_proto::envoy::config::core::v3::HeaderValue;

use super::{
    header::header,
    headers::Headers,
    refusal::retry_after,
    seconds::{milliseconds_rounded_up, rounded_up},
};
use crate::decision::DecisionRecord;

/// The body of a response; empty if the request is allowed, or if the rule that refuses it has no body. Adds its content
/// type to the headers.
pub(super) fn body(
    headers: &Headers,
    record: &DecisionRecord<'_, '_>,
    added: &mut Vec<HeaderValue>,
) -> Vec<u8> {
    let domain = record.plan.domain.filter(|domain| domain.has_response_bodies);
    let (Code::OverLimit, Some(domain)) = (record.verdict.code, domain) else { return Vec::new() };
    let Some(descriptor) = headers.refusing_descriptor(record) else { return Vec::new() };
    let status = descriptor.status;
    let configured = match status.rule {
        Some(rule) => &rule.response_body,
        None => &domain.response_body,
    };
    let Some(body) = configured else { return Vec::new() };
    let limit = status.current_limit.as_ref();
    let wait = retry_after(record);
    let values = ResponseBodyValues {
        domain: &domain.name,
        rule: status.rule.map(|rule| &*rule.path),
        name: limit.and_then(|limit| limit.name),
        limit: limit.map(|limit| limit.displayed.requests_per_unit),
        window: descriptor.shown(record).map(|(check, _)| check.limit.window().seconds()),
        remaining: limit.map(|_| u64::from(status.remaining)),
        reset: limit.map(|_| rounded_up(descriptor.time_until_reset(record))),
        retry_after: wait.map(rounded_up),
        retry_after_ms: wait.map(milliseconds_rounded_up),
    };
    render(body, &values, added)
}

/// The body of a response to a request that is refused without a decision.
pub(super) fn undecided_body(
    body: &ResponseBody,
    domain: &str,
    added: &mut Vec<HeaderValue>,
) -> Vec<u8> {
    render(body, &ResponseBodyValues { domain, ..ResponseBodyValues::default() }, added)
}

fn render(
    body: &ResponseBody,
    values: &ResponseBodyValues<'_>,
    added: &mut Vec<HeaderValue>,
) -> Vec<u8> {
    added.push(header("content-type", body.content_type().to_owned()));
    body.render(values).into_bytes()
}
