//! The other commands of `sluicectl` that call the admin listener.

use serde_json::Value;
use sluicegate_tests::{Finished, Sluicegate, binary, finish};
use tokio::{net::TcpListener, process::Command};

use super::{
    ADMIN_COMMANDS, BOB, Row, TENANTS,
    check::says,
    explain::explained_with_tls,
    given::{Given, code, left, one_line},
    row,
};

pub(super) fn rows() -> Vec<Row> {
    let question = "part of the question, not a setting";
    vec![
        row("rules --domain", "other", rules_filter).without_variable(question),
        row("rules --path", "other", rules_filter).without_variable(question),
        row("peek --domain", "other", peek_elsewhere).without_variable(question),
        row("peek --descriptor", "other=x", peek_elsewhere).without_variable(question),
        row("peek --tenant", "bob", peek_tenant).without_variable(question),
        row("peek --limit", "1", peek_limit).without_variable(question),
        row("reset counter --domain", "other", reset_domain).without_variable(question),
        row("reset counter --descriptor", "other=x", reset_elsewhere).without_variable(question),
        row("reset counter --limit", "some", reset_limit).without_variable(question),
        row("reset counter --key", BOB, reset_key).without_variable(question),
        row("reset counter --dry-run", "", reset_dry_run).without_variable(question),
        row("reset tenant --domain", "api", reset_tenant).without_variable(question),
        row("reset tenant --tenant", "bob", reset_tenant).without_variable(question),
        row("reset tenant --dry-run", "", reset_dry_run).without_variable(question),
        row("reset tenant --yes", "", reset_yes).without_variable(question),
        row("top --kind", "near", top_kind).without_variable(question),
        row("top --count", "1", top_count).without_variable(question),
        row("top --domain", "other", top_domain).without_variable(question),
        row("top --interval", "1ms", top_interval),
        row("top --once", "", top_once).without_variable(question),
    ]
}

impl Given {
    /// Runs the command with its required arguments, unless `flags` has them.
    pub(super) async fn admin(&self, command: &str, flags: &[(&str, &str)]) -> Finished {
        let (_, required) = ADMIN_COMMANDS.iter().find(|(name, _)| *name == command).unwrap();
        let required = required.iter().copied().chain([("--timeout", "30s")]);
        let required = required.filter(|(name, _)| flags.iter().all(|(flag, _)| flag != name));
        let all: Vec<_> = required.chain(flags.iter().copied()).collect();
        self.run("sluicectl", command, &all).await
    }
}

/// A server with the limits TENANTS where bob has used two hits, and the URL of its admin listener.
pub(super) async fn administered(flags: &[&str]) -> (Sluicegate, String) {
    let server = Sluicegate::start(TENANTS, flags).await;
    code(&server, "bob", 1).await;
    code(&server, "bob", 1).await;
    let address = format!("http://{}", server.admin);
    (server, address)
}

/// Asserts that the server has answered, with a positive or a negative result.
pub(super) fn assert_answered(answer: &Finished) {
    assert!(matches!(answer.code, 0 | 1) && answer.stderr.is_empty(), "{answer:?}");
}

pub(super) async fn admin_output(command: &'static str, given: Given) {
    let (_server, address) = administered(&[]).await;
    let answer = given.admin(command, &[("--admin-server", &address)]).await;
    assert_answered(&answer);
    assert!(serde_json::from_str::<Value>(&answer.stdout).unwrap().is_object());
}

pub(super) async fn admin_server(command: &'static str, given: Given) {
    let _server = Sluicegate::start(TENANTS, &["--admin-listen", &given.value]).await;
    assert_answered(&given.admin(command, &[]).await);
}

pub(super) async fn admin_token(command: &'static str, given: Given) {
    given.write("token", "the-operators-secret");
    let (_server, address) = administered(&["--admin-token-file", &given.path("token")]).await;
    assert_answered(&given.admin(command, &[("--admin-server", &address)]).await);
    let other = given.without_flag().admin(command, &[("--admin-server", &address)]).await;
    assert_eq!(other.code, 3, "{other:?}");
}

