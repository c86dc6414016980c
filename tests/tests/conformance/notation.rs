//! Short notation of requests and answers.

use prost_types::{Struct, value::Kind};
use serde_json::{Map, Number, Value, json};
use sluicegate_proto::envoy::{
    extensions::common::ratelimit::v3::{
        RateLimitDescriptor,
        rate_limit_descriptor::{Entry, RateLimitOverride},
    },
    service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse,
        rate_limit_response::{Code, DescriptorStatus, RateLimit, rate_limit::Unit},
    },
};
use tonic::Status;

/// A request of descriptors such as `key1=value1 key2=value2; hits 3; limit 10/day`.
pub(crate) fn request(domain: &str, descriptors: &[String], hits: u32) -> RateLimitRequest {
    RateLimitRequest {
        domain: domain.to_owned(),
        descriptors: descriptors.iter().map(|text| descriptor(text)).collect(),
        hits_addend: hits,
    }
}

fn descriptor(text: &str) -> RateLimitDescriptor {
    let mut parts = text.split(';');
    let entries = parts.next().unwrap_or_default().split_whitespace().map(entry);
    let mut descriptor =
        RateLimitDescriptor { entries: entries.collect(), ..RateLimitDescriptor::default() };
    for part in parts {
        let words: Vec<_> = part.split_whitespace().collect();
        match words[..] {
            ["hits", hits] => {
                let refunded = hits.strip_prefix('-');
                descriptor.hits_addend = Some(refunded.unwrap_or(hits).parse().unwrap());
                descriptor.is_negative_hits = refunded.is_some();
            }
            ["limit", limit] => descriptor.limit = Some(limit_override(limit)),
            _ => panic!("{part:?} in {text:?} is neither hits nor a limit"),
        }
    }
    descriptor
}

fn entry(text: &str) -> Entry {
    let (key, value) = text.split_once('=').unwrap_or_else(|| panic!("{text:?} is no entry"));
    Entry { key: key.to_owned().into(), value: value.to_owned().into() }
}

/// `10/day`, or `10/7` with the number of a unit.
fn limit_override(text: &str) -> RateLimitOverride {
    let (requests, unit) = text.split_once('/').unwrap_or_else(|| panic!("{text:?} is no limit"));
    let named = || Unit::from_str_name(&unit.to_uppercase()).map(i32::from);
    RateLimitOverride {
        requests_per_unit: requests.parse().unwrap(),
        unit: unit.parse().ok().or_else(named).unwrap_or_else(|| panic!("{unit:?} is no unit")),
        unit_multiplier: None,
    }
}

/// An answer, such as `OVER | none | OVER 10/minute left 0 reset 58`.
pub(crate) fn answer(answer: &Result<RateLimitResponse, Status>) -> String {
    match answer {
        Ok(response) => {
            let overall = [code(response.overall_code).to_owned()].into_iter();
            overall.chain(response.statuses.iter().map(status)).collect::<Vec<_>>().join(" | ")
        }
        Err(status) => format!("error {:?} | {}", status.code(), status.message()),
    }
}

fn code(number: i32) -> &'static str {
    match Code::try_from(number) {
        Ok(Code::Ok) => "OK",
        Ok(Code::OverLimit) => "OVER",
        Ok(Code::Unknown) | Err(_) => "UNKNOWN",
    }
}

fn status(status: &DescriptorStatus) -> String {
    let ok = DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() };
    if *status == ok {
        return "none".to_owned();
    }
    if *status == (DescriptorStatus { limit_remaining: u32::MAX, ..ok }) {
        return "unlimited".to_owned();
    }
    let mut words = Vec::new();
    if status.code() != Code::Ok {
        words.push(code(status.code).to_owned());
    }
    words.push(status.current_limit.as_ref().map_or("no limit".to_owned(), limit));
    words.push(format!("left {}", status.limit_remaining));
    if let Some(reset) = status.duration_until_reset {
        words.push(format!("reset {}", reset.seconds));
        if reset.nanos != 0 {
            words.push(format!("and {} ns", reset.nanos));
        }
    }
    if status.quota.is_some() {
        words.push("quota".to_owned());
    }
    words.join(" ")
}

