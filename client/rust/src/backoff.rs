//! Delays of callers that a service refused.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, header::RETRY_AFTER};

const BASE: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(30);
/// The least jitter for callers that a service asked to wait for the same time.
const JITTER_MIN: Duration = Duration::from_millis(1);

/// How long the caller of a rate limited service waits before its next attempt.
///
/// The delay is `retry_after`, the time that the service asked to wait, and a random time of up to
/// 100 ms · 2^`attempt`, at most 30 s: callers with the same `retry_after` do not return together. `attempt` is the
/// number of attempts before this one.
///
/// ```
/// # use std::time::Duration;
/// # fn call() -> http::Response<()> { http::Response::new(()) }
/// # async fn example() {
/// for attempt in 0..5 {
///     let response: http::Response<()> = call();
///     if response.status() != http::StatusCode::TOO_MANY_REQUESTS {
///         break;
///     }
///     let retry_after = sluicegate_client::parse_retry_after(response.headers());
///     tokio::time::sleep(sluicegate_client::backoff(retry_after, attempt)).await;
/// }
/// # }
/// ```
#[must_use]
pub fn backoff(retry_after: Option<Duration>, attempt: u32) -> Duration {
    let longest = BASE.saturating_mul(2_u32.saturating_pow(attempt)).min(LONGEST);
    retry_after.unwrap_or_default().saturating_add(random(longest))
}

/// The time that a response asks to wait with its header `Retry-After`, in seconds or as a date. `None` without a
/// valid header.
#[must_use]
pub fn parse_retry_after(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if value.bytes().all(|byte| byte.is_ascii_digit()) {
        return value.parse().ok().map(Duration::from_secs);
    }
    let date = httpdate::parse_http_date(value).ok()?;
    Some(date.duration_since(SystemTime::now()).unwrap_or_default())
}

/// A delay of up to a tenth more, and at least [`JITTER_MIN`].
pub(crate) fn with_jitter(delay: Duration) -> Duration {
    delay.saturating_add(random(delay / 10).max(JITTER_MIN))
}

/// The delay after a refusal without a time, and this number of them before it.
pub(crate) fn without_retry_after(refusals: u32) -> Duration {
    backoff(None, refusals).max(JITTER_MIN)
}

fn random(longest: Duration) -> Duration {
    longest.mul_f64(fastrand::f64())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    #[test]
    fn backoff_is_never_shorter_than_asked() {
        for (retry_after, attempt, least, longest_beyond) in [
            (None, 0, 0.0, 0.1),
            (None, 3, 0.0, 0.8),
            (None, u32::MAX, 0.0, 30.0),
            (Some(seconds(1.0)), 0, 1.0, 0.1),
            (Some(seconds(1.0)), 5, 1.0, 3.2),
            (Some(seconds(3_600.0)), 2, 3_600.0, 0.4),
        ] {
            let delays: HashSet<Duration> =
                (0..200).map(|_| backoff(retry_after, attempt)).collect();
            let range = seconds(least)..=seconds(least + longest_beyond);
            assert!(delays.iter().all(|it| range.contains(it)), "{retry_after:?} {attempt}");
            assert!(delays.len() > 100, "{delays:?}");
        }
        assert_eq!(backoff(Some(Duration::MAX), 1), Duration::MAX);
    }

    #[test]
    fn jitter_is_never_early() {
        for delay in [Duration::ZERO, seconds(0.001), seconds(60.0)] {
            for _ in 0..200 {
                let jittered = with_jitter(delay);
                assert!(jittered >= delay + JITTER_MIN, "{delay:?}: {jittered:?}");
                assert!(
                    jittered <= delay + (delay / 10).max(JITTER_MIN),
                    "{delay:?}: {jittered:?}"
                );
            }
        }
        assert_eq!(with_jitter(Duration::MAX), Duration::MAX);
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let parse = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, value.parse().unwrap());
            parse_retry_after(&headers)
        };
        assert_eq!(parse("7"), Some(seconds(7.0)));
        assert_eq!(parse("Wed, 21 Oct 2015 07:28:00 GMT"), Some(Duration::ZERO));
        for invalid in ["", "soon", "-7", "+7", "7.5", "99999999999999999999"] {
            assert_eq!(parse(invalid), None, "{invalid}");
        }
        let later = SystemTime::now() + seconds(3_600.0);
        let delay = parse(&httpdate::fmt_http_date(later)).unwrap();
        assert!(delay > seconds(3_590.0) && delay <= seconds(3_600.0), "{delay:?}");
        assert_eq!(parse_retry_after(&HeaderMap::new()), None);
    }
}
