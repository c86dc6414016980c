//! Flags of `sluicectl health`.

use sluicegate_tests::{Finished, Sluicegate};
use tokio::net::TcpListener;

use super::{
    LIMITS, Row,
    check::{says, served, served_with_tls},
    given::{Given, long, one_line},
    row,
};

pub(super) fn rows() -> Vec<Row> {
    let question = "part of the question, not a setting";
    vec![
        row("health --service", "liveness", health_service).without_variable(question),
        row("health --output", "json", health_output),
        row("health --server", "unix:{folder}/s.sock", health_server),
        row("health --timeout", "123ms", health_timeout),
        row("health --tls-ca", "{folder}/ca.pem", health_tls),
        row("health --tls-cert", "{folder}/caller.pem", health_tls),
        row("health --tls-key", "{folder}/caller.key", health_tls),
        row("health --tls-server-name", "limits.example", health_tls),
    ]
}

impl Given {
    pub(super) async fn health(&self, flags: &[(&str, &str)]) -> Finished {
        let patient: Vec<_> = [("--timeout", "30s")].iter().chain(flags).copied().collect();
        self.run("sluicectl", "health", &patient).await
    }
}

pub(super) async fn health_service(given: Given) {
    let (_server, address) = served().await;
    says(&given.health(&[("--server", &address)]).await, 0, "serving");
    let unknown = given.with("unknown").health(&[("--server", &address)]).await;
    assert_eq!(unknown.code, 3, "{unknown:?}");
}

pub(super) async fn health_output(given: Given) {
    let (_server, address) = served().await;
    says(&given.health(&[("--server", &address)]).await, 0, r#"{"status":"SERVING"}"#);
}

pub(super) async fn health_server(given: Given) {
    let _server = Sluicegate::start(LIMITS, &["--grpc-listen", &given.value]).await;
    says(&given.health(&[]).await, 0, "serving");
}

pub(super) async fn health_timeout(given: Given) {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", silent.local_addr().unwrap());
    one_line(&given.health(&[("--server", &address)]).await, 3, &["no answer within 123ms"]);
}

pub(super) async fn health_tls(given: Given) {
    let name = long(&given);
    let host = if name == "--tls-server-name" { "limits.example" } else { "127.0.0.1" };
    given.certify(host, &[("caller", "caller")]);
    let [ca, cert, key] = ["ca.pem", "caller.pem", "caller.key"].map(|file| given.path(file));
    let mutual = matches!(&*name, "--tls-cert" | "--tls-key");
    let client_ca = [("--grpc-tls-client-ca", &*ca)];
    let (_server, address) = served_with_tls(&given, if mutual { &client_ca } else { &[] }).await;
    let mut flags = vec![("--server", &*address), ("--tls-ca", &*ca)];
    if mutual {
        flags.extend([("--tls-cert", &*cert), ("--tls-key", &*key)]);
    }
    says(&given.health(&flags).await, 0, "serving");
}
