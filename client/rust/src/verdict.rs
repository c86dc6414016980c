//! Answers of a rate limit service.

use std::{
    fmt,
    str::{self, FromStr},
    time::Duration,
};

use bytes::Bytes;
use prost_types::{ListValue, Struct, Value, value::Kind};
use sluicegate_proto::envoy::{
    config::core::v3::HeaderValue,
    service::ratelimit::v3::{
        RateLimitResponse,
        rate_limit_response::{
            Code as WireCode, DescriptorStatus, RateLimit, rate_limit::Unit as WireUnit,
        },
    },
};

/// The most digits of `retry-after-ms`: 31 years.
const MILLIS_DIGITS_MAX: usize = 12;

/// The answer to a [`Check`](crate::Check).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verdict {
    /// Whether the request may pass. An unknown code counts as allowed, as in Envoy.
    pub allowed: bool,
    /// One status for each descriptor, in the order of the request.
    pub statuses: Vec<Status>,
    /// Headers for the response to the client.
    pub response_headers_to_add: Vec<Header>,
    /// Headers to add to the request, if it passes.
    pub request_headers_to_add: Vec<Header>,
    /// Body of the response to a refused request; empty if the service sends none.
    pub raw_body: Bytes,
    /// The longest `retryAfter` of the limits in the dynamic metadata that refuse.
    exact_wait: Option<Duration>,
}

impl Verdict {
    /// Time after which the same hits can pass: the value of the header `retry-after-ms`, otherwise of `retry-after` if
    /// that is a whole number of seconds, otherwise the longest reset of the limits that refuse. `None` if the service
    /// reports none of these.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        let header = self.retry_after_millis().or_else(|| self.retry_after_header());
        header.or_else(|| self.reset())
    }

    /// The value of the header `Retry-After` for the caller: whole seconds, at least one if they are rounded up.
    #[cfg(feature = "tower")]
    pub(crate) fn retry_after_seconds(&self) -> Option<u64> {
        let header = self.retry_after_header().map(|wait| wait.as_secs());
        let exact = || self.retry_after_millis().or_else(|| self.reset());
        header.or_else(|| exact().map(|wait| seconds_rounded_up(wait).max(1)))
    }

    /// How long to wait before the next check of the same hits: [`retry_after`](Self::retry_after), or the exact time
    /// of the metadata or the reset, if the former is that time rounded up to seconds.
    pub(crate) fn delay(&self) -> Option<Duration> {
        if let Some(exact) = self.retry_after_millis() {
            return Some(exact);
        }
        let reported = self.retry_after()?;
        let exact = [self.exact_wait, self.reset()].into_iter().flatten();
        let is_exact = |it: &Duration| seconds_rounded_up(*it) == seconds_rounded_up(reported);
        Some(exact.filter(|it| !it.is_zero()).find(is_exact).unwrap_or(reported))
    }

    fn retry_after_millis(&self) -> Option<Duration> {
        let text = self.header("retry-after-ms").filter(|text| text.len() <= MILLIS_DIGITS_MAX)?;
        Some(Duration::from_millis(whole_number(text)?))
    }

    fn retry_after_header(&self) -> Option<Duration> {
        let seconds: u32 = whole_number(self.header("retry-after")?)?;
        Some(Duration::from_secs(seconds.into()))
    }

    /// The first header of this name for the response.
    fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.response_headers_to_add.iter();
        let header = headers.find(|header| header.name.eq_ignore_ascii_case(name))?;
        Some(str::from_utf8(&header.value).ok()?.trim())
    }

    /// The longest reset of the limits that refuse.
    fn reset(&self) -> Option<Duration> {
        let refusing = self.statuses.iter().filter(|status| status.code == Code::OverLimit);
        refusing.filter_map(|status| status.until_reset).filter(|it| !it.is_zero()).max()
    }
}

/// A number without a sign, which the parser would accept.
fn whole_number<T: FromStr>(text: &str) -> Option<T> {
    text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}

