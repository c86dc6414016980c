//! A real Envoy calls a real server: responses to clients of Envoy.

use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use sluicegate_tests::{
    Answer, Cluster, Envoy, Listener, Sluicegate, Upstream, bootstrap, example_token, free_port,
    long_windows, until, until_long_window_ends,
};
use tokio::task::JoinSet;

use sluicegate_tests::tools;

/// A server and an Envoy in front of an upstream.
pub(crate) struct Gateway {
    server: Sluicegate,
    envoy: Envoy,
    _upstream: Upstream,
}

impl Gateway {
    async fn start(limits: &str, listener: Listener) -> Self {
        Self::with_listeners(limits, &[listener]).await
    }

    async fn with_listeners(limits: &str, listeners: &[Listener]) -> Self {
        Self::with_flags(limits, &[], listeners).await
    }

    /// The limits have [long windows](long_windows).
    pub(crate) async fn with_flags(limits: &str, flags: &[&str], listeners: &[Listener]) -> Self {
        let server = Sluicegate::start(&long_windows(limits), flags).await;
        let upstream = Upstream::start().await;
        let bootstrap = bootstrap(upstream.address, &server.grpc, listeners);
        let envoy = Envoy::start(&tools::envoy(), &bootstrap).await;
        Self { server, envoy, _upstream: upstream }
    }

    pub(crate) async fn get(&self, path: &str, headers: &[(&'static str, &[u8])]) -> Answer {
        self.envoy.get(path, headers).await
    }

    /// Number of descriptors that a rule has decided with this code.
    async fn decisions(&self, rule: &str, code: &str) -> f64 {
        let labels = format!("code=\"{code}\",domain=\"edge\",rule=\"{rule}\",source=\"store\"");
        self.server.metric(&format!("sluicegate_decisions_total{{{labels}}}")).await
    }

    /// Envoy's statistic of the server's answers.
    async fn answers(&self, kind: &str) -> u64 {
        answers(&self.envoy, "upstream", kind).await
    }

    pub(crate) async fn assert_all_decided(&self, passed: u64, refused: u64) {
        assert_all_decided(&self.envoy, "upstream", passed, refused).await;
    }
}

async fn answers(envoy: &Envoy, cluster: &str, kind: &str) -> u64 {
    envoy.stat(&format!("cluster.{cluster}.ratelimit.{kind}")).await
}

/// Asserts that the server decided every request, and Envoy's failure mode none: with an Envoy that fails open, a dead
/// server would look like one that allows everything.
async fn assert_all_decided(envoy: &Envoy, cluster: &str, passed: u64, refused: u64) {
    let mut counted = Vec::new();
    for kind in ["ok", "over_limit", "error", "failure_mode_allowed"] {
        counted.push(answers(envoy, cluster, kind).await);
    }
    let calls = envoy.stats("upstream_(cx|rq)").await;
    assert_eq!(counted, [passed, refused, 0, 0], "{calls}{}", envoy.process.output());
}

pub(crate) fn user() -> Value {
    json!({"request_headers": {"header_name": "x-user", "descriptor_key": "user"}})
}

/// A listener with a descriptor of the header `x-user`.
pub(crate) fn by_user() -> Listener {
    Listener::new("main", "edge").route("/", &json!([{"actions": [user()]}]))
}

const THREE_A_DAY: &str = "
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 3}
";

#[tokio::test]
async fn over_limit_is_429_with_retry_headers() {
    let listener = by_user().filter("enable_retry_after_header", json!(true));
    let gateway = Gateway::start(THREE_A_DAY, listener).await;
    for left in [2, 1, 0] {
        let answer = gateway.get("/", &[("x-user", b"ann")]).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("x-ratelimit-limit"), Some(&*long_windows("3, 3;w=86400")));
        assert_eq!(answer.number("x-ratelimit-remaining"), left);
        assert_near_the_windows_end(answer.number("x-ratelimit-reset"));
        assert_eq!(answer.header("x-envoy-ratelimited"), None);
        assert_eq!(answer.header("retry-after"), None);
    }
    let refused = gateway.get("/", &[("x-user", b"ann")]).await;
    assert_eq!(refused.status, 429);
    assert_eq!(refused.header("x-envoy-ratelimited"), Some("true"));
    assert_eq!(refused.header("x-ratelimit-limit"), Some(&*long_windows("3, 3;w=86400")));
    assert_eq!(refused.number("x-ratelimit-remaining"), 0);
    assert_near_the_windows_end(refused.number("x-ratelimit-reset"));
    assert_near_the_windows_end(refused.number("retry-after"));
    // Another client is not affected.
    assert_eq!(gateway.get("/", &[("x-user", b"bob")]).await.status, 200);
    gateway.assert_all_decided(4, 1).await;
}

