//! Flags of `sluicectl check`.

use serde_json::Value;
use sluicegate_tests::{Finished, Sluicegate};
use tokio::net::TcpListener;

use super::{
    LIMITS, Row,
    given::{Given, left, one_line},
    row,
};

pub(super) fn rows() -> Vec<Row> {
    let question = "part of the question, not a setting";
    vec![
        row("check --domain", "api", check_domain).without_variable(question),
        row("check --descriptor", "user=bob", check_descriptor).without_variable(question),
        row("check --hits", "4", check_hits).without_variable(question),
        row("check --output", "json", check_output),
        row("check --server", "unix:{folder}/s.sock", check_server),
        row("check --timeout", "123ms", check_timeout),
        row("check --tls-ca", "{folder}/ca.pem", check_tls_ca),
        row("check --tls-cert", "{folder}/caller.pem", check_tls_client),
        row("check --tls-key", "{folder}/caller.key", check_tls_client),
        row("check --tls-server-name", "limits.example", check_tls_server_name),
    ]
}

/// A server with LIMITS, and its URL.
pub(super) async fn served() -> (Sluicegate, String) {
    let server = Sluicegate::start(LIMITS, &[]).await;
    let address = format!("http://{}", server.grpc);
    (server, address)
}

pub(super) fn says(answer: &Finished, code: i32, text: &str) {
    assert_eq!(answer.code, code, "{answer:?}");
    assert!(answer.stdout.contains(text), "{answer:?}");
}

pub(super) async fn check_domain(given: Given) {
    let (_server, address) = served().await;
    says(&given.sluicectl(&[("--server", &address)]).await, 0, "9 of 10 per day left");
    says(&given.with("other").sluicectl(&[("--server", &address)]).await, 0, "no limit applies");
}

pub(super) async fn check_descriptor(given: Given) {
    let (server, address) = served().await;
    let answer = given.sluicectl(&[("--server", &address)]).await;
    says(&answer, 0, "user=bob    9 of 10 per day left");
    assert_eq!((left(&server, "bob").await, left(&server, "eve").await), (9, 10));
}

pub(super) async fn check_hits(given: Given) {
    let (_server, address) = served().await;
    let server = ("--server", &*address);
    says(&given.sluicectl(&[server]).await, 0, "allowed\n  user=bob    6 of 10");
    says(&given.with("7").sluicectl(&[server]).await, 1, "refused, retry in");
    says(&given.with("-2").sluicectl(&[server]).await, 0, "8 of 10");
    says(&given.with("0").sluicectl(&[server]).await, 0, "8 of 10");
}

pub(super) async fn check_output(given: Given) {
    let (_server, address) = served().await;
    let answer = given.sluicectl(&[("--server", &address)]).await;
    let json: Value = serde_json::from_str(&answer.stdout).unwrap();
    assert_eq!(
        (json["allowed"].clone(), json["statuses"][0]["remaining"].clone()),
        (true.into(), 9.into())
    );
}

pub(super) async fn check_server(given: Given) {
    let _server = Sluicegate::start(LIMITS, &["--grpc-listen", &given.value]).await;
    says(&given.sluicectl(&[]).await, 0, "9 of 10");
}

pub(super) async fn check_timeout(given: Given) {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", silent.local_addr().unwrap());
    let answer = given.sluicectl(&[("--server", &address)]).await;
    one_line(&answer, 3, &["no answer within 123ms"]);
}

pub(super) async fn served_with_tls(given: &Given, flags: &[(&str, &str)]) -> (Sluicegate, String) {
    let [limits, cert, key] =
        ["limits.yaml", "server.pem", "server.key"].map(|name| given.path(name));
    let files = [("--limits", &*limits), ("--grpc-tls-cert", &*cert), ("--grpc-tls-key", &*key)];
    let all: Vec<_> = files.iter().chain(flags).flat_map(|(flag, value)| [*flag, *value]).collect();
    let server = Sluicegate::start_with(tempfile::tempdir().unwrap(), &all).await;
    let address = format!("https://{}", server.grpc);
    (server, address)
}

pub(super) async fn check_tls_ca(given: Given) {
    given.certify("127.0.0.1", &[]);
    let (_server, address) = served_with_tls(&given, &[]).await;
    says(&given.sluicectl(&[("--server", &address)]).await, 0, "9 of 10");
}

pub(super) async fn check_tls_client(given: Given) {
    given.certify("127.0.0.1", &[("caller", "caller")]);
    let [ca, cert, key] = ["ca.pem", "caller.pem", "caller.key"].map(|name| given.path(name));
    let (_server, address) = served_with_tls(&given, &[("--grpc-tls-client-ca", &ca)]).await;
    let flags =
        [("--server", &*address), ("--tls-ca", &*ca), ("--tls-cert", &*cert), ("--tls-key", &*key)];
    says(&given.sluicectl(&flags).await, 0, "9 of 10");
}

pub(super) async fn check_tls_server_name(given: Given) {
    given.certify("limits.example", &[]);
    let (server, address) = served_with_tls(&given, &[]).await;
    let ca = given.path("ca.pem");
    says(&given.sluicectl(&[("--server", &address), ("--tls-ca", &ca)]).await, 0, "9 of 10");
    assert_eq!(given.call(&server, None).await.code, 3, "the address is not in the certificate");
}