fn seconds_rounded_up(time: Duration) -> u64 {
    time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0))
}

/// The answer for one descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Whether the descriptor is within its limit.
    pub code: Code,
    /// The limit; `None` if none applies.
    pub limit: Option<Limit>,
    /// Requests left until the reset.
    pub remaining: u32,
    /// Time until the reset.
    pub until_reset: Option<Duration>,
}

impl Status {
    /// Whether an unlimited rule applies. Services report it as the largest possible `limit_remaining`, without a
    /// limit.
    #[must_use]
    pub fn is_unlimited(&self) -> bool {
        self.limit.is_none() && self.remaining == u32::MAX
    }
}

/// The result for a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Code {
    /// Unknown.
    Unknown,
    /// Within the limit.
    Ok,
    /// Over the limit.
    OverLimit,
}

/// The limit that was applied.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Limit {
    /// Requests per window.
    pub requests_per_unit: u32,
    /// The unit of the window; `None` if the service reports none, or an unknown one.
    pub unit: Option<Unit>,
    /// Units per window.
    pub unit_multiplier: u32,
    /// The name of the limit; empty if it has none.
    pub name: String,
}

/// A unit of time of Envoy's rate limit API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// One second.
    Second,
    /// 60 seconds.
    Minute,
    /// 60 minutes.
    Hour,
    /// 24 hours.
    Day,
    /// Seven days.
    Week,
    /// A month, of a length that the service defines.
    Month,
    /// A year, of a length that the service defines.
    Year,
}

impl Unit {
    /// The name of the unit, in the singular.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    /// The number on the wire. The enum of overrides has the same numbers, but no week.
    pub(crate) fn number(self) -> i32 {
        let unit = match self {
            Self::Second => WireUnit::Second,
            Self::Minute => WireUnit::Minute,
            Self::Hour => WireUnit::Hour,
            Self::Day => WireUnit::Day,
            Self::Week => WireUnit::Week,
            Self::Month => WireUnit::Month,
            Self::Year => WireUnit::Year,
        };
        unit.into()
    }

    fn from_number(number: i32) -> Option<Self> {
        match WireUnit::try_from(number).ok()? {
            WireUnit::Unknown => None,
            WireUnit::Second => Some(Self::Second),
            WireUnit::Minute => Some(Self::Minute),
            WireUnit::Hour => Some(Self::Hour),
            WireUnit::Day => Some(Self::Day),
            WireUnit::Week => Some(Self::Week),
            WireUnit::Month => Some(Self::Month),
            WireUnit::Year => Some(Self::Year),
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An HTTP header.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Header {
    /// Its name.
    pub name: String,
    /// Its value, which need not be UTF-8.
    pub value: Bytes,
}

impl From<RateLimitResponse> for Verdict {
    fn from(message: RateLimitResponse) -> Self {
        let headers = |list: Vec<HeaderValue>| list.into_iter().map(Header::from).collect();
        Self {
            allowed: code(message.overall_code) != Code::OverLimit,
            statuses: message.statuses.into_iter().map(Status::from).collect(),
            response_headers_to_add: headers(message.response_headers_to_add),
            request_headers_to_add: headers(message.request_headers_to_add),
            raw_body: message.raw_body,
            exact_wait: message.dynamic_metadata.as_ref().and_then(exact_wait),
        }
    }
}

/// The longest `descriptors[].limits[].retryAfter` of a descriptor over its limit, see the server's
/// `--dynamic-metadata`.
fn exact_wait(metadata: &Struct) -> Option<Duration> {
    let over_limit = list(metadata, "descriptors").filter(
        |it| matches!(kind(it, "code"), Some(Kind::StringValue(code)) if code == "OVER_LIMIT"),
    );
    let waits = over_limit.flat_map(|it| list(it, "limits")).filter_map(|limit| {
        let Some(Kind::NumberValue(seconds)) = kind(limit, "retryAfter") else { return None };
        Duration::try_from_secs_f64(*seconds).ok()
    });
    waits.max()
}

/// The objects of a list.
fn list<'a>(object: &'a Struct, name: &str) -> impl Iterator<Item = &'a Struct> {
    let values: &[Value] = match kind(object, name) {
        Some(Kind::ListValue(ListValue { values })) => values,
        _ => &[],
    };
    values.iter().filter_map(|value| match &value.kind {
        Some(Kind::StructValue(object)) => Some(object),
        _ => None,
    })
}

fn kind<'a>(object: &'a Struct, name: &str) -> Option<&'a Kind> {
    object.fields.get(name)?.kind.as_ref()
}