/// Asserts that a wait ends with the window, apart from the time since the response and a second of clock skew.
fn assert_near_the_windows_end(seconds: u64) {
    let left = until_long_window_ends();
    assert!(
        (left.saturating_sub(2)..=left + 60).contains(&seconds),
        "{seconds} s, the window ends in {left} s"
    );
}

#[tokio::test]
async fn hits_addend_of_envoy_is_charged() {
    let limits = "
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 10}
";
    let listener = Listener::new("main", "edge")
        .route("/five", &json!([{"actions": [user()], "hits_addend": {"number": 5}}]))
        .route("/any", &json!([{"actions": [user()], "hits_addend": {"format": "%REQ(x-hits)%"}}]));
    let gateway = Gateway::start(limits, listener).await;
    for (status, left) in [(200, 5), (200, 0), (429, 0)] {
        let answer = gateway.get("/five", &[("x-user", b"number")]).await;
        assert_eq!((answer.status, answer.number("x-ratelimit-remaining")), (status, left));
    }
    // The refused hits were not charged: 3 still remain.
    for (hits, status, left) in [(b"7", 200, 3), (b"4", 429, 0), (b"3", 200, 0), (b"1", 429, 0)] {
        let answer = gateway.get("/any", &[("x-user", b"format"), ("x-hits", hits)]).await;
        assert_eq!((answer.status, answer.number("x-ratelimit-remaining")), (status, left));
    }
    gateway.assert_all_decided(4, 3).await;
}

#[tokio::test]
async fn metadata_overrides_the_configured_limit() {
    let limit = |key| json!({"dynamic_metadata": {"metadata_key": {"key": "plan", "path": [{"key": key}]}}});
    let listener = Listener::new("main", "edge")
        .metadata("plan", &json!({"limit": {"requests_per_unit": 1, "unit": "YEAR"}}))
        .route("/plan", &json!([{"actions": [user()], "limit": limit("limit")}]))
        .route("/absent", &json!([{"actions": [user()], "limit": limit("none")}]));
    let gateway = Gateway::start(THREE_A_DAY, listener).await;
    for status in [200, 429] {
        let answer = gateway.get("/plan", &[("x-user", b"small")]).await;
        assert_eq!(answer.status, status);
        assert_eq!(answer.header("x-ratelimit-limit"), Some("1, 1;w=31536000"));
    }
    for status in [200, 200, 200, 429] {
        let answer = gateway.get("/absent", &[("x-user", b"large")]).await;
        assert_eq!(answer.status, status);
        assert_eq!(answer.header("x-ratelimit-limit"), Some(&*long_windows("3, 3;w=86400")));
    }
    gateway.assert_all_decided(4, 2).await;
}

#[tokio::test]
async fn a_cost_is_charged_when_the_response_ends() {
    let limits = "
domain: edge
counting: debit
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 1000}
";
    let cost = json!({"format": "%RESP(x-cost)%"});
    let rate_limits = json!([
        {"actions": [user()], "hits_addend": {"number": 0}},
        {"actions": [user()], "hits_addend": cost, "apply_on_stream_done": true},
    ]);
    let listener = Listener::new("main", "edge").route("/", &rate_limits);
    let gateway = Gateway::start(limits, listener).await;
    let headers: &[(&str, &[u8])] = &[("x-user", b"ann"), ("x-cost", b"600")];

    for (request, left) in [(1.0, 1_000), (2.0, 400)] {
        let answer = gateway.get("/", headers).await;
        assert_eq!((answer.status, answer.number("x-ratelimit-remaining")), (200, left));
        until("the debit", async || {
            (gateway.decisions("user", "ok").await == 2.0 * request).then_some(())
        })
        .await;
    }
    let refused = gateway.get("/", headers).await;
    assert_eq!((refused.status, refused.number("x-ratelimit-remaining")), (429, 0));
    assert_eq!(gateway.decisions("user", "over_limit").await, 1.0);
    // Envoy does not count the debits.
    gateway.assert_all_decided(2, 1).await;
}

