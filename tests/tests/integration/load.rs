//! `sluicectl load` against real servers.

use std::{fs, path::Path, sync::Arc, time::Duration};

use serde_json::Value;
use sluicegate_store::{Clocks, SystemClock};
use sluicegate_tests::{
    Cluster, Finished, Fleet, Redis, Sluicegate, binary, finish, free_port, long_windows,
};
use tempfile::TempDir;
use tokio::{net::TcpListener, process::Command};

use super::exactness::{ALGORITHMS, Ahead, PATIENT, limits_of_all, start_with_clocks};

/// Runs `sluicectl load`.
async fn load(servers: &[String], arguments: &[&str]) -> Finished {
    let mut command = Command::new(binary("sluicectl"));
    let servers: Vec<_> = servers.iter().map(|server| format!("http://{server}")).collect();
    command.env_clear().env("SLUICECTL_SERVER", servers.join(",")).arg("load").args(arguments);
    finish(command).await
}

/// Runs `sluicectl load --verify` with these limits. Returns the exit code and the report.
async fn verify(servers: &[String], limits: &Path, arguments: &[&str]) -> (i32, Value) {
    let own = ["--verify", "--output", "json", "--limits", limits.to_str().unwrap()];
    let Finished { code, stdout, stderr } = load(servers, &[&own, arguments].concat()).await;
    assert_eq!(stderr, "");
    (code, serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}")))
}

/// A file with these limits, as long as the folder lives.
fn file(limits: &str) -> (TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("limits.yaml");
    fs::write(&file, limits).unwrap();
    (folder, file)
}

/// Asserts that the report has allowed and refused requests, and finds the answers exact.
fn assert_exact(code: i32, report: &Value) {
    let verified = &report["verified"];
    assert_eq!(
        (code, &verified["over_admitted_hits"], &verified["under_admitted_hits"]),
        (0, &0.into(), &0.into()),
        "{report:#}"
    );
    let [allowed, refused] = ["allowed", "refused"].map(|it| report[it].as_u64().unwrap());
    assert!(allowed > 0 && refused > 0, "{report:#}");
    assert_eq!(report["errors"], 0, "{report:#}");
    for limit in verified["limits"].as_array().unwrap() {
        assert_eq!(limit["exact_hits"], limit["admitted_hits"], "{report:#}");
        assert_eq!(limit["not_verified"], Value::Null, "{report:#}");
    }
}

// === Without limits files ===

#[tokio::test]
async fn count_shows_the_first_refused_request() {
    let limits = limits_of_all("unit: day, requests_per_unit: 100");
    let server = Sluicegate::start(&limits, &[]).await;
    let arguments = ["--domain", "api", "--descriptor", "fixed_window=eve", "--count", "101"];
    let Finished { code, stdout, stderr } =
        load(std::slice::from_ref(&server.grpc), &arguments).await;
    let lines: Vec<_> = stdout.lines().collect();
    assert_eq!(
        (code, &lines[..2], stderr.as_str()),
        (
            0,
            &[
                "101 requests: 100 allowed, 1 refused, 0 errors",
                "request 101 is refused, all before it are allowed"
            ][..],
            ""
        )
    );
    assert!(lines[2].starts_with("took ") && lines[2].contains("; latency p50 "), "{stdout}");
    assert_eq!(lines.len(), 3);
}

#[tokio::test]
async fn traffic_follows_the_flags() {
    let server = Sluicegate::start(&limits_of_all("unit: day, requests_per_unit: 7"), &[]).await;
    let (_folder, limits) = file(&limits_of_all("unit: day, requests_per_unit: 7"));
    let traffic = ["--descriptor", "token_bucket=u-{20}", "--zipf", "1", "--callers", "5"];
    let amount = ["--rate", "200", "--count", "400", "--hits", "2"];
    let (code, report) =
        verify(std::slice::from_ref(&server.grpc), &limits, &[&traffic[..], &amount].concat())
            .await;
    assert_exact(code, &report);
    assert_eq!((&report["domain"], &report["requests"]), (&"api".into(), &400.into()));
    // Three requests with two hits for each user, and no more within the day.
    assert_eq!(report["allowed"], 60, "{report:#}");
    assert!(report["seconds"].as_f64().unwrap() >= 1.9, "{report:#}");
    let [p50, max] = ["p50", "max"].map(|it| report["latency_seconds"][it].as_f64().unwrap());
    assert!(0.0 < p50 && p50 <= max, "{report:#}");
}

