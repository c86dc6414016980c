//! Flags of `sluicectl explain`.

use serde_json::Value;
use sluicegate_tests::Sluicegate;
use tokio::net::TcpListener;

use super::{
    LIMITS, Row,
    check::says,
    given::{Given, code, left, one_line},
    row,
};

pub(super) fn rows() -> Vec<Row> {
    let question = "part of the question, not a setting";
    vec![
        row("explain --domain", "api", explain_domain).without_variable(question),
        row("explain --descriptor", "user=bob", explain_descriptor).without_variable(question),
        row("explain --hits", "11", explain_hits).without_variable(question),
        row("explain --output", "json", explain_output),
        row("explain --admin-server", "unix:{folder}/s.sock", explain_admin_server),
        row("explain --token-file", "{folder}/token", explain_token_file),
        row("explain --timeout", "123ms", explain_timeout),
        row("explain --tls-ca", "{folder}/ca.pem", explain_tls_ca),
        row("explain --tls-cert", "{folder}/caller.pem", explain_tls_client),
        row("explain --tls-key", "{folder}/caller.key", explain_tls_client),
        row("explain --tls-server-name", "limits.example", explain_tls_server_name),
    ]
}

/// A server with LIMITS, and the URL of its admin listener.
pub(super) async fn explained() -> (Sluicegate, String) {
    let server = Sluicegate::start(LIMITS, &[]).await;
    let address = format!("http://{}", server.admin);
    (server, address)
}

pub(super) async fn explain_domain(given: Given) {
    let (_server, address) = explained().await;
    let server = ("--admin-server", &*address);
    says(&given.explain(&[server]).await, 0, "limited by rule user (");
    says(&given.with("other").explain(&[server]).await, 0, "no limits file has this domain");
}

pub(super) async fn explain_descriptor(given: Given) {
    let (server, address) = explained().await;
    code(&server, "bob", 3).await;
    let server = ("--admin-server", &*address);
    says(&given.explain(&[server]).await, 0, "3 of 10 used, 7 left");
    says(&given.with("a=b").explain(&[server]).await, 0, "no node at level 1 matches a=b");
}

pub(super) async fn explain_hits(given: Given) {
    let (server, address) = explained().await;
    let flag = ("--admin-server", &*address);
    says(&given.explain(&[flag]).await, 1, "refuses, never passes");
    says(&given.with("10").explain(&[flag]).await, 0, "would pass");
    assert_eq!(left(&server, "bob").await, 10);
}

pub(super) async fn explain_output(given: Given) {
    let (_server, address) = explained().await;
    let answer = given.explain(&[("--admin-server", &address)]).await;
    let json: Value = serde_json::from_str(&answer.stdout).unwrap();
    assert_eq!(json["descriptors"][0]["outcome"], "limited");
}

pub(super) async fn explain_admin_server(given: Given) {
    let _server = Sluicegate::start(LIMITS, &["--admin-listen", &given.value]).await;
    says(&given.explain(&[]).await, 0, "would pass");
}

pub(super) async fn explain_token_file(given: Given) {
    given.write("token", "the-operators-secret");
    let token = given.path("token");
    let server = Sluicegate::start(LIMITS, &["--admin-token-file", &token]).await;
    let address = format!("http://{}", server.admin);
    says(&given.explain(&[("--admin-server", &address)]).await, 0, "would pass");
    assert_eq!(given.without_flag().explain(&[("--admin-server", &address)]).await.code, 3);
}

pub(super) async fn explain_timeout(given: Given) {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", silent.local_addr().unwrap());
    let answer = given.explain(&[("--admin-server", &address)]).await;
    one_line(&answer, 3, &["no answer within 123ms"]);
}

pub(super) async fn explained_with_tls(
    given: &Given,
    flags: &[(&str, &str)],
) -> (Sluicegate, String) {
    let [limits, cert, key] =
        ["limits.yaml", "server.pem", "server.key"].map(|name| given.path(name));
    let files = [("--limits", &*limits), ("--admin-tls-cert", &*cert), ("--admin-tls-key", &*key)];
    let all: Vec<_> = files.iter().chain(flags).flat_map(|(flag, value)| [*flag, *value]).collect();
    let server = Sluicegate::start_with(tempfile::tempdir().unwrap(), &all).await;
    let address = format!("https://{}", server.admin);
    (server, address)
}

pub(super) async fn explain_tls_ca(given: Given) {
    given.certify("127.0.0.1", &[]);
    let (_server, address) = explained_with_tls(&given, &[]).await;
    says(&given.explain(&[("--admin-server", &address)]).await, 0, "would pass");
}

pub(super) async fn explain_tls_client(given: Given) {
    given.certify("127.0.0.1", &[("caller", "caller")]);
    let [ca, cert, key] = ["ca.pem", "caller.pem", "caller.key"].map(|name| given.path(name));
    let (_server, address) = explained_with_tls(&given, &[("--admin-tls-client-ca", &ca)]).await;
    let address = ("--admin-server", &*address);
    let flags = [address, ("--tls-ca", &*ca), ("--tls-cert", &*cert), ("--tls-key", &*key)];
    says(&given.explain(&flags).await, 0, "would pass");
}

pub(super) async fn explain_tls_server_name(given: Given) {
    given.certify("limits.example", &[]);
    let (server, address) = explained_with_tls(&given, &[]).await;
    let ca = given.path("ca.pem");
    let flags = [("--admin-server", &*address), ("--tls-ca", &*ca)];
    says(&given.explain(&flags).await, 0, "would pass");
    assert_eq!(
        given.call_admin(&server, None).await.code,
        3,
        "the address is not in the certificate"
    );
}
