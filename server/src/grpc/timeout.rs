//! The caller's timeout, from the header `grpc-timeout`.

use std::time::Duration;

use http::{HeaderMap, HeaderName};

/// The least part of the caller's timeout that is reserved for sending the answer.
const MARGIN_MIN: Duration = Duration::from_millis(2);

static GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// The timeout of the caller; `None` if it has none, or an invalid one.
pub(crate) fn caller_timeout(headers: &HeaderMap) -> Option<Duration> {
    parse(headers.get(&GRPC_TIMEOUT)?.to_str().ok()?)
}

/// The part of the caller's timeout for the decision. A quarter, and at least 2 ms, is reserved for sending the answer.
pub(crate) fn for_decision(timeout: Duration) -> Duration {
    timeout.saturating_sub((timeout / 4).max(MARGIN_MIN))
}

/// The time for the decision; `None` if the caller has no timeout.
pub(crate) fn decision_timeout(headers: &HeaderMap) -> Option<Duration> {
    caller_timeout(headers).map(for_decision)
}

/// Parses up to eight digits and a unit, the syntax of gRPC over HTTP/2.
fn parse(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3_600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision_timeout_of(timeout: &str) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.insert(&GRPC_TIMEOUT, timeout.parse().ok()?);
        decision_timeout(&headers)
    }

    #[test]
    fn a_margin_is_reserved() {
        assert_eq!(decision_timeout_of("20m"), Some(Duration::from_millis(15)));
        assert_eq!(decision_timeout_of("4000u"), Some(Duration::from_millis(2)));
        assert_eq!(decision_timeout_of("1m"), Some(Duration::ZERO));
        assert_eq!(decision_timeout_of("1S"), Some(Duration::from_millis(750)));
        let longest = Duration::from_secs(99_999_999 * 2_700);
        assert_eq!(decision_timeout_of("99999999H"), Some(longest));
        for wrong in ["", "m", "20", "123456789m", "-1m", "1é", "1.5S"] {
            assert_eq!(decision_timeout_of(wrong), None, "{wrong:?}");
        }
    }
}