#[tokio::test]
async fn a_slow_server_does_not_prolong_a_run() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = silent.local_addr().unwrap().to_string();
    let traffic = ["--domain", "api", "--descriptor", "a=b", "--rate", "100", "--timeout", "300ms"];
    let amount = ["--duration", "1s", "--output", "json"];
    let Finished { code, stdout, .. } = load(&[server], &[&traffic[..], &amount].concat()).await;
    let report: Value = serde_json::from_str(&stdout).unwrap();
    let [sent, not_sent] = ["requests", "not_sent"].map(|it| report[it].as_u64().unwrap());
    assert_eq!((code, sent + not_sent), (3, 100), "{report:#}");
    // After 0, 300, 600 and 900 ms at the earliest.
    assert!(sent <= 4, "{report:#}");
}

#[tokio::test]
async fn latency_with_a_rate_is_measured_from_the_due_time() {
    let server = Sluicegate::start(&limits_of_all("unit: day, requests_per_unit: 7"), &[]).await;
    let servers = std::slice::from_ref(&server.grpc);
    // All requests are due at once, and are sent one after the other.
    let traffic = ["--domain", "api", "--descriptor", "gcra=a", "--count", "300"];
    let report = async |more: &[&str]| load(servers, &[&traffic[..], more].concat()).await.stdout;
    let waiting = report(&["--rate", "1000000", "--output", "json"]).await;
    let waiting: Value = serde_json::from_str(&waiting).unwrap();
    let [seconds, longest] = [&waiting["seconds"], &waiting["latency_seconds"]["max"]];
    assert!(longest.as_f64().unwrap() > seconds.as_f64().unwrap() / 2.0, "{waiting:#}");
    let text = report(&["--rate", "1000000"]).await;
    assert!(text.contains("; latency since due p50 "), "{text}");
}

// === With limits files ===

#[tokio::test]
async fn a_server_with_a_raised_limit_is_detected() {
    let limits = limits_of_all("unit: day, requests_per_unit: 10");
    let server = Sluicegate::start(&limits, &[]).await;
    let (_folder, right) = file(&limits);
    server.replace_limits(&limits_of_all("unit: day, requests_per_unit: 11"));
    server.process.printed("limits reloaded", 1).await;
    for algorithm in ALGORITHMS {
        let descriptor = format!("{algorithm}=eve");
        let arguments = ["--descriptor", &descriptor, "--count", "30"];
        let (code, report) = verify(std::slice::from_ref(&server.grpc), &right, &arguments).await;
        let limit = &report["verified"]["limits"][0];
        let facts = ["over_admitted_hits", "admitted_hits", "server_requests_per_unit", "rule"];
        assert_eq!(
            (code, facts.map(|it| &limit[it])),
            (1, [&1.into(), &11.into(), &11.into(), &algorithm.into()]),
            "{report:#}"
        );
    }
    // The text report.
    let arguments = [
        "--limits",
        right.to_str().unwrap(),
        "--verify",
        "--descriptor",
        "gcra=x",
        "--count",
        "20",
    ];
    let Finished { code, stdout, .. } = load(std::slice::from_ref(&server.grpc), &arguments).await;
    assert_eq!(code, 1);
    for part in [
        "1 hits over-admitted, 0 hits under-admitted, in domain api",
        &long_windows(
            "10 per day, gcra, burst 10: the server's responses show a limit of 11 requests",
        ),
        "tolerance: clocks drift by at most 10ms",
    ] {
        assert!(stdout.contains(part), "{part}: {stdout}");
    }
}

