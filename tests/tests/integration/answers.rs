//! Headers for clients of a real Envoy, and dynamic metadata for Envoy.

use serde_json::json;
use sluicegate_tests::{Answer, Listener, long_windows, until_long_window_ends};

use crate::envoy::{Gateway, by_user, user};

/// A server, and an Envoy without rate limit headers of its own that sends `x-user` as descriptor.
async fn gateway(limits: &str, flags: &[&str]) -> Gateway {
    let listener = by_user().filter("enable_x_ratelimit_headers", json!("OFF"));
    Gateway::with_flags(limits, flags, &[listener]).await
}

async fn ask(gateway: &Gateway) -> Answer {
    gateway.get("/", &[("x-user", b"ann")]).await
}

/// Names of all rate limit headers.
const HEADERS: [&str; 6] = [
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "ratelimit-policy",
    "ratelimit",
    "retry-after",
];

/// The rate limit headers of a response.
fn rate_limit_headers(answer: &Answer) -> Vec<(&'static str, &str)> {
    HEADERS.into_iter().filter_map(|name| Some((name, answer.header(name)?))).collect()
}

/// The same, with `end` in place of the seconds until the long window ends, which may differ by one.
fn headers_until_end(answer: &Answer) -> Vec<(&'static str, String)> {
    let left = until_long_window_ends();
    let around = left.saturating_sub(2)..=left + 60;
    let until_end = |text: &str| {
        let numbers = text.split(|it: char| !it.is_ascii_digit());
        let seconds = numbers.filter(|it| it.parse().is_ok_and(|it| around.contains(&it)));
        seconds.fold(text.to_owned(), |text, seconds| text.replace(seconds, "end"))
    };
    rate_limit_headers(answer).into_iter().map(|(name, value)| (name, until_end(value))).collect()
}

fn expected(headers: &[(&'static str, &str)]) -> Vec<(&'static str, String)> {
    headers.iter().map(|&(name, value)| (name, value.to_owned())).collect()
}

const TWO_A_DAY: &str = "
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 2, name: daily}
";

/// A descriptor with two limits. A long window ends in more than a day, and so not in the 23 hours of the other.
const TWO_LIMITS: &str = "
domain: edge
descriptors:
  - key: user
    limits:
      - {unit: day, requests_per_unit: 2, name: daily}
      - {window: 23h, requests_per_unit: 5, algorithm: sliding_window_log}
";

#[tokio::test]
async fn no_headers_or_metadata_are_sent_by_default() {
    let gateway = gateway(TWO_A_DAY, &[]).await;
    for status in [200, 200, 429] {
        let answer = ask(&gateway).await;
        assert_eq!((answer.status, rate_limit_headers(&answer)), (status, vec![]));
    }
    gateway.assert_all_decided(2, 1).await;
}

#[tokio::test]
async fn draft_03_shows_the_limit_closest_to_refusing() {
    let gateway = gateway(TWO_A_DAY, &["--response-headers", "x-ratelimit-draft-03"]).await;
    for left in ["1", "0"] {
        let answer = ask(&gateway).await;
        assert_eq!(answer.status, 200);
        let headers = expected(&[
            ("x-ratelimit-limit", "2"),
            ("x-ratelimit-remaining", left),
            ("x-ratelimit-reset", "end"),
        ]);
        assert_eq!(headers_until_end(&answer), headers);
    }
    let refused = ask(&gateway).await;
    assert_eq!(refused.status, 429);
    let headers = expected(&[
        ("x-ratelimit-limit", "2"),
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-reset", "end"),
        ("retry-after", "end"),
    ]);
    assert_eq!(headers_until_end(&refused), headers);
    gateway.assert_all_decided(2, 1).await;
}

#[tokio::test]
async fn draft_03_headers_can_be_renamed() {
    let format = ["--response-headers", "x-ratelimit-draft-03"];
    let names = ["--limit-header", "X-Quota", "--remaining-header", "X-Left", "--reset-header"];
    let gateway = gateway(TWO_A_DAY, &[&format[..], &names, &["X-Wait"]].concat()).await;
    let answer = ask(&gateway).await;
    assert_eq!(answer.header("x-quota"), Some("2"));
    assert_eq!(answer.header("x-left"), Some("1"));
    assert!(answer.number("x-wait") > 0);
    assert_eq!(rate_limit_headers(&answer), []);
}

#[tokio::test]
async fn draft_03_shows_all_limits_of_a_descriptor() {
    let gateway = gateway(TWO_LIMITS, &["--response-headers", "x-ratelimit-draft-03"]).await;
    let shown = long_windows("2, 2;w=86400, 5;w=82800");
    for (status, left) in [(200, "1"), (200, "0"), (429, "0")] {
        let answer = ask(&gateway).await;
        assert_eq!(answer.status, status);
        assert_eq!(answer.header("x-ratelimit-limit"), Some(&*shown));
        assert_eq!(answer.header("x-ratelimit-remaining"), Some(left));
    }
}

#[tokio::test]
async fn draft_11_shows_every_limit_by_name() {
    let gateway = gateway(TWO_LIMITS, &["--response-headers", "ratelimit-draft-11"]).await;
    let policy = &*long_windows("\"daily\";q=2;w=86400, \"5-per-82800s\";q=5;w=82800");
    for (daily, other) in [(1, 4), (0, 3)] {
        let answer = ask(&gateway).await;
        assert_eq!(answer.status, 200);
        let left = format!("\"daily\";r={daily};t=end, \"5-per-82800s\";r={other};t=82800");
        let headers = expected(&[("ratelimit-policy", policy), ("ratelimit", &left)]);
        assert_eq!(headers_until_end(&answer), headers);
    }
    let refused = ask(&gateway).await;
    assert_eq!(refused.status, 429);
    let limits = refused.header("ratelimit").unwrap();
    assert!(limits.starts_with("\"daily\";r=0;t="), "{limits}");
    assert!(limits.contains("\"5-per-82800s\";r=3;t="), "{limits}");
    let wait = refused.header("retry-after").unwrap();
    assert!(limits.contains(&format!("\"daily\";r=0;t={wait},")), "{limits}, {wait}");
    gateway.assert_all_decided(2, 1).await;
}

#[tokio::test]
async fn envoy_receives_the_metadata_of_rules_that_allow() {
    let limits = "
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 1}
    metadata: {plan: gold}
";
    let format = "%DYNAMIC_METADATA(envoy.filters.http.ratelimit:metadata:plan)%";
    let listener = Listener::new("main", "edge")
        .route("/", &json!([{"actions": [user()]}]))
        .shown("x-plan", format);
    let gateway = Gateway::with_flags(limits, &["--dynamic-metadata"], &[listener]).await;
    let answer = ask(&gateway).await;
    assert_eq!((answer.status, answer.header("x-plan")), (200, Some("gold")));
    let refused = ask(&gateway).await;
    assert_eq!((refused.status, refused.header("x-plan")), (429, None));
}