#[tokio::test]
async fn binary_and_long_values_are_limited() {
    let gateway = Gateway::start(THREE_A_DAY, by_user()).await;
    let long = vec![b'x'; 50_000];
    let other = [&long[1..], b"y"].concat();
    let values: [&[u8]; 4] = [b"ann\xff", b"ann\xfe", &long, &other];
    for value in values {
        for status in [200, 200, 200, 429] {
            let answer = gateway.get("/", &[("x-user", value)]).await;
            assert_eq!(answer.status, status);
            assert_eq!(answer.header("x-ratelimit-limit"), Some(&*long_windows("3, 3;w=86400")));
        }
    }
    gateway.assert_all_decided(12, 4).await;
}

#[tokio::test]
async fn shadow_mode_never_refuses_and_counts_refusals() {
    let limits = "
domain: edge
descriptors:
  - key: user
    shadow_mode: true
    rate_limit: {unit: day, requests_per_unit: 2}
";
    let gateway = Gateway::start(limits, by_user()).await;
    for left in [1, 0, 0, 0, 0] {
        let answer = gateway.get("/", &[("x-user", b"ann")]).await;
        assert_eq!((answer.status, answer.number("x-ratelimit-remaining")), (200, left));
        assert_eq!(answer.header("x-envoy-ratelimited"), None);
    }
    assert_eq!(gateway.decisions("user", "ok").await, 2.0);
    assert_eq!(gateway.decisions("user", "shadowed").await, 3.0);
    gateway.assert_all_decided(5, 0).await;
}

#[tokio::test]
async fn headers_show_the_limit_closest_to_refusing() {
    let limits = "
domain: edge
descriptors:
  - key: user
    limits:
      - {name: sustained, unit: day, requests_per_unit: 3}
      - {name: burst, unit: week, requests_per_unit: 4, burst: 2, algorithm: token_bucket}
  - key: plan
    rate_limit: {unit: day, requests_per_unit: 50}
";
    let plan = json!({"generic_key": {"descriptor_key": "plan", "descriptor_value": "free"}});
    let rate_limits = json!([{"actions": [plan]}, {"actions": [user()]}]);
    let listener = Listener::new("main", "edge").route("/", &rate_limits);
    let gateway = Gateway::start(limits, listener).await;
    // A descriptor has one status for all its limits: the first number is the closest limit of all descriptors, the
    // others are the closest limits of each.
    let shown = &*long_windows("4, 50;w=86400, 4;w=604800;name=\"burst\"");
    for (status, left) in [(200, 1), (200, 0), (429, 0), (429, 0)] {
        let answer = gateway.get("/", &[("x-user", b"ann")]).await;
        assert_eq!((answer.status, answer.number("x-ratelimit-remaining")), (status, left));
        assert_eq!(answer.header("x-ratelimit-limit"), Some(shown));
    }
    gateway.assert_all_decided(2, 2).await;
}