pub(super) async fn admin_timeout(command: &'static str, given: Given) {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", silent.local_addr().unwrap());
    let answer = given.admin(command, &[("--admin-server", &address)]).await;
    one_line(&answer, 3, &["no answer within 123ms"]);
}

pub(super) async fn admin_with_tls(given: &Given, flags: &[(&str, &str)]) -> (Sluicegate, String) {
    given.write("limits.yaml", TENANTS);
    explained_with_tls(given, flags).await
}

pub(super) async fn admin_ca(command: &'static str, given: Given) {
    given.certify("127.0.0.1", &[]);
    let (_server, address) = admin_with_tls(&given, &[]).await;
    assert_answered(&given.admin(command, &[("--admin-server", &address)]).await);
}

pub(super) async fn admin_client_cert(command: &'static str, given: Given) {
    given.certify("127.0.0.1", &[("caller", "caller")]);
    let [ca, cert, key] = ["ca.pem", "caller.pem", "caller.key"].map(|name| given.path(name));
    let (_server, address) = admin_with_tls(&given, &[("--admin-tls-client-ca", &ca)]).await;
    let address = ("--admin-server", &*address);
    let flags = [address, ("--tls-ca", &*ca), ("--tls-cert", &*cert), ("--tls-key", &*key)];
    assert_answered(&given.admin(command, &flags).await);
}

pub(super) async fn admin_server_name(command: &'static str, given: Given) {
    given.certify("limits.example", &[]);
    let (server, address) = admin_with_tls(&given, &[]).await;
    let ca = given.path("ca.pem");
    let flags = [("--admin-server", &*address), ("--tls-ca", &*ca)];
    assert_answered(&given.admin(command, &flags).await);
    assert_eq!(
        given.call_admin(&server, None).await.code,
        3,
        "the address is not in the certificate"
    );
}

pub(super) async fn rules_filter(given: Given) {
    let (_server, address) = administered(&[]).await;
    let server = ("--admin-server", &*address);
    says(&given.admin("rules", &[server]).await, 1, "no such rules");
    let right = if given.name == "--domain" { "api" } else { "user" };
    says(&given.with(right).admin("rules", &[server]).await, 0, "10 per day (some)");
}

pub(super) async fn peek_elsewhere(given: Given) {
    let (_server, address) = administered(&[]).await;
    says(&given.admin("peek", &[("--admin-server", &address)]).await, 1, "no limit applies");
}

pub(super) async fn peek_tenant(given: Given) {
    let (_server, address) = administered(&[]).await;
    let flags = [("--domain", "api"), ("--admin-server", &*address)];
    says(&given.run("sluicectl", "peek", &flags).await, 0, BOB);
}

pub(super) async fn peek_limit(given: Given) {
    let limits = "domain: api\ntenant: user\ndescriptors:\n  - key: user\n    limits:\n      - {unit: day, requests_per_unit: 9}\n      - {unit: hour, requests_per_unit: 9}\n";
    let server = Sluicegate::start(limits, &[]).await;
    code(&server, "bob", 1).await;
    let address = format!("http://{}", server.admin);
    let flags = [("--domain", "api"), ("--tenant", "bob"), ("--admin-server", &*address)];
    says(&given.run("sluicectl", "peek", &flags).await, 0, "and more; see --limit");
}

pub(super) async fn reset_domain(given: Given) {
    let (server, address) = administered(&[]).await;
    let flags = [("--admin-server", &*address)];
    let other = given.admin("reset counter", &flags).await;
    one_line(&other, 1, &["no limits file has domain other"]);
    assert_eq!(left(&server, "bob").await, 8);
}

pub(super) async fn reset_elsewhere(given: Given) {
    let (server, address) = administered(&[]).await;
    let flags = [("--admin-server", &*address)];
    says(&given.admin("reset counter", &flags).await, 1, "no limit applies");
    assert_eq!(left(&server, "bob").await, 8);
}

pub(super) async fn reset_limit(given: Given) {
    let (server, address) = administered(&[]).await;
    let flags = [("--admin-server", &*address)];
    let other = given.with("other").admin("reset counter", &flags).await;
    one_line(&other, 1, &["no limit of the name other", "these do: some"]);
    says(&given.admin("reset counter", &flags).await, 0, BOB);
    assert_eq!(left(&server, "bob").await, 10);
}

