//! Attacks with large messages and values.

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use prost::Message as _;
use serde_json::{Value, json};
use sluicegate_proto::envoy::{
    extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
    service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse,
        rate_limit_response::{Code, DescriptorStatus},
    },
};
use sluicegate_tests::{
    Attack, Caller, Envoy, Listener, Sluicegate, Upstream, bootstrap, framed, hit, request, tools,
};
use tokio::task::JoinSet;

const LIMITS: &str = "
domain: api
descriptors:
  - key: healthy
    rate_limit: {unlimited: true}
  - key: value
    detailed_metric: true
    rate_limit: {unit: year, requests_per_unit: 1000000}
  - key: login
    value: \"/login*\"
    rate_limit: {unit: year, requests_per_unit: 1}
";

/// Concurrent attackers.
const ATTACKERS: usize = 4;

/// Requests of each attacker.
const ATTACKS: usize = 10;

/// Default maximum of the bytes of a message.
const MESSAGE: usize = 4 << 20;

/// Maximum growth of memory during an attack: the messages of all attackers while they are read, decoded and answered,
/// and what the allocator keeps.
const GROWTH_MAX: u64 = 192 << 20;

fn entries(count: usize, value: &[u8]) -> RateLimitDescriptor {
    let entry = Entry { key: "value".into(), value: value.to_vec().into() };
    RateLimitDescriptor { entries: vec![entry; count], ..RateLimitDescriptor::default() }
}

fn message(descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest { domain: "api".to_owned(), descriptors, hits_addend: 0 }
}

/// A value that is not UTF-8, of the maximum length of Envoy's headers.
fn no_text() -> Vec<u8> {
    vec![0xff; 59_000]
}

/// Runs attackers beside a healthy client.
async fn attack<F: Future<Output = ()> + Send + 'static>(
    server: &Sluicegate,
    name: &str,
    once: impl Fn() -> F + Send + Sync + 'static,
) {
    let attack = Attack::start(name, server, GROWTH_MAX).await;
    let once = Arc::new(once);
    let started = Instant::now();
    let mut attackers = JoinSet::new();
    for _ in 0..ATTACKERS {
        let once = Arc::clone(&once);
        attackers.spawn(async move {
            for _ in 0..ATTACKS {
                once().await;
            }
        });
    }
    attackers.join_all().await;
    println!("{name}: {} attacks in {:?}", ATTACKERS * ATTACKS, started.elapsed());
    // Close connections that are still open.
    drop(once);
    attack.end(server).await;
}

/// Attacks with a gRPC message, which is encoded once. Each call must get `code`.
async fn attack_grpc(server: &Sluicegate, name: &str, message: RateLimitRequest, code: Code) {
    attack_body(server, name, framed(&message), code).await;
}

/// Attacks with the body of a gRPC call. Each call must get `code`.
async fn attack_body(server: &Sluicegate, name: &str, body: Bytes, code: Code) {
    let address = server.grpc.clone();
    attack(server, name, move || {
        let (address, body) = (address.clone(), body.clone());
        async move {
            let call = Caller::connect(&address).await.begin().await.unwrap();
            let (status, answer) = call.send([body], true).await.unwrap();
            assert_eq!(status, "0");
            let answer = RateLimitResponse::decode(&answer[5..]).unwrap();
            assert_eq!(answer.overall_code(), code);
        }
    })
    .await;
}

async fn over_bound(server: &Sluicegate, bound: &str) -> f64 {
    server.metric(&format!("sluicegate_requests_over_bound_total{{bound=\"{bound}\"}}")).await
}

fn attacks() -> f64 {
    f64::from(u32::try_from(ATTACKERS * ATTACKS).unwrap())
}

// === Messages ===