#[tokio::test]
async fn envoys_failure_mode_applies_until_the_server_returns() {
    let closed = Listener::new("closed", "edge")
        .filter("failure_mode_deny", json!(true))
        .filter("stat_prefix", json!("closed"))
        .route("/", &json!([{"actions": [user()]}]));
    let mut gateway = Gateway::with_listeners(THREE_A_DAY, &[by_user(), closed]).await;
    for status in [200, 200, 200, 429] {
        assert_eq!(gateway.get("/", &[("x-user", b"ann")]).await.status, status);
    }
    assert_eq!(gateway.envoy.get_from("closed", "/", &[("x-user", b"ann")]).await.status, 429);
    gateway.assert_all_decided(3, 1).await;
    assert_eq!(gateway.answers("closed.over_limit").await, 1);

    gateway.server.process.signal(Signal::SIGKILL);
    gateway.server.process.ended().await;
    for failed in 1..=3 {
        let open = gateway.get("/", &[("x-user", b"ann")]).await;
        assert_eq!((open.status, open.header("x-ratelimit-limit")), (200, None));
        assert_eq!(gateway.answers("error").await, failed);
        assert_eq!(gateway.answers("failure_mode_allowed").await, failed);
        let closed = gateway.envoy.get_from("closed", "/", &[("x-user", b"ann")]).await;
        assert_eq!((closed.status, closed.header("x-ratelimit-limit")), (500, None));
        assert_eq!(gateway.answers("closed.error").await, failed);
    }

    let address = gateway.server.grpc.clone();
    let limits = long_windows(THREE_A_DAY);
    gateway.server = Sluicegate::start(&limits, &["--grpc-listen", &address]).await;
    // Each worker of Envoy has to notice separately.
    until("Envoy to ask again", async || {
        let open = gateway.get("/", &[("x-user", b"probe")]).await;
        let closed = gateway.envoy.get_from("closed", "/", &[("x-user", b"probe")]).await;
        let asked = |answer: &Answer| answer.header("x-ratelimit-limit").is_some();
        (asked(&open) && asked(&closed)).then_some(())
    })
    .await;
    for status in [200, 200, 200, 429] {
        let answer = gateway.get("/", &[("x-user", b"ann")]).await;
        assert_eq!(answer.status, status, "{}", gateway.answers("error").await);
    }
    assert_eq!(gateway.envoy.get_from("closed", "/", &[("x-user", b"ann")]).await.status, 429);
}

#[tokio::test]
async fn no_request_fails_while_a_cluster_primary_dies() {
    let mut cluster = Cluster::start().await;
    let limits = "
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 50}
";
    let flags = ["--store", &cluster.url(), "--decision-timeout", "50ms"];
    // The machine may pause Envoy for longer than its timeout. The server's metrics show whether a decision was late.
    let listener = by_user().filter("timeout", json!("1s"));
    let gateway = Gateway::with_flags(limits, &flags, &[listener]).await;
    let (counts, stop) = (Arc::new(Mutex::new(BTreeMap::<u16, u64>::new())), Arc::default());
    let url = format!("http://{}/", gateway.envoy.listener("main").await);
    let mut callers = JoinSet::new();
    for user in 0..16 {
        let (counts, stop) = (Arc::clone(&counts), Arc::<AtomicBool>::clone(&stop));
        let request = reqwest::Client::builder().no_proxy().build().unwrap();
        let request = request.get(&url).header("x-user", format!("user-{user}"));
        callers.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let answer = request.try_clone().unwrap().send().await.unwrap();
                *counts.lock().unwrap().entry(answer.status().as_u16()).or_default() += 1;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
    }
    let more_answers = async || {
        let answers = || counts.lock().unwrap().values().sum::<u64>();
        let before = answers();
        until("answers", || async { (answers() > before + 500).then_some(()) }).await;
    };
    more_answers().await;
    let primary = cluster.primary_of(0).await.unwrap();
    cluster.nodes[primary].kill().await;
    cluster.until_taken_over(0, primary).await;
    more_answers().await;
    stop.store(true, Ordering::Relaxed);
    callers.join_all().await;
    let counts = counts.lock().unwrap().clone();
    let late = gateway.server.metric("sluicegate_decisions_late_total").await;
    let delay = gateway.server.metric("sluicegate_scheduling_delay_max_seconds").await;
    println!("{counts:?}, {late} late, the machine kept the server waiting for {delay} s");
    assert_eq!(counts.keys().copied().collect::<Vec<_>>(), [200, 429], "{counts:?}");
    gateway.assert_all_decided(counts[&200], counts[&429]).await;
    assert_eq!(late, 0.0);
}

fn example() -> PathBuf {
    tools::workspace().join("examples/envoy/envoy.yaml")
}

