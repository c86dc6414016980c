//! Flags of metrics, top keys, OpenTelemetry and the log.

use nix::sys::signal::Signal;
use serde_json::Value;
use sluicegate_proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use sluicegate_tests::{Collector, Sluicegate, binary, finish, free_port, until};
use tokio::process::Command;

use super::{
    LIMITS, Row,
    check::says,
    given::{Given, code, one_line},
    row,
};

pub(super) fn rows() -> Vec<Row> {
    vec![
        row("serve --near-limit-ratio", "0.5", near_limit_ratio),
        row("serve --top-keys", "0", top_keys),
        row("serve --top-labels", "plain", top_labels),
        row("serve --detailed-metric-series", "1", detailed_metric_series),
        row("serve --otlp-endpoint", "http://127.0.0.1:1", otlp_endpoint),
        row("serve --otlp-tls-ca", "{folder}/ca.pem", otlp_tls_ca),
        row("serve --otlp-metrics-interval", "1s", otlp_metrics_interval),
        row("serve --log-level", "info,h2=debug", log_level),
        row("serve --log-format", "json", log_format),
        row("serve --decision-log-ratio", "1", decision_log_ratio),
        row("serve --decision-log-max-per-second", "2", decision_log_max_per_second),
        row("serve --key-hash-salt-file", "{folder}/salt", key_hash_salt_file),
        row("serve --trace-ratio", "1", trace_ratio),
    ]
}

/// Limits with free counting, for any default.
pub(super) const LOG_LIMITS: &str = "
domain: api
descriptors:
  - key: user
    rate_limit: {algorithm: sliding_window_log, unit: day, requests_per_unit: 10}
";

pub(super) async fn log_level(given: Given) {
    let mut server = given.serve(&[]).await;
    code(&server, "bob", 1).await;
    server.process.line("debug", |line| line.contains("DEBUG").then_some(())).await;
    let refused = finish(given.with("sluicegate=loud").serve_command(&[])).await;
    one_line(&refused, 1, &["--log-level"]);
    // Modules without a level in the filter stay at info: the test reads the addresses from a line at this level.
    given.with("h2=off").serve(&[]).await;
}

pub(super) async fn log_format(given: Given) {
    let mut server = given.serve(&[("--log-level", "trace")]).await;
    code(&server, "bob", 1).await;
    server.process.signal(Signal::SIGTERM);
    server.process.ended().await;
    let log = server.process.output();
    assert!(log.lines().count() > 3, "{log}");
    for line in log.lines() {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
        assert!(line["level"].is_string() && line["timestamp"].is_string(), "{line}");
    }
}

/// Sends `count` requests that are refused, one after the other.
pub(super) async fn refuse(server: &Sluicegate, count: usize) {
    for _ in 0..count {
        assert_eq!(code(server, "bob", 11).await, Code::OverLimit);
    }
}

pub(super) fn logged_decisions(server: &Sluicegate) -> Vec<String> {
    let log = server.process.output();
    let lines = log.lines().filter(|line| line.contains("sluicegate::decisions: limited"));
    lines.map(str::to_owned).collect()
}

pub(super) async fn decision_log_ratio(given: Given) {
    let is_decision = |line: &str| {
        line.contains("limited domain=\"api\"") && line.contains(" limit=\"10 per day\" ")
    };
    let mut server = given.serve(&[]).await;
    refuse(&server, 1).await;
    server.process.line("a decision", |line| is_decision(line).then_some(())).await;
    let server = given.with("0").serve(&[]).await;
    refuse(&server, 1).await;
    assert_eq!(logged_decisions(&server), Vec::<String>::new());
    let refused = finish(given.with("2").serve_command(&[])).await;
    assert!(refused.stderr.contains("a ratio is a number from 0 to 1"), "{}", refused.stderr);
}

pub(super) async fn decision_log_max_per_second(given: Given) {
    let server = given.serve(&[("--decision-log-ratio", "1")]).await;
    refuse(&server, 50).await;
    assert!(server.metric("sluicegate_decision_log_dropped_total").await > 0.0);
    let with = [("--decision-log-ratio", "1")];
    let refused = finish(given.with("0").serve_command(&with)).await;
    one_line(&refused, 2, &["--decision-log-max-per-second"]);
    let alone = finish(given.serve_command(&[])).await;
    one_line(&alone, 2, &["not provided: --decision-log-ratio <RATIO>"]);
}

pub(super) async fn key_hash_salt_file(given: Given) {
    given.write("salt", "0123456789abcdef");
    let hash = async |given: Given| {
        let mut server = given.serve(&[("--decision-log-ratio", "1")]).await;
        refuse(&server, 1).await;
        let hash = |line: &str| Some(line.split_once("key_hash=")?.1.get(..18)?.to_owned());
        server.process.line("a decision", hash).await
    };
    let first = hash(given.clone()).await;
    assert_eq!(first, hash(given.clone()).await);
    given.write("salt", "0123456789abcdeg");
    assert_ne!(first, hash(given.clone()).await);
    given.write("salt", "0123");
    let refused = finish(given.serve_command(&[])).await;
    one_line(&refused, 1, &["--key-hash-salt-file", "less than 16 bytes"]);
}

