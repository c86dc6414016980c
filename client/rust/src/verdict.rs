//! Answers of a rate limit service.

use std::{fmt, time::Duration};

use bytes::Bytes;
use sluicegate_proto::envoy::{
    config::core::v3::HeaderValue,
    service::ratelimit::v3::{
        RateLimitResponse,
        rate_limit_response::{
            Code as WireCode, DescriptorStatus, RateLimit, rate_limit::Unit as WireUnit,
        },
    },
};

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
}

impl Verdict {
    /// Time until the last of the refusing limits resets. `None` if no limit refuses, or the service reports no times.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        let refusing = self.statuses.iter().filter(|status| status.code == Code::OverLimit);
        refusing.filter_map(|status| status.until_reset).max()
    }
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
        }
    }
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
}
