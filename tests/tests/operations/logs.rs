//! The log: levels at runtime, a blocked log, values of requests that must not be in it, and the decision log.

use std::{collections::BTreeSet, fs, process::Stdio, time::Duration};

use nix::{sys::signal::Signal, unistd::Pid};
use serde_json::{Value, json};
use sluicegate_proto::envoy::{
    extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride,
    service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse, rate_limit_response::Code,
        rate_limit_service_client::RateLimitServiceClient,
    },
};
use sluicegate_tests::{
    Authority, Caller, Finished, HangingStore, Redis, Sluicegate, binary, finish, free_port, hits,
    long_window, long_windows, request, until,
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    net::TcpStream,
    process::{Child, ChildStderr, Command},
};
use tonic::{Request, Status, transport::Endpoint};

const LIMITS: &str = "
domain: api
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 1, name: daily}
  - key: tried
    shadow_mode: true
    rate_limit: {unit: day, requests_per_unit: 1, algorithm: gcra}
  - key: free
    rate_limit: {unlimited: true}
";

// === Levels at runtime ===

async fn log_level(server: &Sluicegate, arguments: &[&str]) -> Finished {
    let mut command = Command::new(binary("sluicectl"));
    command.args(["log-level", "--timeout", "30s"]);
    command.arg("--admin-server").arg(format!("http://{}", server.admin)).args(arguments);
    finish(command).await
}

async fn log_level_output(server: &Sluicegate, arguments: &[&str]) -> String {
    let answer = log_level(server, arguments).await;
    assert_eq!((answer.code, &*answer.stderr), (0, ""));
    answer.stdout.trim_end().to_owned()
}

/// Number of log lines with both texts.
fn lines(server: &Sluicegate, first: &str, second: &str) -> usize {
    let log = server.process.output();
    log.lines().filter(|line| line.contains(first) && line.contains(second)).count()
}

async fn until_lines(server: &Sluicegate, first: &str, second: &str, count: usize) {
    until(&format!("{count} lines with {first} {second}"), || async {
        (lines(server, first, second) >= count).then_some(())
    })
    .await;
}

async fn ask(server: &Sluicegate, key: &str, value: &str, count: u64) -> Code {
    server.should_rate_limit(hits(key, value, count)).await.unwrap().overall_code()
}

#[tokio::test]
async fn the_log_level_changes_at_runtime() {
    let server = Sluicegate::start(LIMITS, &[]).await;
    assert_eq!(log_level_output(&server, &[]).await, "info");
    ask(&server, "free", "x", 1).await;
    assert_eq!(lines(&server, "DEBUG", ""), 0);
    assert_eq!(log_level_output(&server, &["debug"]).await, "debug");
    ask(&server, "free", "x", 1).await;
    until_lines(&server, "DEBUG", "", 1).await;
    let json: Value =
        serde_json::from_str(&log_level_output(&server, &["--output", "json"]).await).unwrap();
    let stays = json!({"level": "debug", "next_level": null, "next_level_after_seconds": null});
    assert_eq!(json, stays);
    assert_eq!(log_level_output(&server, &["error"]).await, "error");
    let debug = lines(&server, "DEBUG", "");
    server.replace_limits(&LIMITS.replace("daily", "dayly"));
    until("the new limits", || async {
        (server.metric("sluicegate_config_generation").await == 2.0).then_some(())
    })
    .await;
    // Only the change and its caller are logged.
    let after = server.process.output();
    let after: Vec<_> =
        after.lines().skip_while(|line| !line.contains("log_level=\"error\"")).collect();
    assert_eq!((after.len(), lines(&server, "DEBUG", "") >= debug), (1, true), "{after:?}");
    assert!(after[0].contains("sluicegate::audit: log level changed"), "{after:?}");
    assert!(after[0].contains("former=\"debug\"") && after[0].contains("caller=127.0.0.1:"));
}

