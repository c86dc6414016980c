//! Headers for clients of a real Envoy, and dynamic metadata for Envoy.

use std::time::SystemTime;

use serde_json::json;
use sluicegate_tests::{
    Answer, Listener, Sluicegate, hit, long_window, long_windows, request, until_long_window_ends,
};

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
const HEADERS: [&str; 7] = [
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "ratelimit-policy",
    "ratelimit",
    "retry-after",
    "retry-after-ms",
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

/// Seconds since the Unix epoch.
fn unix_time() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
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
    assert_eq!(refused.number("retry-after-ms").div_ceil(1_000).to_string(), wait);
    assert!(limits.contains(&format!("\"daily\";r=0;t={wait},")), "{limits}, {wait}");
    gateway.assert_all_decided(2, 1).await;
}

#[tokio::test]
async fn draft_11_lists_the_limit_that_refuses_even_after_many_others() {
    let limits = "
domain: api
descriptors:
  - {key: open, rate_limit: {unit: hour, requests_per_unit: 9}}
  - {key: closed, rate_limit: {unit: hour, requests_per_unit: 0, name: closed}}
";
    let server = Sluicegate::start(limits, &["--response-headers", "ratelimit-draft-11"]).await;
    let values: Vec<_> = (0..40).map(|number| number.to_string()).collect();
    let open = values.iter().map(|value| ("open", &**value));
    let entries: Vec<_> = open.chain([("closed", "x")]).map(|entry| [entry]).collect();
    let descriptors: Vec<_> = entries.iter().map(|entry| &entry[..]).collect();
    let answer = server.should_rate_limit(request(&descriptors)).await.unwrap();
    let listed = &answer.response_headers_to_add[1].value;
    assert!(listed.starts_with("\"closed\";r=0, \"9-per-3600s\";r=9;t="), "{listed}");
    assert_eq!(listed.matches(";r=").count(), 32);
}

#[tokio::test]
async fn unix_format_shows_plain_numbers_and_the_time_of_the_reset() {
    let gateway = gateway(TWO_LIMITS, &["--response-headers", "x-ratelimit-unix"]).await;
    let window = u64::from(long_window().seconds());
    for (status, left) in [(200, 1), (200, 0), (429, 0)] {
        let answer = ask(&gateway).await;
        assert_eq!(answer.status, status);
        assert_eq!(answer.number("x-ratelimit-limit"), 2);
        assert_eq!(answer.number("x-ratelimit-remaining"), left);
        // The end of a fixed window, to the second.
        let reset = answer.number("x-ratelimit-reset");
        assert_eq!(reset % window, 0);
        assert!(reset.abs_diff(unix_time() + until_long_window_ends()) <= 2, "{reset}");
        let has_wait = ["retry-after", "retry-after-ms"].map(|it| answer.header(it).is_some());
        assert_eq!(has_wait, [status == 429; 2]);
    }
    gateway.assert_all_decided(2, 1).await;
}

#[tokio::test]
async fn unix_format_rounds_the_reset_of_other_algorithms_up() {
    let limits = "
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 1, algorithm: gcra}
";
    let gateway = gateway(limits, &["--response-headers", "x-ratelimit-unix"]).await;
    let before = unix_time();
    for status in [200, 429] {
        let answer = ask(&gateway).await;
        assert_eq!(answer.status, status);
        let reset = answer.number("x-ratelimit-reset");
        assert!((before + 3_600..=unix_time() + 3_601).contains(&reset), "{before} {reset}");
    }
}

/// A request that a rule with a short wait and one with a long wait refuse. The first has fewer hits remaining.
#[tokio::test]
async fn unix_format_describes_the_limit_that_refuses_longest() {
    let limits = "
domain: api
descriptors:
  - {key: shadow, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 0}}
  - {key: open, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: long, rate_limit: {window: 2d, requests_per_unit: 3, algorithm: gcra, burst: 1}}
  - {key: short, rate_limit: {unit: hour, requests_per_unit: 4, algorithm: gcra, burst: 1}}
";
    let asked = |keys: &[&str]| {
        let descriptors: Vec<_> = keys.iter().map(|key| [(*key, "x")]).collect();
        let descriptors: Vec<_> = descriptors.iter().map(|it| &it[..]).collect();
        request(&descriptors)
    };
    for (format, refused_by, allowed_by) in
        [("x-ratelimit-unix", "3", "4"), ("x-ratelimit-draft-03", "4", "0")]
    {
        let server = Sluicegate::start(limits, &["--response-headers", format]).await;
        let limit = async |keys: &[&str]| {
            let answer = server.should_rate_limit(asked(keys)).await.unwrap();
            answer.response_headers_to_add.into_iter().next().unwrap().value
        };
        // Rules in shadow mode refuse nothing, so clients need not slow down for them.
        assert_eq!(limit(&["shadow", "short"]).await, allowed_by, "{format}");
        assert_eq!(limit(&["long"]).await, "3");
        assert_eq!(limit(&["open", "long", "short"]).await, refused_by, "{format}");
    }
}

#[tokio::test]
async fn wait_in_milliseconds_is_rounded_up() {
    let limits = "
domain: api
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 3600, algorithm: gcra, burst: 1}}
  - {key: closed, rate_limit: {unit: hour, requests_per_unit: 0}}
";
    for (format, sends) in
        [("x-ratelimit-unix", true), ("ratelimit-draft-11", true), ("x-ratelimit-draft-03", false)]
    {
        let server = Sluicegate::start(limits, &["--response-headers", format]).await;
        let waits = async |key: &str| {
            let answer = server.should_rate_limit(hit(key, "x")).await.unwrap();
            let value = |name: &str| {
                let header = answer.response_headers_to_add.iter().find(|it| it.key == name);
                header.map(|it| it.value.parse::<u64>().unwrap())
            };
            (value("retry-after"), value("retry-after-ms"))
        };
        assert_eq!(waits("user").await, (None, None));
        // Refills within a second of the first hit.
        let (seconds, milliseconds) = waits("user").await;
        assert_eq!((seconds, milliseconds.is_some()), (Some(1), sends), "{format}");
        assert!(milliseconds.is_none_or(|it| (1..=1_000).contains(&it)), "{milliseconds:?}");
        assert_eq!(waits("closed").await, (None, None), "waiting does not help");
    }
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