#[tokio::test]
async fn a_server_that_refuses_too_early_is_detected() {
    let server = Sluicegate::start(&limits_of_all("unit: day, requests_per_unit: 10"), &[]).await;
    let (_folder, more) = file(&limits_of_all("unit: day, requests_per_unit: 13"));
    let arguments = ["--descriptor", "sliding_window_log=eve", "--count", "20"];
    let (code, report) = verify(std::slice::from_ref(&server.grpc), &more, &arguments).await;
    // The limit of the files was never reached. The eleventh to thirteenth hits would have reached it.
    let verified = &report["verified"];
    let found = ["under_admitted_hits", "refusals_unexplained", "refusals_not_judged"];
    let expected = [3, 10, 0].map(Value::from);
    assert_eq!((code, found.map(|it| verified[it].clone())), (0, expected), "{report:#}");
    let limit = &verified["limits"][0];
    assert_eq!((&limit["admitted_hits"], &limit["exact_hits"]), (&10.into(), &13.into()));
}

#[tokio::test]
async fn four_replicas_on_a_cluster_admit_nothing_past_a_limit() {
    let cluster = Cluster::start().await;
    let limits = limits_of_all("window: 2s, requests_per_unit: 40");
    let store = cluster.url();
    let flags = [&PATIENT[..], &["--store", &store]].concat();
    let fleet = Fleet::start(4, &limits, &flags).await;
    let (_folder, limits) = file(&limits);
    let servers = fleet.addresses();
    let traffic = ["--duration", "7s", "--rate", "150", "--callers", "10"];
    let runs = ALGORITHMS.map(|algorithm| {
        let descriptor = format!("{algorithm}=hot");
        let (servers, limits) = (&servers, &limits);
        async move {
            let arguments = [&traffic[..], &["--descriptor", &descriptor]].concat();
            verify(servers, limits, &arguments).await
        }
    });
    // Multi-slot requests, at the same time.
    let several = ["--descriptor", "fixed_window=u-{3}", "--descriptor", "gcra=v-{2}"];
    let several = [&traffic[..], &several].concat();
    let (runs, (code, report)) =
        tokio::join!(futures::future::join_all(runs), verify(&servers, &limits, &several));
    for (code, report) in runs {
        assert_exact(code, &report);
    }
    assert_exact(code, &report);
    assert_eq!(report["verified"]["limits"].as_array().unwrap().len(), 2);
}

/// Ten runs over several windows, which begin at other times than by this machine's clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clocks_3s_apart_cause_no_finding() {
    let apart = Duration::from_secs(3);
    let clock = || Arc::new(Ahead(apart, SystemClock::default()));
    let redis = Redis::start().await;
    let limits = limits_of_all("window: 7s, requests_per_unit: 20");
    let store = redis.url();
    let flags = [&PATIENT[..], &["--store", &store]].concat();
    // Redis' clock is three seconds ahead of this machine's ...
    let memory = Clocks { memory: clock(), redis: None };
    let (alone, _alone) = start_with_clocks(&limits, &PATIENT, memory).await;
    // ... or the clock of one of two replicas is.
    let replica = Clocks { memory: clock(), redis: None };
    let (ahead, _ahead) = start_with_clocks(&limits, &flags, replica).await;
    let right = Sluicegate::start(&limits, &flags).await;
    let (_folder, limits) = file(&limits);
    let installations = [
        vec![alone.grpc_address().to_string()],
        vec![ahead.grpc_address().to_string(), right.grpc.clone()],
    ];
    let traffic = ["--duration", "15s", "--rate", "20", "--callers", "4"];
    let runs = (0..10).map(|run| {
        let servers = &installations[run % 2];
        let descriptor =
            format!("{}=run-{run}", ["fixed_window", "sliding_window_counter"][run / 5]);
        let limits = &limits;
        async move {
            let arguments = [&traffic[..], &["--descriptor", &descriptor]].concat();
            verify(servers, limits, &arguments).await
        }
    });
    for (code, report) in futures::future::join_all(runs).await {
        assert_exact(code, &report);
        let limit = &report["verified"]["limits"][0];
        let known = limit["windows_begin_within_seconds"].as_f64().unwrap();
        assert!(known < 1.5, "{report:#}");
        // At least three windows, so that their beginning matters.
        assert!(limit["admitted_hits"].as_u64().unwrap() > 40, "{report:#}");
    }
    alone.drain_and_stop().await;
    ahead.drain_and_stop().await;
}