#[tokio::test]
async fn a_temporary_log_level_reverts() {
    // The addresses are logged at info.
    let former = "warn,sluicegate::app=info";
    let server = Sluicegate::start(LIMITS, &["--log-level", former]).await;
    let answer = log_level_output(&server, &["trace", "--for", "1h", "--output", "json"]).await;
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!((&answer["level"], &answer["next_level"]), (&json!("trace"), &json!(former)));
    let after = answer["next_level_after_seconds"].as_u64().unwrap();
    assert!((3_500..=3_600).contains(&after), "{answer}");
    // A second temporary level replaces it, and afterwards the level from before both applies.
    let text = log_level_output(&server, &["debug", "--for", "300ms"]).await;
    assert!(text.starts_with(&format!("debug; {former} in ")), "{text}");
    until_lines(&server, "sluicegate::audit: log level restored", "former=\"debug\"", 1).await;
    assert_eq!(log_level_output(&server, &[]).await, former);
    let debug = lines(&server, "DEBUG", "");
    assert!(debug > 0);
    ask(&server, "free", "x", 1).await;
    assert_eq!(lines(&server, "DEBUG", ""), debug);
    // A permanent level ends a temporary one.
    log_level_output(&server, &["trace", "--for", "300ms"]).await;
    assert_eq!(log_level_output(&server, &["error"]).await, "error");
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert_eq!(log_level_output(&server, &[]).await, "error");
    assert_eq!(lines(&server, "log level restored", ""), 1);
}

#[tokio::test]
async fn an_invalid_log_level_changes_nothing() {
    let server = Sluicegate::start(LIMITS, &[]).await;
    let flag = Sluicegate::command(&["--limits", "x", "--log-level", "loud"], &[]);
    let by_flag = finish(flag).await.stderr;
    // The missing limits file is reported in another line.
    let by_flag =
        by_flag.lines().find_map(|it| it.strip_prefix("sluicegate: --log-level: ")).unwrap();
    let answer = log_level(&server, &["loud"]).await;
    assert_eq!((answer.code, &*answer.stdout), (3, ""));
    assert!(answer.stderr.contains(by_flag), "{answer:?}");
    for level in ["", "info,", "sluicegate", "h2=loud", "bogus=", "info="] {
        assert_eq!(log_level(&server, &[level]).await.code, 3, "{level:?}");
    }
    for duration in ["0s", "500000000000years"] {
        let answer = log_level(&server, &["debug", "--for", duration]).await;
        assert!(answer.code == 3 || answer.code == 2, "{answer:?}");
    }
    assert!(log_level(&server, &["debug", "--for", "0s"]).await.stderr.contains("longer than 0"));
    assert_eq!(log_level(&server, &["--for", "1s"]).await.code, 2);
    assert_eq!(log_level_output(&server, &[]).await, "info");
    assert_eq!(lines(&server, "log level", ""), 0);
}

#[tokio::test]
async fn audit_lines_are_written_at_every_log_level() {
    for off in ["off", "error,sluicegate::audit=off"] {
        let server = Sluicegate::start(LIMITS, &[]).await;
        log_level_output(&server, &[off]).await;
        log_level_output(&server, &["warn"]).await;
        until_lines(&server, "log level changed", "sluicegate::audit", 2).await;
        // A directive that would be more specific than the one for audit lines is rejected.
        for quiet in ["sluicegate::audit[{caller}]=off", "[{message}]=off", "info,[span]=off"] {
            let answer = log_level(&server, &[quiet]).await;
            assert_eq!(answer.code, 3, "{answer:?}");
            assert!(answer.stderr.contains("is not a level"), "{answer:?}");
        }
        log_level_output(&server, &["info"]).await;
        until_lines(&server, "log level changed", "sluicegate::audit", 3).await;
    }
    // In JSON the new level is a field besides the level of the line.
    let server = Sluicegate::start(LIMITS, &["--log-format", "json"]).await;
    log_level_output(&server, &["debug", "--for", "1h"]).await;
    until_lines(&server, "log level changed", "", 1).await;
    let log = server.process.output();
    let line = log.lines().find(|line| line.contains("log level changed")).unwrap();
    assert_eq!(line.matches("\"level\":").count(), 1, "{line}");
    let line: Value = serde_json::from_str(line).unwrap();
    let fields = [&line["level"], &line["log_level"], &line["former"], &line["target"]];
    assert_eq!(fields, ["INFO", "debug", "info", "sluicegate::audit"]);
    assert_eq!(line["for_seconds"], 3600.0);
}