#[test]
fn envoy_accepts_the_example() {
    let mut envoy = Command::new(tools::envoy());
    tools::succeed(envoy.args(["--mode", "validate", "-c"]).arg(example()));
}

/// The example on free ports, with a server of the example limits.
async fn start_example() -> (Sluicegate, Envoy) {
    let folder = tempfile::tempdir().unwrap();
    for example in fs::read_dir(tools::workspace().join("examples/limits")).unwrap() {
        let example = example.unwrap();
        let limits = long_windows(&fs::read_to_string(example.path()).unwrap());
        fs::write(folder.path().join(example.file_name()), limits).unwrap();
    }
    let flags = ["--limits", &folder.path().display().to_string()];
    let server = Sluicegate::start_with(folder, &flags).await;
    let mut text = fs::read_to_string(example()).unwrap();
    let (_, grpc) = server.grpc.rsplit_once(':').unwrap();
    let substitutes = [
        ("port_value: 9901", "port_value: 0"),
        ("port_value: 10000}", "port_value: 0}"),
        ("port_value: 10001", &format!("port_value: {}", free_port())),
        ("port_value: 8081", &format!("port_value: {grpc}")),
        // Otherwise requests would pass without a decision on a busy machine.
        ("timeout: 0.05s", "timeout: 1s"),
    ];
    for (old, new) in substitutes {
        assert!(text.contains(old), "{old}");
        text = text.replace(old, new);
    }
    (server, Envoy::start(&tools::envoy(), &text).await)
}

#[tokio::test]
async fn the_example_limits_searches() {
    let (_server, envoy) = start_example().await;
    let [ann, bob] = ["ann", "bob"].map(|user| example_token("acme", user, "enterprise"));
    let ann: &[(&str, &[u8])] = &[("authorization", ann.as_bytes())];
    for left in (0..30).rev() {
        let answer = envoy.get("/search?q=x", ann).await;
        assert_eq!((answer.status, answer.number("x-ratelimit-remaining")), (200, left));
        let limit = answer.header("x-ratelimit-limit").unwrap();
        assert!(limit.starts_with("30, "), "{limit}");
    }
    let refused = envoy.get("/search?q=y", ann).await;
    assert_eq!((refused.status, refused.number("x-ratelimit-remaining")), (429, 0));
    assert!((1..=60).contains(&refused.number("retry-after")), "{refused:?}");
    // Other routes, other users and callers without an account are not affected.
    assert_eq!(envoy.get("/items", ann).await.number("x-ratelimit-remaining"), 19);
    let bob: &[(&str, &[u8])] = &[("authorization", bob.as_bytes())];
    assert_eq!(envoy.get("/search", bob).await.number("x-ratelimit-remaining"), 29);
    let anyone = envoy.get("/public/prices", &[]).await;
    let limits = "1200, 3000;w=60;name=\"per_address\", 1200;w=60;name=\"per_fingerprint\"";
    assert_eq!((anyone.status, anyone.header("x-ratelimit-limit")), (200, Some(limits)));
    let anyone = envoy.get("/search", &[]).await;
    assert_eq!((anyone.status, anyone.header("x-ratelimit-limit")), (401, None));
    assert_all_decided(&envoy, "upstream", 33, 1).await;
}

#[tokio::test]
async fn the_example_charges_tokens_when_the_response_ends() {
    let (server, envoy) = start_example().await;
    let token = example_token("acme", "ann", "free");
    let key: &[(&str, &[u8])] = &[("authorization", token.as_bytes())];
    let series = "sluicegate_decisions_total{code=\"ok\",domain=\"llm_gateway\",rule=\"tier=free.api_key.meter=tokens\",source=\"store\"}";
    for request in [1.0, 2.0] {
        assert_eq!(envoy.get("/chat", key).await.status, 200);
        until("the debit", async || (server.metric(series).await == 2.0 * request).then_some(()))
            .await;
    }
    let refused = envoy.get("/chat", key).await;
    assert_eq!((refused.status, refused.number("x-ratelimit-remaining")), (429, 0));
    assert_all_decided(&envoy, "upstream", 2, 1).await;
}
