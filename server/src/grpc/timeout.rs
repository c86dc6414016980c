//! How long a caller waits.

use std::time::Duration;

use http::{HeaderMap, HeaderName};

/// The least that is kept of the caller's time for the way back.
const MARGIN_MIN: Duration = Duration::from_millis(2);

static GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// After what time the caller gives up. `None` if it says nothing, or nothing that can be read.
pub(crate) fn of_caller(headers: &HeaderMap) -> Option<Duration> {
    parsed(headers.get(&GRPC_TIMEOUT)?.to_str().ok()?)
}

/// The part of a caller's time that is left for deciding: a quarter of it, and at least 2 ms, is kept for the way.
pub(crate) fn for_decision(timeout: Duration) -> Duration {
    timeout.saturating_sub((timeout / 4).max(MARGIN_MIN))
}

/// What is left for deciding, if the caller says how long it waits.
pub(crate) fn left(headers: &HeaderMap) -> Option<Duration> {
    of_caller(headers).map(for_decision)
}

/// Up to eight digits and a unit, as gRPC over HTTP/2 has it.
fn parsed(text: &str) -> Option<Duration> {
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

    fn left_of(timeout: &str) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.insert(&GRPC_TIMEOUT, timeout.parse().ok()?);
        left(&headers)
    }

    #[test]
    fn a_margin_is_kept() {
        assert_eq!(left_of("20m"), Some(Duration::from_millis(15)));
        assert_eq!(left_of("4000u"), Some(Duration::from_millis(2)));
        assert_eq!(left_of("1m"), Some(Duration::ZERO));
        assert_eq!(left_of("1S"), Some(Duration::from_millis(750)));
        assert_eq!(left_of("99999999H"), Some(Duration::from_secs(99_999_999 * 2_700)));
        for wrong in ["", "m", "20", "123456789m", "-1m", "1é", "1.5S"] {
            assert_eq!(left_of(wrong), None, "{wrong:?}");
        }
    }
}