// === A blocked log ===

/// A server whose log is read until it serves, and then no further.
struct Unread {
    child: Child,
    log: Lines<BufReader<ChildStderr>>,
    serving: Value,
    _limits: TempDir,
}

impl Unread {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let limits = folder.path().join("limits.yaml");
        fs::write(&limits, long_windows(LIMITS)).unwrap();
        let many = ["--decision-log-max-per-second", "1000000"];
        let own = [&["--limits", limits.to_str().unwrap()], &many[..], &ALL].concat();
        let mut command = Sluicegate::command(&own, &[]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.kill_on_drop(true).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
        let serving = loop {
            let line = log.next_line().await.unwrap().expect("ended before it served");
            let line: Value = serde_json::from_str(&line).unwrap();
            if line["message"] == "serving" {
                break line;
            }
        };
        Self { child, log, serving, _limits: folder }
    }

    fn url(&self, listener: &str) -> String {
        format!("http://{}", self.serving[listener].as_str().unwrap())
    }

    async fn dropped(&self) -> u64 {
        let page = reqwest::get(format!("{}/metrics", self.url("http"))).await.unwrap();
        let page = page.text().await.unwrap();
        let value =
            page.lines().find_map(|line| line.strip_prefix("sluicegate_log_lines_dropped_total "));
        value.unwrap().parse().unwrap()
    }

    /// Causes refusals until neither the pipe nor the server has room for another log line.
    async fn fill(&self) {
        let channel = Endpoint::from_shared(self.url("grpc")).unwrap().connect().await.unwrap();
        let mut client = RateLimitServiceClient::new(channel);
        let bob = [("user", "bob")];
        let refused = request(&[&bob[..]; 100]);
        assert_eq!(self.dropped().await, 0);
        while self.dropped().await == 0 {
            for _ in 0..10 {
                let answer = client.should_rate_limit(refused.clone()).await.unwrap().into_inner();
                assert_eq!(answer.overall_code(), Code::OverLimit);
            }
        }
        let fresh = client.should_rate_limit(hits("user", "ann", 1)).await.unwrap().into_inner();
        assert_eq!(fresh.overall_code(), Code::Ok);
    }

    async fn stop(&mut self) {
        nix::sys::signal::kill(
            Pid::from_raw(self.child.id().unwrap().cast_signed()),
            Signal::SIGTERM,
        )
        .unwrap();
        assert!(self.child.wait().await.unwrap().success());
    }
}

#[tokio::test]
async fn a_blocked_log_does_not_delay_the_server() {
    let work = async {
        let mut server = Unread::start().await;
        server.fill().await;
        // Audit lines have a separate reserve.
        let mut command = Command::new(binary("sluicectl"));
        command.args(["log-level", "warn", "--admin-server", &server.url("admin")]);
        let answer = finish(command).await;
        assert_eq!((answer.code, &*answer.stdout), (0, "warn\n"), "{answer:?}");
        // A reader that continues gets complete lines, and the audit lines.
        loop {
            let line = server.log.next_line().await.unwrap().expect("no audit");
            let line: Value = serde_json::from_str(&line).unwrap();
            if line["target"] == "sluicegate::audit" {
                assert_eq!(line["log_level"], "warn");
                break;
            }
        }
        let mut server = Unread::start().await;
        server.fill().await;
        server.stop().await;
    };
    tokio::time::timeout(Duration::from_secs(120), work).await.expect("the server hangs");
}

// === Values of requests are not in the log ===

const MARKER: &str = "mArKeR7261";