pub(super) async fn reset_key(given: Given) {
    let (server, address) = administered(&[]).await;
    let answer = given.run("sluicectl", "reset counter", &[("--admin-server", &address)]).await;
    says(&answer, 0, BOB);
    assert_eq!(left(&server, "bob").await, 10);
}

pub(super) async fn reset_tenant(given: Given) {
    let (server, address) = administered(&[]).await;
    let answer = given.admin("reset tenant", &[("--admin-server", &address)]).await;
    says(&answer, 0, "1 counter reset");
    assert_eq!(left(&server, "bob").await, 10);
}

/// Runs a complete command line with a flag that needs no value.
pub(super) async fn with_switch(command: &[&str], address: &str, switch: &str) -> Finished {
    let mut all = Command::new(binary("sluicectl"));
    all.args(command).args(["--timeout", "30s", "--admin-server", address, switch]);
    finish(all).await
}

pub(super) async fn reset_dry_run(given: Given) {
    let (server, address) = administered(&[]).await;
    for command in [
        ["reset", "counter", "--domain", "api", "--descriptor", "user=bob"],
        ["reset", "tenant", "--domain", "api", "--tenant", "bob"],
    ] {
        assert_answered(&with_switch(&command, &address, given.name).await);
        assert_eq!(left(&server, "bob").await, 8);
    }
}

pub(super) async fn reset_yes(given: Given) {
    let (server, address) = administered(&[]).await;
    // In a terminal, in which the command could ask for confirmation.
    let sluicectl = binary("sluicectl").display().to_string();
    let reset =
        format!("{sluicectl} reset tenant --domain api --tenant bob --admin-server {address}");
    let typed = async |line: &str| {
        let mut shell = Command::new("bash");
        shell.args(["-c", &format!("echo n | script -qec '{line}' /dev/null")]);
        finish(shell).await
    };
    let asked = typed(&reset).await;
    assert!(asked.stdout.contains("reset every counter of tenant bob"), "{asked:?}");
    assert_eq!(left(&server, "bob").await, 8);
    let sure = typed(&format!("{reset} {}", given.name)).await;
    assert!(sure.stdout.contains("1 counter reset"), "{sure:?}");
    assert_eq!(left(&server, "bob").await, 10);
}

pub(super) async fn limited(names: &[&str]) -> (Sluicegate, String) {
    let (server, address) = administered(&["--top-labels", "plain"]).await;
    for name in names {
        code(&server, name, 11).await;
    }
    (server, address)
}

pub(super) async fn top_kind(given: Given) {
    let (server, address) = limited(&["eve"]).await;
    code(&server, "bob", 8).await;
    let answer = given.admin("top", &[("--admin-server", &address)]).await;
    says(&answer, 0, BOB);
    assert!(!answer.stdout.contains("{eve}"), "{answer:?}");
}

pub(super) async fn top_count(given: Given) {
    let (_server, address) = limited(&["eve", "mallory"]).await;
    let answer = given.admin("top", &[("--admin-server", &address)]).await;
    assert_eq!(answer.stdout.matches("s1:").count(), 1, "{answer:?}");
}

pub(super) async fn top_domain(given: Given) {
    let (_server, address) = limited(&["eve"]).await;
    says(&given.admin("top", &[("--admin-server", &address)]).await, 0, "no refusals");
}

pub(super) async fn top_interval(given: Given) {
    let answer = given.admin("top", &[]).await;
    assert_eq!(answer.code, 2, "{answer:?}");
    assert!(answer.stderr.contains("at least 100ms"), "{answer:?}");
}

pub(super) async fn top_once(given: Given) {
    let (_server, address) = limited(&["eve"]).await;
    let sluicectl = binary("sluicectl").display().to_string();
    let line = format!("{sluicectl} top --admin-server {address} {}", given.name);
    let mut script = Command::new("script");
    script.args(["-qec", &line, "/dev/null"]);
    let answer = finish(script).await;
    assert_eq!(answer.stdout.matches("s1:tb:86400:{eve}").count(), 1, "{answer:?}");
}