#[tokio::test(flavor = "multi_thread")]
async fn millions_of_empty_descriptors_are_refused_undecoded() {
    let server = Sluicegate::start(LIMITS, &[]).await;
    let message = message(vec![RateLimitDescriptor::default(); (MESSAGE - 100) / 2]);
    let body = framed(&message);
    attack_body(&server, "2 million empty descriptors", body, Code::OverLimit).await;
    assert_eq!(over_bound(&server, "descriptors").await, attacks());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_maximum_of_entries_does_not_delay_others() {
    let server = Sluicegate::start(LIMITS, &[]).await;
    let message = message(vec![entries(64, b"x"); 256]);
    attack_grpc(&server, "256 descriptors of 64 entries", message, Code::Ok).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_json_bodies_do_not_delay_others() {
    let server = Sluicegate::start(LIMITS, &[]).await;
    let list = |element: &str, count| vec![element; count].join(",");
    let of_descriptors = |list: &str| format!("{{\"domain\":\"api\",\"descriptors\":[{list}]}}");
    let long = "x".repeat(MESSAGE - 200);
    let bodies = [
        ("4 MiB of {}", list("{}", MESSAGE / 3).replace(',', ""), 400),
        ("4 MiB of {} as descriptors", of_descriptors(&list("{}", (MESSAGE - 100) / 3)), 429),
        (
            "4 MiB of {} as entries",
            of_descriptors(&format!("{{\"entries\":[{}]}}", list("{}", (MESSAGE - 100) / 3))),
            429,
        ),
        ("4 MiB of []", format!("{{\"domain\":[{}]}}", list("[]", (MESSAGE - 100) / 3)), 400),
        ("a domain of 4 MiB", format!("{{\"domain\":\"{long}\"}}"), 400),
        ("more than 4 MiB", " ".repeat(MESSAGE + 1), 429),
    ];
    for (name, body, expected) in bodies {
        let (url, client) = (format!("http://{}/json", server.http), reqwest::Client::new());
        let body = Bytes::from(body);
        attack(&server, name, move || {
            let asked = client.post(&url).body(body.clone()).send();
            async move { assert_eq!(asked.await.unwrap().status().as_u16(), expected) }
        })
        .await;
    }
    assert_eq!(over_bound(&server, "descriptors").await, attacks());
    assert_eq!(over_bound(&server, "entries").await, attacks());
    assert_eq!(over_bound(&server, "message_bytes").await, attacks());
}

// === Values ===

#[tokio::test(flavor = "multi_thread")]
async fn long_binary_values_do_not_delay_others() {
    for (name, flags) in
        [("60 × 59 kB of 0xFF", &[][..]), ("with metadata", &["--dynamic-metadata"])]
    {
        let server = Sluicegate::start(LIMITS, flags).await;
        let message = message(vec![entries(1, &no_text()); 60]);
        attack_grpc(&server, name, message, Code::Ok).await;
        let (_, metrics) = server.get("/metrics").await;
        let hits = 60.0 * attacks();
        let series: Vec<_> = metrics
            .lines()
            .filter(|line| line.starts_with("sluicegate_hits_total{domain=\"api\",key=\"value_%#"))
            .collect();
        assert!(series.len() == 1 && series[0].ends_with(&format!("}} {hits}")), "{series:?}");
        assert!(!metrics.contains('\u{fffd}'), "{metrics}");
    }
}

/// If long values matched other rules than short ones, clients could bypass a rule.
#[tokio::test]
async fn long_values_match_the_same_patterns_as_short_ones() {
    let server = Sluicegate::start(LIMITS, &[]).await;
    let long = ["/login?", &"x".repeat(59_000)].concat();
    for path in ["/login", &long] {
        for expected in [Code::Ok, Code::OverLimit] {
            let answer = server.should_rate_limit(hit("login", path)).await.unwrap();
            assert_eq!(answer.overall_code(), expected, "{} bytes", path.len());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_patterns_on_long_values_are_bounded() {
    let pattern = |number| {
        format!("  - {{key: value, value: '*a{number:04}*b*', rate_limit: {{unlimited: true}}}}\n")
    };
    let patterns: String = (0..1_000).map(pattern).collect();
    let server = Sluicegate::start(&format!("{LIMITS}{patterns}"), &[]).await;
    // The most bytes that all patterns together may search.
    let searched = message(vec![entries(1, &[b'a'; 16_000]); 60]);
    attack_grpc(&server, "60 × 16 kB for 1000 patterns", searched, Code::Ok).await;
    assert_eq!(over_bound(&server, "searched_bytes").await, 0.0);
    let too_long = message(vec![entries(1, &[b'a'; 59_000]); 60]);
    attack_grpc(&server, "60 × 59 kB for 1000 patterns", too_long, Code::OverLimit).await;
    assert_eq!(over_bound(&server, "searched_bytes").await, attacks());
    // The pattern matches a value of any length up to the bound.
    let mut met = vec![b'x'; 15_000];
    met.extend_from_slice(b"a0999");
    met.extend(vec![b'b'; 100]);
    let answer = server.should_rate_limit(message(vec![entries(1, &met)])).await.unwrap();
    assert_eq!(answer.statuses[0].limit_remaining, u32::MAX);
}

// === Refusals by bounds ===

#[tokio::test]
async fn refusals_by_bounds_are_counted_and_logged_once_a_minute() {
    let flags = ["--request-max-bytes", "1000"];
    let server = Sluicegate::start(LIMITS, &flags).await;
    let ask = async |message: RateLimitRequest| -> RateLimitResponse {
        server.should_rate_limit(message).await.unwrap()
    };
    // The domain and the key.
    let fits = vec![b'x'; 1000 - 8];
    assert_eq!(ask(message(vec![entries(1, &fits)])).await.overall_code(), Code::Ok);
    for _ in 0..3 {
        let denied = ask(message(vec![entries(1, &[b'x'; 1000 - 7])])).await;
        assert_eq!(denied.overall_code(), Code::OverLimit);
        let codes: Vec<_> = denied.statuses.iter().map(DescriptorStatus::code).collect();
        assert_eq!(codes, [Code::OverLimit]);
    }
    assert_eq!(ask(message(vec![entries(65, b"")])).await.overall_code(), Code::OverLimit);
    assert_eq!(ask(message(vec![entries(1, b""); 257])).await.overall_code(), Code::OverLimit);
    for (bound, times) in [("bytes", 3.0), ("entries", 1.0), ("descriptors", 1.0)] {
        assert_eq!(over_bound(&server, bound).await, times, "{bound}");
    }
    assert_eq!(server.metric("sluicegate_requests_invalid_total").await, 0.0);
    let log = server.process.printed("requests exceed a bound", 3).await;
    let warned: Vec<_> =
        log.lines().filter(|line| line.contains("requests exceed a bound")).collect();
    assert_eq!(warned.len(), 3, "one for each bound: {warned:?}");
    for line in
        ["bound=\"bytes\" max=1000", "bound=\"entries\" max=64", "bound=\"descriptors\" max=256"]
    {
        assert!(warned.iter().any(|warned| warned.contains(line)), "{line}: {warned:?}");
    }
}

#[tokio::test]
async fn in_shadow_mode_bounds_refuse_nothing() {
    let server = Sluicegate::start(LIMITS, &["--shadow-mode"]).await;
    let many = message(vec![entries(1, b""); 257]);
    assert_eq!(server.should_rate_limit(many).await.unwrap().overall_code(), Code::Ok);
    assert_eq!(over_bound(&server, "descriptors").await, 1.0);
    assert_eq!(server.metric("sluicegate_requests_shadowed_total").await, 1.0);
}

#[tokio::test]
async fn duplicate_json_keys_are_400_with_the_key() {
    let server = Sluicegate::start(LIMITS, &[]).await;
    for (body, error) in [
        (
            "{\"domain\": \"api\", \"domain\": \"api\"}",
            "duplicate key \"domain\" at line 1 column 26",
        ),
        (
            "{\"domain\": \"api\", \"descriptors\": [\n{\"entries\": [{\"key\": \"a\", \"key\": \"b\"}]}]}",
            "duplicate key \"key\" at line 2 column 31",
        ),
    ] {
        let (status, printed) = server.json(body).await;
        assert_eq!(
            (status, printed.trim_end()),
            (400, &*format!("not a RateLimitRequest: {error}"))
        );
    }
}

// === Through Envoy ===

fn header(name: &str) -> Value {
    json!({"actions": [{"request_headers": {"header_name": name, "descriptor_key": "value"}}]})
}

/// An Envoy that sends this number of descriptors of a header.
async fn envoy_before(server: &Sluicegate, descriptors: usize) -> (Upstream, Envoy) {
    let upstream = Upstream::start().await;
    let rate_limits = Value::from(vec![header("x-value"); descriptors]);
    let listener = Listener::new("main", "api").route("/", &rate_limits);
    let config = bootstrap(upstream.address, &server.grpc, &[listener]);
    let envoy = Envoy::start(&tools::envoy(), &config).await;
    (upstream, envoy)
}

/// Bounds that an end user's headers can exceed refuse the request in Envoy, with and without statuses in the response.
#[tokio::test]
async fn requests_over_a_bound_are_429_through_envoy() {
    for (descriptors, length, bound) in [(70, 59_000, "bytes"), (300, 10, "descriptors")] {
        let server = Sluicegate::start(LIMITS, &[]).await;
        let attack = Attack::start(&format!("{bound} through Envoy"), &server, GROWTH_MAX).await;
        let (_upstream, envoy) = envoy_before(&server, descriptors).await;
        let answer = envoy.get("/", &[("x-value", &vec![0xe9; length])]).await;
        assert_eq!(answer.status, 429, "{bound}");
        assert_eq!(over_bound(&server, bound).await, 1.0);
        assert_eq!(envoy.stat("cluster.upstream.ratelimit.error").await, 0, "{bound}");
        assert_eq!(envoy.stat("cluster.upstream.ratelimit.over_limit").await, 1, "{bound}");
        drop(envoy);
        attack.end(&server).await;
    }
}

#[tokio::test]
async fn binary_headers_of_60_kilobytes_are_limited_through_envoy() {
    let limits = "
domain: api
descriptors:
  - key: healthy
    rate_limit: {unlimited: true}
  - key: value
    value: \"\u{e9}*\"
    detailed_metric: true
    rate_limit: {unit: year, requests_per_unit: 100}
";
    let server = Sluicegate::start(limits, &[]).await;
    let name = "60 kB that are no text through Envoy";
    let attack = Attack::start(name, &server, GROWTH_MAX).await;
    let (_upstream, envoy) = envoy_before(&server, 60).await;
    let mut value = "\u{e9}".as_bytes().to_vec();
    value.resize(59_000, 0xff);
    // 60 hits per request, with a limit of 100.
    for status in [200, 429] {
        assert_eq!(envoy.get("/", &[("x-value", &value)]).await.status, status);
    }
    assert_eq!(envoy.stat("cluster.upstream.ratelimit.error").await, 0);
    drop(envoy);
    attack.end(&server).await;
}

// === Pages ===

#[tokio::test(flavor = "multi_thread")]
async fn scrapes_of_thousands_of_series_do_not_delay_others() {
    let server = Sluicegate::start(LIMITS, &[]).await;
    for first in (0..4_000).step_by(200) {
        let values: Vec<_> = (first..first + 200).map(|value| format!("value-{value}")).collect();
        let entries: Vec<_> = values.iter().map(|value| [("value", value)]).collect();
        let descriptors: Vec<_> = entries.iter().map(<[_; 1]>::as_slice).collect();
        server.should_rate_limit(request(&descriptors)).await.unwrap();
    }
    for page in ["/metrics", "/stats"] {
        let (url, client) = (format!("http://{}{page}", server.http), reqwest::Client::new());
        attack(&server, page, move || {
            let asked = client.get(&url).send();
            async move {
                let text = asked.await.unwrap().text().await.unwrap();
                assert!(text.matches("value-").count() >= 4_000);
            }
        })
        .await;
    }
}