/// A request with the marker in keys, values, the domain, and binary values.
fn marked(domain: &str, key: &str) -> RateLimitRequest {
    let mut marked = request(&[
        &[(key, MARKER.as_bytes())][..],
        &[(MARKER, b"x")],
        &[(key, &[MARKER.as_bytes(), b"\xff\n\"{}%"].concat())],
    ]);
    marked.domain = domain.to_owned();
    marked
}

async fn call(server: &Sluicegate, message: RateLimitRequest) -> Result<RateLimitResponse, Status> {
    let mut request = Request::new(message);
    for header in ["user-agent", "authorization", "tracestate", "x-request-id", "grpc-timeout"] {
        request.metadata_mut().insert(header, format!("a={MARKER}").parse().unwrap());
    }
    let context = format!("00-{:032x}-{:016x}-01", 7, 7);
    request.metadata_mut().insert("traceparent", context.parse().unwrap());
    Ok(server.connect().await.should_rate_limit(request).await?.into_inner())
}

/// Sends valid requests, and every kind of invalid one, to all listeners.
async fn drive(server: &Sluicegate) {
    for domain in ["api", MARKER, ""] {
        for key in ["user", "tried", "free", "slow", "lost", MARKER] {
            for _ in 0..3 {
                let _ = call(server, marked(domain, key)).await;
            }
        }
    }
    let mut overridden = marked("api", "user");
    for (descriptor, unit) in overridden.descriptors.iter_mut().zip([3, 0, 99]) {
        descriptor.limit =
            Some(RateLimitOverride { requests_per_unit: 1, unit, unit_multiplier: Some(0) });
    }
    for _ in 0..3 {
        let _ = call(server, overridden.clone()).await;
    }
    let mut none = marked("api", "user");
    none.descriptors.clear();
    assert!(call(server, none).await.is_err());
    let mut many = marked("api", "user");
    many.descriptors = vec![many.descriptors[0].clone(); 300];
    assert!(call(server, many).await.is_ok());
    let mut large = marked("api", "user");
    large.descriptors[0].entries[0].value = MARKER.repeat(500_000).into();
    assert_eq!(call(server, large).await.unwrap().statuses, []);
    // Bytes that are not a message, compressed messages, and bytes that are not HTTP.
    let caller = Caller::connect(&server.grpc).await;
    let nonsense = [&[0, 0, 0, 0, 10][..], MARKER.as_bytes()].concat();
    let (status, _) = caller.begin().await.unwrap().send([nonsense.into()], true).await.unwrap();
    assert_ne!(status, "0");
    let mut compressed = Request::new(marked("api", "user"));
    compressed.metadata_mut().insert("grpc-encoding", MARKER.parse().unwrap());
    assert!(server.connect().await.should_rate_limit(compressed).await.is_err());
    for address in [&server.grpc, &server.http, &server.admin] {
        let mut socket = TcpStream::connect(&**address).await.unwrap();
        let text = format!("GET /{MARKER} HTTP/9.9\r\n{MARKER}: {MARKER}\r\n\r\n\0\0");
        let _ = socket.write_all(text.as_bytes()).await;
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer).await;
    }
    for body in [
        MARKER.to_owned(),
        format!("{{\"{MARKER}\": 1}}"),
        format!("{{\"domain\": \"{MARKER}\", \"descriptors\": [{{\"entries\": []}}]}}"),
        format!(
            "{{\"domain\":\"api\",\"descriptors\":[{{\"entries\":[{{\"key\":\"user\",\"value\":\"{MARKER}\"}}]}}]}}"
        ),
    ] {
        server.json(&body).await;
    }
    server.get(&format!("/{MARKER}?{MARKER}")).await;
    server.get(&format!("/healthcheck?{MARKER}")).await;
    for arguments in [&["explain", "--domain", MARKER][..], &["explain", "--domain", "api"]] {
        let mut command = Command::new(binary("sluicectl"));
        command.args(arguments).args(["--descriptor", &format!("user={MARKER}")]);
        command.arg("--admin-server").arg(format!("http://{}", server.admin));
        finish(command).await;
    }
}

