//! Flags of `sluicectl load`.

use serde_json::Value;
use sluicegate_tests::{Finished, Sluicegate, binary, finish};
use tokio::{net::TcpListener, process::Command};

use super::{
    LIMITS, Row,
    check::{says, served, served_with_tls},
    given::{Given, code},
    row,
    settings_and_limits::{TOO_MANY_BYTES, TOO_MANY_FILES, second_file, two_of_a_domain},
    telemetry::LOG_LIMITS,
};

pub(super) fn rows() -> Vec<Row> {
    let question = "part of the question, not a setting";
    vec![
        row("load --domain", "other", load_elsewhere).without_variable(question),
        row("load --descriptor", "other=x", load_elsewhere).without_variable(question),
        row("load --hits", "5", load_hits).without_variable(question),
        row("load --count", "11", load_count).without_variable(question),
        row("load --duration", "300ms", load_duration).without_variable(question),
        row("load --rate", "50", load_rate).without_variable(question),
        row("load --callers", "3", load_callers).without_variable(question),
        row("load --zipf", "10", load_zipf).without_variable(question),
        row("load --seed", "7", load_seed).without_variable(question),
        row("load --limits", "{folder}/limits.yaml", load_limits).without_variable(question),
        row("load --default-counting", "upstream", load_default_counting),
        row("load --merge-domains", "true", load_merge_domains),
        row("load --limits-max-files", "1", load_limits_max_files),
        row("load --limits-max-bytes", "200", load_limits_max_bytes),
        row("load --shadow-mode", "true", load_shadow_mode),
        row("load --quota-mode", "true", load_quota_mode),
        row("load --output", "json", load_output),
        row("load --verify", "", load_verify).without_variable(question),
        row("load --tolerance", "50ms", load_tolerance).without_variable(question),
        row("load --server", "unix:{folder}/s.sock", load_server),
        row("load --timeout", "123ms", load_timeout),
        row("load --tls-ca", "{folder}/ca.pem", load_tls),
        row("load --tls-cert", "{folder}/caller.pem", load_tls),
        row("load --tls-key", "{folder}/caller.key", load_tls),
        row("load --tls-server-name", "limits.example", load_tls),
    ]
}

impl Given {
    /// Runs twelve requests of bob, whose limit is ten, unless `flags` changes that.
    pub(super) async fn load(&self, flags: &[(&str, &str)]) -> Finished {
        let mut command = Command::new(binary("sluicectl"));
        command.arg("load").envs(self.environment());
        match self.value.as_str() {
            "" => command.arg(self.name),
            _ => command.args(self.flags()),
        };
        let usual = [("--domain", "api"), ("--descriptor", "user=bob"), ("--timeout", "30s")];
        let is_given = |name: &str| flags.iter().any(|(flag, _)| *flag == name);
        let usual = usual.into_iter().filter(|(name, _)| !is_given(name));
        for (flag, value) in usual.chain(flags.iter().copied()) {
            if flag != self.name && !value.is_empty() {
                command.args([flag, value]);
            } else if flag != self.name && flag == "--verify" {
                command.arg(flag);
            }
        }
        if !is_given("--count") && !["--count", "--duration"].contains(&self.name) {
            command.args(["--count", "12"]);
        }
        finish(command).await
    }

    /// The report of a run with `--verify`.
    pub(super) async fn load_verified(&self, flags: &[(&str, &str)]) -> Value {
        let limits = self.path("limits.yaml");
        let own = [("--verify", ""), ("--limits", &*limits), ("--output", "json")];
        let answer = self.load(&[&own, flags].concat()).await;
        serde_json::from_str(&answer.stdout).unwrap_or_else(|error| panic!("{error}: {answer:?}"))
    }
}

pub(super) const TEN_OF_TWELVE: &str = "12 requests: 10 allowed, 2 refused, 0 errors";

pub(super) const ALL_OF_TWELVE: &str = "12 requests: 12 allowed, 0 refused, 0 errors";

pub(super) async fn load_elsewhere(given: Given) {
    let (_server, address) = served().await;
    says(&given.load(&[("--server", &address)]).await, 0, ALL_OF_TWELVE);
    let usual = if given.name == "--domain" { "api" } else { "user=bob" };
    says(&given.with(usual).load(&[("--server", &address)]).await, 0, TEN_OF_TWELVE);
}