fn limit(limit: &RateLimit) -> String {
    let unit = limit.unit().as_str_name().to_lowercase();
    let multiplier = limit.unit_multiplier.map(|it| format!("×{it}")).unwrap_or_default();
    let mut text = format!("{}/{unit}{multiplier}", limit.requests_per_unit);
    if !limit.name.is_empty() {
        text += &format!(" named {}", limit.name);
    }
    text
}

/// `name=value` of each response header. Asserts that there are no request headers and no body.
pub(crate) fn headers(response: &RateLimitResponse) -> Vec<String> {
    let mut headers: Vec<_> = response
        .response_headers_to_add
        .iter()
        .map(|header| format!("{}={}", header.key, header.value))
        .collect();
    headers
        .extend(response.request_headers_to_add.iter().map(|it| format!("to upstream {}", it.key)));
    if !response.raw_body.is_empty() {
        headers.push("a body".to_owned());
    }
    headers
}

/// The fields of the dynamic metadata that envoyproxy/ratelimit has too.
pub(crate) fn metadata(response: &RateLimitResponse) -> Option<Value> {
    let mut metadata = object(response.dynamic_metadata.as_ref()?);
    keep(&mut metadata, &["domain", "descriptors", "hitsAddend", "metadata"]);
    if let Some(descriptors) = metadata.get_mut("descriptors").and_then(Value::as_array_mut) {
        for descriptor in descriptors.iter_mut().filter_map(Value::as_object_mut) {
            keep(descriptor, &["entries", "limit", "hitsAddend"]);
        }
    }
    Some(Value::Object(metadata))
}

fn keep(map: &mut Map<String, Value>, keys: &[&str]) {
    map.retain(|key, _| keys.contains(&key.as_str()));
}

fn object(message: &Struct) -> Map<String, Value> {
    message.fields.iter().map(|(key, value)| (key.clone(), json_value(value))).collect()
}

fn json_value(value: &prost_types::Value) -> Value {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::BoolValue(it)) => json!(it),
        Some(Kind::NumberValue(it)) => number(*it),
        Some(Kind::StringValue(it)) => json!(it),
        Some(Kind::StructValue(it)) => Value::Object(object(it)),
        Some(Kind::ListValue(it)) => it.values.iter().map(json_value).collect(),
    }
}

/// Whole numbers as the cases write them.
fn number(number: f64) -> Value {
    let whole = format!("{number}").parse::<i64>();
    whole.map_or_else(|_| Number::from_f64(number).into(), Value::from)
}

/// The expected text of a repetition: `left 9..0` counts up or down with it.
///
/// # Panics
/// The range does not have `times` numbers.
pub(crate) fn at_repetition(expected: &str, at: u32, times: u32) -> String {
    let count = |word: &str| {
        let (first, last) = word.split_once("..")?;
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        assert_eq!(first.abs_diff(last), times - 1, "{expected:?} over {times} times");
        Some(if first > last { first - at } else { first + at }.to_string())
    };
    let words = expected.split_inclusive([' ', '=']);
    let at_word = |word: &str| {
        let end = word.find([' ', '=']).unwrap_or(word.len());
        let (number, separator) = word.split_at(end);
        count(number).unwrap_or_else(|| number.to_owned()) + separator
    };
    words.map(at_word).collect()
}

/// Whether a text matches the expected one, in which `…` matches anything.
pub(crate) fn fits(expected: &str, text: &str) -> bool {
    let mut parts = expected.split('…');
    let Some(mut rest) = text.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut parts: Vec<_> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[test]
fn an_ellipsis_matches_anything() {
    for (expected, text, fit) in [
        ("abc", "abc", true),
        ("abc", "abcd", false),
        ("a…c", "abbc", true),
        ("a…c", "abcd", false),
        ("a…b…c", "axbxc", true),
        ("…b…", "abc", true),
        ("…x…", "abc", false),
    ] {
        assert_eq!(fits(expected, text), fit, "{expected} {text}");
    }
}

#[test]
fn expected_values_count_over_repetitions() {
    assert_eq!(
        at_repetition("OK | 20/minute left 19..0 reset 5", 3, 20),
        "OK | 20/minute left 16 reset 5"
    );
    assert_eq!(at_repetition("none", 1, 2), "none");
}