fn unmarked(server: &Sluicegate, how: &str) {
    let log = server.process.output();
    let found: Vec<_> = log.lines().filter(|line| line.contains(MARKER)).collect();
    assert!(found.is_empty(), "{how}: {found:?}");
    assert!(lines(server, "INFO", "serving") > 0, "{log}");
}

const MANNERS: &str = "
domain: api
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 2}
  - key: tried
    shadow_mode: true
    rate_limit: {unit: day, requests_per_unit: 1}
  - key: free
    detailed_metric: true
    rate_limit: {unlimited: true}
  - key: slow
    on_failure: deny
    rate_limit: {unit: day, requests_per_unit: 2}
  - key: lost
    on_failure: defer
    rate_limit: {unit: day, requests_per_unit: 2}
";

#[tokio::test]
async fn nothing_of_a_request_is_logged() {
    let server = Sluicegate::start(MANNERS, &["--decision-log-ratio", "1"]).await;
    drive(&server).await;
    unmarked(&server, "memory");
    // Refusals are logged with a key hash only.
    until_lines(&server, "sluicegate::decisions", "rule=\"user\"", 1).await;

    let mut store = HangingStore::start().await;
    let shadow = ["--shadow-mode", "--max-in-flight", "1", "--decision-log-ratio", "1"];
    let server = Sluicegate::start(MANNERS, &[&store.arguments()[..], &shadow].concat()).await;
    let held = store.hold(&server, hits("user", "held", 1)).await;
    drive(&server).await;
    store.release();
    drop(held);
    until_lines(&server, "sluicegate::decisions", "source=\"shed\"", 1).await;
    unmarked(&server, "shed");
}

#[tokio::test]
async fn nothing_of_a_request_is_logged_when_the_store_fails() {
    let mut redis = Redis::start().await;
    let collector = format!("http://127.0.0.1:{}", free_port());
    let url = redis.url();
    let flags = ["--store", &url, "--decision-log-ratio", "1", "--otlp-endpoint", &collector];
    let server = Sluicegate::start(MANNERS, &flags).await;
    drive(&server).await;
    redis.pause();
    drive(&server).await;
    redis.kill().await;
    drive(&server).await;
    until_lines(&server, "WARN", "Redis unavailable", 1).await;
    unmarked(&server, "Redis");
}

#[tokio::test]
async fn nothing_of_a_request_is_logged_when_tls_fails() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    Authority::new("a").issue("localhost").write(folder.path(), "server");
    fs::write(path("limits.yaml"), MANNERS).unwrap();
    let (limits, cert, key) = (path("limits.yaml"), path("server.pem"), path("server.key"));
    let flags = ["--limits", &limits, "--grpc-tls-cert", &cert, "--grpc-tls-key", &key];
    let server = Sluicegate::start_with(folder, &flags).await;
    for _ in 0..3 {
        let mut socket = TcpStream::connect(&server.grpc).await.unwrap();
        let _ = socket.write_all(format!("{MARKER} {MARKER}\r\n\r\n").as_bytes()).await;
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer).await;
    }
    until("the handshakes to fail", || async {
        let failed = server.metric("sluicegate_tls_handshakes_failed_total").await;
        (failed >= 3.0).then_some(())
    })
    .await;
    unmarked(&server, "TLS");
}

// === Decisions ===

fn decisions(server: &Sluicegate) -> Vec<Value> {
    let log = server.process.output();
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line["target"] == "sluicegate::decisions").collect()
}

async fn until_decisions(server: &Sluicegate, count: usize) -> Vec<Value> {
    until("the decisions", || async {
        let found = decisions(server);
        (found.len() >= count).then_some(found)
    })
    .await
}

const ALL: [&str; 4] = ["--decision-log-ratio", "1", "--log-format", "json"];