// === Invalid arguments ===

#[tokio::test]
async fn invalid_arguments_are_reported() {
    let (_folder, limits) = file(&limits_of_all("unit: day, requests_per_unit: 10"));
    let limits = limits.to_str().unwrap();
    let (_other, bad) = file("domain: api\ndescriptors:\n  - kee: a\n  - kee: b\n");
    let unused = format!("127.0.0.1:{}", free_port());
    let known = ["--limits", limits, "--descriptor", "gcra=a"];
    let with = |more: &[&'static str]| [&known[..], more].concat();
    let cases: [(Vec<&str>, i32, &str); 13] = [
        (
            vec!["--limits", "/none/limits.yaml", "--descriptor", "a=b"],
            2,
            "error: --limits: /none/limits.yaml: No such file",
        ),
        (
            vec!["--limits", bad.to_str().unwrap(), "--descriptor", "a=b"],
            2,
            "did you mean key?; and 1 more, see `sluicegate validate`",
        ),
        (
            vec!["--limits", limits, "--descriptor", "gcra=a", "--descriptor", "user={3},b=c"],
            2,
            "error: --descriptor user=1, b=c: no rule of the limits files matches it",
        ),
        (with(&["--domain", "shop"]), 2, "--domain shop: the limits files describe no such domain"),
        (with(&["--rate", "0"]), 2, "must be above 0, and 1000000 at most"),
        (with(&["--rate", "NaN"]), 2, "must be above 0, and 1000000 at most"),
        (with(&["--callers", "0"]), 2, "0 is not in 1..=10000"),
        (with(&["--count", "0"]), 2, "--count"),
        (with(&["--duration", "0s"]), 2, "must be above 0s"),
        (with(&["--count", "5", "--duration", "5s"]), 2, "cannot be used with"),
        (
            vec!["--domain", "api", "--descriptor", "gcra={0}"],
            2,
            "a placeholder is {1} to {1000000}",
        ),
        (vec!["--domain", "api", "--descriptor", "gcra=a", "--verify"], 2, "--limits"),
        (with(&[]), 3, "error: cannot connect to http://127.0.0.1:"),
    ];
    for (arguments, expected, message) in cases {
        let Finished { code, stdout, stderr } =
            load(std::slice::from_ref(&unused), &arguments).await;
        assert_eq!((code, stdout.as_str()), (expected, ""), "{arguments:?}: {stderr}");
        assert!(
            stderr.starts_with("error: ") && stderr.contains(message),
            "{arguments:?}: {stderr}"
        );
    }
}

#[tokio::test]
async fn a_server_with_only_errors_exits_with_3() {
    let server = Sluicegate::start("domain: api\ndescriptors: []\n", &[]).await;
    // The HTTP listener speaks no gRPC.
    let http = std::slice::from_ref(&server.http);
    let arguments = ["--domain", "api", "--descriptor", "a=b", "--count", "3", "--timeout", "2s"];
    let Finished { code, stdout, stderr } = load(http, &arguments).await;
    assert_eq!(code, 3, "{stdout}{stderr}");
    assert!(stdout.starts_with("3 requests: 0 allowed, 0 refused, 3 errors\n"), "{stdout}");
    assert!(stderr.starts_with("error: no request was answered: "), "{stderr}");
}