pub(super) async fn load_hits(given: Given) {
    let (_server, address) = served().await;
    says(&given.load(&[("--server", &address)]).await, 0, "12 requests: 2 allowed, 10 refused");
}

pub(super) async fn load_count(given: Given) {
    let (_server, address) = served().await;
    says(&given.load(&[("--server", &address)]).await, 0, "11 requests: 10 allowed, 1 refused");
}

/// The report of a run, as JSON.
pub(super) async fn load_report(given: &Given, flags: &[(&str, &str)]) -> Value {
    let answer = given.load(&[&[("--output", "json")], flags].concat()).await;
    serde_json::from_str(&answer.stdout).unwrap_or_else(|error| panic!("{error}: {answer:?}"))
}

pub(super) async fn load_duration(given: Given) {
    let (_server, address) = served().await;
    let report = load_report(&given, &[("--server", &address), ("--rate", "50")]).await;
    let count = |what: &str| report[what].as_u64().unwrap();
    assert_eq!(count("requests") + count("not_sent"), 15, "{report:#}");
    assert!(count("requests") > 0, "{report:#}");
}

pub(super) async fn load_rate(given: Given) {
    let (_server, address) = served().await;
    let report = load_report(&given, &[("--server", &address)]).await;
    assert!(report["seconds"].as_f64().unwrap() >= 0.2, "{report:#}");
}

pub(super) async fn load_callers(given: Given) {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", silent.local_addr().unwrap());
    let flags = [("--server", &*address), ("--count", "3"), ("--timeout", "300ms")];
    let seconds = async |given: &Given| {
        let report = load_report(given, &flags).await;
        assert_eq!(report["errors"], 3, "{report:#}");
        report["seconds"].as_f64().unwrap()
    };
    // Three requests wait concurrently, or one after the other.
    assert!(seconds(&given).await < seconds(&given.with("1")).await);
}

pub(super) async fn load_zipf(given: Given) {
    let (_server, address) = served().await;
    let flags = [("--server", &*address), ("--descriptor", "user={1000}")];
    says(&given.with("0").load(&flags).await, 0, ALL_OF_TWELVE);
    // Nearly all requests are of the first user.
    let report = load_report(&given, &flags).await;
    assert!(report["refused"].as_u64() >= Some(1), "{report:#}");
}

pub(super) async fn load_seed(given: Given) {
    let (_server, address) = served().await;
    let flags = [("--server", &*address), ("--descriptor", "user={1000}"), ("--hits", "10")];
    let first = load_report(&given, &flags).await;
    assert_eq!(first["seed"], 7);
    assert!(first["allowed"].as_u64() >= Some(6), "{first:#}");
    let again = load_report(&given, &flags).await;
    assert_eq!(again["allowed"], 0, "the same users: {again:#}");
    let others = load_report(&given.with("8"), &flags).await;
    assert!(others["allowed"].as_u64() >= Some(6), "{others:#}");
}

pub(super) async fn load_limits(given: Given) {
    let (_server, address) = served().await;
    // The domain comes from the file.
    let answer = given.load(&[("--server", &address), ("--domain", "")]).await;
    says(&answer, 0, TEN_OF_TWELVE);
}

pub(super) async fn load_default_counting(given: Given) {
    let (_server, address) = served().await;
    given.write("limits.yaml", LOG_LIMITS);
    let limits = given.path("limits.yaml");
    let answer = given.load(&[("--server", &address), ("--limits", &limits)]).await;
    assert!(answer.stderr.contains("sliding_window_log requires counting: free"), "{answer:?}");
    let answer = given.with("free").load(&[("--server", &address), ("--limits", &limits)]).await;
    says(&answer, 0, TEN_OF_TWELVE);
}

pub(super) async fn load_merge_domains(given: Given) {
    let (_server, address) = served().await;
    let (one, two) = two_of_a_domain(&given);
    let flags = [("--server", &*address), ("--limits", &*format!("{one},{two}"))];
    says(&given.load(&flags).await, 0, TEN_OF_TWELVE);
    let answer = given.with("false").load(&flags).await;
    assert!(answer.stderr.contains("is also defined in"), "{answer:?}");
}