pub(super) async fn trace_ratio(given: Given) {
    let away = format!("http://127.0.0.1:{}", free_port());
    for (given, traced) in [(given.clone(), 1.0), (given.with("0"), 0.0)] {
        let server = given.serve(&[("--otlp-endpoint", &away)]).await;
        code(&server, "bob", 1).await;
        assert_eq!(server.metric("sluicegate_traced_requests_total").await, traced);
    }
    let refused = finish(given.with("1.5").serve_command(&[("--otlp-endpoint", &away)])).await;
    one_line(&refused, 2, &["--trace-ratio", "a ratio is a number from 0 to 1"]);
    let alone = finish(given.serve_command(&[])).await;
    one_line(&alone, 2, &["not provided: --otlp-endpoint <URL>"]);
}

pub(super) async fn top_keys(given: Given) {
    let server = given.serve(&[]).await;
    let mut top = Command::new(binary("sluicectl"));
    top.args(["top", "--admin-server", &format!("http://{}", server.admin)]);
    one_line(&finish(top).await, 3, &["--top-keys 0"]);
    for many in ["100001", "18446744073709551615"] {
        let refused = finish(given.with(many).serve_command(&[])).await;
        one_line(&refused, 2, &["--top-keys", &format!("{many} is not in 0..=100000")]);
    }
    let server = given.with("100000").serve(&[]).await;
    assert_eq!(code(&server, "bob", 11).await, Code::OverLimit);
}

pub(super) async fn top_labels(given: Given) {
    let server = given.serve(&[]).await;
    code(&server, "bob", 11).await;
    let mut top = Command::new(binary("sluicectl"));
    top.args(["top", "--admin-server", &format!("http://{}", server.admin)]);
    says(&finish(top).await, 0, "s1:fw:86400:{api:user=bob}");
}

pub(super) async fn near_limit_ratio(given: Given) {
    let server = given.serve(&[]).await;
    code(&server, "bob", 7).await;
    let near = server.sum("sluicegate_hits_near_limit_total", &[("rule", "user")]).await;
    assert_eq!(near, 2.0, "beyond 5 of 10");
    let refused = finish(given.with("2").serve_command(&[])).await;
    assert!(refused.stderr.contains("a ratio is a number from 0 to 1"), "{}", refused.stderr);
}

pub(super) async fn detailed_metric_series(given: Given) {
    let limits = LIMITS.replace("- key: user", "- key: user\n    detailed_metric: true");
    given.write("detailed.yaml", &limits);
    let server = given.serve(&[("--limits", &given.path("detailed.yaml"))]).await;
    for user in ["bob", "ann", "eve", "bob"] {
        code(&server, user, 1).await;
    }
    for (key, hits) in [("user_bob", 2.0), ("user_ann", 0.0), ("(other)", 2.0)] {
        assert_eq!(server.sum("sluicegate_hits_total", &[("key", key)]).await, hits, "{key}");
    }
    let refused = finish(given.with("1000001").serve_command(&[])).await;
    one_line(&refused, 2, &["--detailed-metric-series", "1000001 is not in 0..=1000000"]);
}

/// Whether a collector has received a metric.
pub(super) fn has_metrics(collector: &Collector) -> Option<()> {
    collector.process.output().contains("-> Name: sluicegate_rules\n").then_some(())
}

pub(super) async fn otlp_endpoint(given: Given) {
    let collector = Collector::start().await;
    // A server exports its metrics when it stops, but does not wait long for a collector on a busy machine.
    until("the metrics", async || {
        assert!(given.with(&collector.endpoint).serve(&[]).await.stop().await.success());
        has_metrics(&collector)
    })
    .await;
    for wrong in ["127.0.0.1:4317", "ftp://127.0.0.1"] {
        let refused = finish(given.with(wrong).serve_command(&[])).await;
        assert_ne!(refused.code, 0);
        assert!(refused.stderr.contains("use http://HOST:PORT"), "{}", refused.stderr);
    }
}

pub(super) async fn otlp_tls_ca(given: Given) {
    given.certify("127.0.0.1", &[]);
    let (cert, key) = (given.path("server.pem"), given.path("server.key"));
    // Here the collector is a server without the service: it completes the handshake and answers UNIMPLEMENTED.
    let flags = ["--limits", &given.path("limits.yaml"), "--grpc-tls-cert", &cert];
    let flags = [&flags[..], &["--grpc-tls-key", &key]].concat();
    let collector = Sluicegate::start_with(tempfile::tempdir().unwrap(), &flags).await;
    let endpoint = format!("https://{}", collector.grpc);
    let own = [("--otlp-endpoint", &*endpoint), ("--otlp-metrics-interval", "1s")];
    let mut server = given.serve(&own).await;
    let answered = |line: &str| line.contains("Unimplemented").then_some(());
    server.process.line("the answer", answered).await;
}

pub(super) async fn otlp_metrics_interval(given: Given) {
    let (often, never) = (Collector::start().await, Collector::start().await);
    let _server = given.serve(&[("--otlp-endpoint", &often.endpoint)]).await;
    let silent = given.with("0s").serve(&[("--otlp-endpoint", &never.endpoint)]).await;
    until("the metrics", async || has_metrics(&often)).await;
    assert!(silent.stop().await.success());
    assert_eq!(has_metrics(&never), None);
    let alone = finish(given.serve_command(&[])).await;
    one_line(&alone, 2, &["not provided: --otlp-endpoint <URL>"]);
    for too_often in ["1ns", "999ms"] {
        let with = [("--otlp-endpoint", "http://127.0.0.1:1")];
        let refused = finish(given.with(too_often).serve_command(&with)).await;
        one_line(&refused, 2, &["--otlp-metrics-interval", too_often, "must be 1s or longer"]);
    }
}