#[tokio::test]
async fn a_logged_refusal_has_rule_limit_and_key_hash() {
    let server = Sluicegate::start(&long_windows(LIMITS), &ALL).await;
    assert_eq!(ask(&server, "user", "bob", 1).await, Code::Ok);
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let mut refused = Request::new(hits("user", "bob", 3));
    // The trace id is logged although the trace is not sampled.
    let parent = format!("00-{trace}-b7ad6b7169203331-00");
    refused.metadata_mut().insert("traceparent", parent.parse().unwrap());
    let refused = server.connect().await.should_rate_limit(refused).await.unwrap().into_inner();
    assert_eq!(refused.overall_code(), Code::OverLimit);
    let [line] = &until_decisions(&server, 1).await[..] else { panic!("one refusal") };
    let field = |name: &str| line[name].clone();
    assert_eq!(field("level"), "INFO");
    assert_eq!(field("message"), "limited");
    assert_eq!(field("domain"), "api");
    assert_eq!(field("rule"), "user");
    assert_eq!(field("limit"), *long_windows("1 per day"));
    assert_eq!(field("limit_name"), "daily");
    assert_eq!(field("algorithm"), "fixed_window");
    assert_eq!(field("code"), "over_limit");
    assert_eq!(field("hits"), 3);
    assert_eq!(field("source"), "store");
    assert_eq!(field("trace_id"), trace);
    // Three hits can never pass a limit of one.
    assert_eq!(field("retry_after_seconds"), Value::Null);
    assert!(!line.to_string().contains("bob"), "{line}");

    // The line can be found by the hash in the output of explain.
    let mut explain = Command::new(binary("sluicectl"));
    explain.args(["explain", "--domain", "api", "--descriptor", "user=bob", "--output", "json"]);
    explain.arg("--admin-server").arg(format!("http://{}", server.admin));
    let explained: Value = serde_json::from_str(&finish(explain).await.stdout).unwrap();
    let hash = &explained["descriptors"][0]["limits"][0]["key_hash"];
    assert_eq!((&field("key_hash"), hash.as_str().unwrap().len()), (hash, 16));

    assert_eq!(ask(&server, "user", "bob", 1).await, Code::OverLimit);
    let line = &until_decisions(&server, 2).await[1];
    let wait = line["retry_after_seconds"].as_f64().unwrap();
    assert!(wait > 0.0 && wait <= long_window().seconds().into(), "{line}");
    assert_eq!(line["trace_id"], Value::Null);
}

#[tokio::test]
async fn refusals_in_shadow_mode_are_logged_as_shadowed() {
    let server = Sluicegate::start(&long_windows(LIMITS), &ALL).await;
    for _ in 0..2 {
        assert_eq!(ask(&server, "tried", "bob", 1).await, Code::Ok);
    }
    let [line] = &until_decisions(&server, 1).await[..] else { panic!("one refusal") };
    let fields = (&line["code"], &line["rule"], &line["algorithm"]);
    assert_eq!(fields, (&json!("shadowed"), &json!("tried"), &json!("gcra")));

    let server =
        Sluicegate::start(&long_windows(LIMITS), &[&ALL[..], &["--shadow-mode"]].concat()).await;
    assert_eq!(ask(&server, "user", "bob", 2).await, Code::Ok);
    assert_eq!(until_decisions(&server, 1).await[0]["code"], "shadowed");
}

#[tokio::test]
async fn the_decision_log_is_off_by_default_and_has_only_refusals() {
    let server = Sluicegate::start(&long_windows(LIMITS), &["--log-format", "json"]).await;
    for _ in 0..3 {
        ask(&server, "user", "bob", 1).await;
    }
    // Without the decision log explain shows no hash.
    let mut explain = Command::new(binary("sluicectl"));
    explain.args(["explain", "--domain", "api", "--descriptor", "user=bob", "--output", "json"]);
    explain.arg("--admin-server").arg(format!("http://{}", server.admin));
    let explained: Value = serde_json::from_str(&finish(explain).await.stdout).unwrap();
    assert_eq!(explained["descriptors"][0]["limits"][0]["key_hash"], Value::Null);
    assert_eq!(ended(server).await, Vec::<Value>::new());

    let server = Sluicegate::start(&long_windows(LIMITS), &ALL).await;
    let mut both = request(&[&[("user", "ann")], &[("user", "eve")], &[("free", "x")]]);
    both.descriptors[1].hits_addend = Some(2);
    server.should_rate_limit(both).await.unwrap();
    ask(&server, "free", "bob", 1).await;
    ask(&server, "nobody", "bob", 1).await;
    assert_eq!(ask(&server, "user", "bob", 1).await, Code::Ok);
    let lines = ended(server).await;
    assert_eq!(lines.len(), 1, "eve alone was refused: {lines:?}");
    assert_eq!(lines[0]["hits"], 2);
}