pub(super) async fn load_bounds_files(given: Given, text: &str) {
    let (_server, address) = served().await;
    let (one, two) = second_file(&given);
    let flags = [("--server", &*address), ("--limits", &*format!("{one},{two}"))];
    let answer = given.load(&flags).await;
    assert!(answer.stderr.contains(text), "{answer:?}");
    says(&given.with("100000").load(&flags).await, 0, TEN_OF_TWELVE);
}

pub(super) async fn load_limits_max_files(given: Given) {
    load_bounds_files(given, TOO_MANY_FILES).await;
}

pub(super) async fn load_limits_max_bytes(given: Given) {
    load_bounds_files(given, TOO_MANY_BYTES).await;
}

pub(super) async fn load_shadow_mode(given: Given) {
    let (_server, address) = served().await;
    let server = ("--server", &*address);
    let not_verified = |report: Value| report["verified"]["limits"][0]["not_verified"].clone();
    assert_ne!(not_verified(given.load_verified(&[server]).await), Value::Null);
    assert_eq!(not_verified(given.with("false").load_verified(&[server]).await), Value::Null);
}

pub(super) async fn load_quota_mode(given: Given) {
    let under = |report: &Value| report["verified"]["under_admitted_hits"].as_u64().unwrap();
    for (given, is_exact) in [(given.clone(), false), (given.with("false"), true)] {
        let (server, address) = served().await;
        code(&server, "bob", 10).await;
        // The server has no quota mode: it refuses although only one of the two counters is over its limit.
        let mut command = Command::new(binary("sluicectl"));
        let limits = given.path("limits.yaml");
        command.args(["load", "--server", &address, "--limits", &limits, "--verify"]);
        command.args(["--descriptor", "user=bob", "--descriptor", "user=eve", "--count", "3"]);
        command.args(["--output", "json"]).args(given.flags()).envs(given.environment());
        let answer = finish(command).await;
        let report: Value = serde_json::from_str(&answer.stdout).unwrap();
        assert_eq!((report["refused"].as_u64(), under(&report) == 0), (Some(3), is_exact));
    }
}

pub(super) async fn load_output(given: Given) {
    let (_server, address) = served().await;
    let answer = given.load(&[("--server", &address)]).await;
    let report: Value = serde_json::from_str(&answer.stdout).unwrap();
    assert_eq!((&report["allowed"], &report["refused"]), (&10.into(), &2.into()));
}

pub(super) async fn load_verify(given: Given) {
    let (_server, address) = served().await;
    let report = given.load_verified(&[("--server", &address)]).await;
    assert_eq!(report["verified"]["limits"][0]["admitted_hits"], 10, "{report:#}");
}

pub(super) async fn load_tolerance(given: Given) {
    let (_server, address) = served().await;
    let report = given.load_verified(&[("--server", &address)]).await;
    assert_eq!(report["verified"]["tolerance_seconds"], 0.05, "{report:#}");
}

pub(super) async fn load_server(given: Given) {
    let _server = Sluicegate::start(LIMITS, &["--grpc-listen", &given.value]).await;
    says(&given.load(&[]).await, 0, TEN_OF_TWELVE);
}

pub(super) async fn load_timeout(given: Given) {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", silent.local_addr().unwrap());
    let answer = given.load(&[("--server", &address), ("--count", "1")]).await;
    assert!(answer.stdout.contains("no answer within 123ms"), "{answer:?}");
}

pub(super) async fn load_tls(given: Given) {
    let name = if given.name == "--tls-server-name" { "limits.example" } else { "127.0.0.1" };
    given.certify(name, &[("caller", "caller")]);
    let [ca, cert, key] = ["ca.pem", "caller.pem", "caller.key"].map(|name| given.path(name));
    let (_server, address) = served_with_tls(&given, &[("--grpc-tls-client-ca", &ca)]).await;
    let flags =
        [("--server", &*address), ("--tls-ca", &*ca), ("--tls-cert", &*cert), ("--tls-key", &*key)];
    says(&given.load(&flags).await, 0, TEN_OF_TWELVE);
}