impl From<DescriptorStatus> for Status {
    fn from(message: DescriptorStatus) -> Self {
        Self {
            code: code(message.code),
            limit: message.current_limit.map(Limit::from),
            remaining: message.limit_remaining,
            // A negative time counts as none.
            until_reset: message.duration_until_reset.and_then(|time| time.try_into().ok()),
        }
    }
}

impl From<RateLimit> for Limit {
    fn from(message: RateLimit) -> Self {
        Self {
            requests_per_unit: message.requests_per_unit,
            unit: Unit::from_number(message.unit),
            unit_multiplier: message.unit_multiplier.unwrap_or(1),
            name: message.name,
        }
    }
}

impl From<HeaderValue> for Header {
    fn from(message: HeaderValue) -> Self {
        let value =
            if message.value.is_empty() { message.raw_value } else { Bytes::from(message.value) };
        Self { name: message.key, value }
    }
}

fn code(number: i32) -> Code {
    match WireCode::try_from(number) {
        Ok(WireCode::Ok) => Code::Ok,
        Ok(WireCode::OverLimit) => Code::OverLimit,
        Ok(WireCode::Unknown) | Err(_) => Code::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_over_limit_refuses() {
        for (number, allowed) in [(0, true), (1, true), (2, false), (9, true)] {
            let message =
                RateLimitResponse { overall_code: number, ..RateLimitResponse::default() };
            assert_eq!(Verdict::from(message).allowed, allowed, "{number}");
        }
    }

    #[test]
    fn units_map_to_their_wire_numbers() {
        for number in 1..=7 {
            assert_eq!(Unit::from_number(number).unwrap().number(), number);
        }
        assert_eq!(Unit::from_number(0), None);
        assert_eq!(Unit::from_number(8), None);
    }

    #[test]
    fn retry_after_is_the_longest_wait_of_the_refusing_limits() {
        let status = |code, seconds| Status {
            code,
            limit: None,
            remaining: 0,
            until_reset: Some(Duration::from_secs(seconds)),
        };
        let mut verdict = Verdict::from(RateLimitResponse::default());
        assert_eq!(verdict.retry_after(), None);
        verdict.statuses =
            vec![status(Code::OverLimit, 5), status(Code::OverLimit, 42), status(Code::Ok, 3600)];
        assert_eq!(verdict.retry_after(), Some(Duration::from_secs(42)));
    }

    /// A refusal with these seconds until the reset and in the dynamic metadata, and this `Retry-After`.
    fn refusal(reset: f64, metadata: Option<&str>, header: Option<&str>) -> Verdict {
        let headers: Vec<_> = header.map(|value| ("Retry-After", value)).into_iter().collect();
        refusal_with(reset, metadata, &headers)
    }

    fn refusal_with(reset: f64, metadata: Option<&str>, headers: &[(&str, &str)]) -> Verdict {
        let string = |text: &str| Kind::StringValue(text.to_owned());
        let object = |fields: Vec<(&str, Kind)>| Struct {
            fields: fields
                .into_iter()
                .map(|(name, kind)| (name.to_owned(), Value { kind: Some(kind) }))
                .collect(),
        };
        let list = |it: Struct| {
            let values = vec![Value { kind: Some(Kind::StructValue(it)) }];
            Kind::ListValue(ListValue { values })
        };
        let metadata = metadata.map(|seconds| {
            let limit = object(vec![("retryAfter", Kind::NumberValue(seconds.parse().unwrap()))]);
            let descriptor = object(vec![("code", string("OVER_LIMIT")), ("limits", list(limit))]);
            object(vec![("descriptors", list(descriptor))])
        });
        let status = DescriptorStatus {
            code: WireCode::OverLimit.into(),
            duration_until_reset: Duration::from_secs_f64(reset).try_into().ok(),
            ..DescriptorStatus::default()
        };
        let headers = headers.iter().map(|(name, value)| HeaderValue {
            key: (*name).to_owned(),
            value: (*value).to_owned(),
            ..HeaderValue::default()
        });
        Verdict::from(RateLimitResponse {
            overall_code: WireCode::OverLimit.into(),
            statuses: vec![status],
            dynamic_metadata: metadata,
            response_headers_to_add: headers.collect(),
            ..RateLimitResponse::default()
        })
    }

    #[test]
    fn delay_is_exact_where_the_reported_time_is_rounded() {
        for (reset, metadata, header, delay) in [
            (1.0, None, None, 1_000),
            (1.0, Some("0.1"), None, 100),
            (1.0, Some("0.1"), Some("1"), 100),
            (0.4, None, Some("1"), 400),
            (0.4, Some("0.1"), Some("1"), 100),
            // The header and the metadata are about different times.
            (60.0, Some("0.1"), Some("6"), 6_000),
            (1.0, Some("7.5"), None, 1_000),
            (1.0, Some("-1"), None, 1_000),
            (1.0, Some("nan"), None, 1_000),
            (0.0, Some("0.1"), Some("0"), 0),
        ] {
            let verdict = refusal(reset, metadata, header);
            let what = format!("{reset} {metadata:?} {header:?}");
            assert_eq!(verdict.delay(), Some(Duration::from_millis(delay)), "{what}");
        }
        assert_eq!(refusal(0.0, Some("0.1"), None).delay(), None);
    }

    #[test]
    fn milliseconds_of_a_header_win() {
        for (millis, retry_after, wait) in [
            ("120", Some("1"), 120),
            ("0", Some("1"), 0),
            ("120", None, 120),
            ("999999999999", None, 999_999_999_999),
            ("1000000000000", Some("1"), 1_000),
            ("1.5", Some("1"), 1_000),
            ("+120", None, 60_000),
            ("", None, 60_000),
        ] {
            let mut headers = vec![("Retry-After-Ms", millis)];
            headers.extend(retry_after.map(|seconds| ("retry-after", seconds)));
            let verdict = refusal_with(60.0, None, &headers);
            assert_eq!(verdict.retry_after(), Some(Duration::from_millis(wait)), "{millis:?}");
        }
        // The metadata are not looked at.
        let verdict = refusal_with(60.0, Some("0.1"), &[("retry-after-ms", "120")]);
        assert_eq!(verdict.delay(), Some(Duration::from_millis(120)));
    }

    #[cfg(feature = "tower")]
    #[test]
    fn seconds_for_the_caller_are_those_of_the_header_or_rounded_up() {
        for (headers, seconds) in [
            (&[][..], 60),
            (&[("retry-after-ms", "1200")], 2),
            (&[("retry-after-ms", "0")], 1),
            (&[("retry-after-ms", "1200"), ("retry-after", "7")], 7),
            (&[("retry-after", "0")], 0),
        ] {
            let verdict = refusal_with(60.0, None, headers);
            assert_eq!(verdict.retry_after_seconds(), Some(seconds), "{headers:?}");
        }
    }

    #[test]
    fn only_digits_are_seconds_of_a_header() {
        for (header, seconds) in [
            ("6", 6),
            (" 6 ", 6),
            ("0", 0),
            ("+6", 60),
            ("-6", 60),
            ("6.5", 60),
            ("", 60),
            ("4294967296", 60),
        ] {
            let verdict = refusal(60.0, None, Some(header));
            assert_eq!(verdict.retry_after(), Some(Duration::from_secs(seconds)), "{header:?}");
        }
    }
}