/// Stops a server. Returns the decisions in its log.
async fn ended(mut server: Sluicegate) -> Vec<Value> {
    server.process.signal(Signal::SIGTERM);
    server.process.ended().await;
    until_lines(&server, "stopped", "INFO", 1).await;
    decisions(&server)
}

#[tokio::test]
async fn the_decision_log_is_sampled_and_bounded() {
    let many = ["--decision-log-max-per-second", "1000000"];
    let flags = ["--decision-log-ratio", "0.5", "--log-format", "json"];
    let server = Sluicegate::start(&long_windows(LIMITS), &[&flags[..], &many].concat()).await;
    let mut client = server.connect().await;
    for _ in 0..1_000 {
        client.should_rate_limit(hits("user", "bob", 2)).await.unwrap();
    }
    assert_eq!(server.metric("sluicegate_decision_log_dropped_total").await, 0.0);
    let logged = ended(server).await.len();
    // A tolerance of ten standard deviations.
    assert!((340..=660).contains(&logged), "{logged} of 1000");

    let few = ["--decision-log-max-per-second", "3"];
    let server = Sluicegate::start(&long_windows(LIMITS), &[&ALL[..], &few].concat()).await;
    let mut client = server.connect().await;
    let asked = 500_u32;
    for _ in 0..asked {
        client.should_rate_limit(hits("user", "bob", 2)).await.unwrap();
    }
    let dropped = server.metric("sluicegate_decision_log_dropped_total").await;
    let logged = ended(server).await;
    let lines = u32::try_from(logged.len()).unwrap();
    assert_eq!(f64::from(lines) + dropped, f64::from(asked));
    let by_second = |line: &Value| line["timestamp"].as_str().unwrap()[..19].to_owned();
    let seconds: BTreeSet<_> = logged.iter().map(by_second).collect();
    // The server's seconds do not begin with those of the wall clock.
    assert!(logged.len() >= 3 && logged.len() <= 3 * (seconds.len() + 1), "{logged:?}");
}

#[tokio::test]
async fn replicas_with_one_salt_agree_on_hashes() {
    let folder = tempfile::tempdir().unwrap();
    let salt = folder.path().join("salt");
    fs::write(&salt, "0123456789abcdef\n").unwrap();
    let salted = ["--key-hash-salt-file", salt.to_str().unwrap()];
    let hash = async |flags: &[&str]| {
        let server = Sluicegate::start(&long_windows(LIMITS), &[&ALL[..], flags].concat()).await;
        ask(&server, "user", "bob", 2).await;
        until_decisions(&server, 1).await[0]["key_hash"].as_str().unwrap().to_owned()
    };
    let first = hash(&salted).await;
    assert_eq!(first, hash(&salted).await);
    let (third, fourth) = (hash(&[]).await, hash(&[]).await);
    assert!(first != third && third != fourth);

    let limits = folder.path().join("limits.yaml");
    fs::write(&limits, LIMITS).unwrap();
    let refused = async || {
        let flags = [&["--limits", limits.to_str().unwrap()][..], &salted].concat();
        let refused = finish(Sluicegate::command(&flags, &[])).await;
        assert_eq!((refused.code, refused.stderr.lines().count()), (1, 1), "{refused:?}");
        refused.stderr
    };
    for short in ["", "short", "\nthe second line is long enough"] {
        fs::write(&salt, short).unwrap();
        let error = refused().await;
        assert!(error.contains("--key-hash-salt-file") && error.contains("less than 16 bytes"));
    }
    fs::remove_file(&salt).unwrap();
    assert!(refused().await.contains("cannot read"));
}
