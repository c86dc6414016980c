//! TLS and mTLS of the gRPC listener, and reloads of certificates.

use std::{fs, path::Path};

use sluicegate_proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use sluicegate_tests::{Authority, Finished, Sluicegate, binary, finish, hit, until};
use tempfile::TempDir;
use tokio::process::Command;
use tonic::transport::{Certificate, Channel, ClientTlsConfig};

const LIMITS: &str = "
domain: api
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 1000}
";

const HOST: &str = "127.0.0.1";

async fn start(folder: TempDir, flags: &[&str]) -> Sluicegate {
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let [limits, cert, key] = ["limits.yaml", "server.pem", "server.key"].map(path);
    fs::write(&limits, LIMITS).unwrap();
    let files = ["--limits", &limits, "--grpc-tls-cert", &cert, "--grpc-tls-key", &key];
    Sluicegate::start_with(folder, &[&files[..], flags].concat()).await
}

async fn sluicectl(server: &Sluicegate, flags: &[(&str, &Path)]) -> Finished {
    let mut command = Command::new(binary("sluicectl"));
    command.args(["check", "--domain", "api", "--descriptor", "user=bob", "--timeout", "30s"]);
    command.arg("--server").arg(format!("https://{}", server.grpc));
    for (flag, file) in flags {
        command.arg(flag).arg(file);
    }
    finish(command).await
}

async fn connect(server: &Sluicegate, authority: &str) -> RateLimitServiceClient<Channel> {
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authority));
    let endpoint = Channel::from_shared(format!("https://{}", server.grpc)).unwrap();
    RateLimitServiceClient::new(endpoint.tls_config(tls).unwrap().connect().await.unwrap())
}

#[tokio::test]
async fn callers_that_trust_the_ca_connect() {
    let folder = tempfile::tempdir().unwrap();
    let (ours, other) = (Authority::new("ours"), Authority::new("other"));
    ours.issue(HOST).write(folder.path(), "server");
    fs::write(folder.path().join("ca.pem"), ours.pem()).unwrap();
    fs::write(folder.path().join("other.pem"), other.pem()).unwrap();
    let server = start(folder, &[]).await;
    let answer = sluicectl(&server, &[("--tls-ca", &server.folder().join("ca.pem"))]).await;
    assert_eq!((answer.code, answer.stdout.lines().next()), (0, Some("allowed")), "{answer:?}");
    let answer = sluicectl(&server, &[("--tls-ca", &server.folder().join("other.pem"))]).await;
    assert_eq!((answer.code, answer.stdout.as_str()), (3, ""), "{answer:?}");
    assert!(answer.stderr.contains("certificate"), "{answer:?}");
    until("the failure to be counted", || async {
        (server.metric("sluicegate_tls_handshakes_failed_total").await == 1.0).then_some(())
    })
    .await;
    // Without TLS at all.
    let plain = Channel::from_shared(format!("http://{}", server.grpc)).unwrap().connect_lazy();
    let answer = RateLimitServiceClient::new(plain).should_rate_limit(hit("user", "bob")).await;
    assert!(answer.is_err(), "{answer:?}");
}

#[tokio::test]
async fn callers_need_a_certificate_of_the_client_ca() {
    let folder = tempfile::tempdir().unwrap();
    let (ours, other) = (Authority::new("ours"), Authority::new("other"));
    ours.issue(HOST).write(folder.path(), "server");
    ours.issue("caller").write(folder.path(), "caller");
    other.issue("caller").write(folder.path(), "stranger");
    fs::write(folder.path().join("ca.pem"), ours.pem()).unwrap();
    let ca = folder.path().join("ca.pem").to_str().unwrap().to_owned();
    let server = start(folder, &["--grpc-tls-client-ca", &ca]).await;
    let path = |name: &str| server.folder().join(name);
    for (name, code) in [("caller", 0), ("stranger", 3)] {
        let (cert, key) = (path(&format!("{name}.pem")), path(&format!("{name}.key")));
        let flags = [("--tls-ca", &*path("ca.pem")), ("--tls-cert", &*cert), ("--tls-key", &*key)];
        let answer = sluicectl(&server, &flags).await;
        assert_eq!(answer.code, code, "{name}: {answer:?}");
    }
    let answer = sluicectl(&server, &[("--tls-ca", &path("ca.pem"))]).await;
    assert_eq!(answer.code, 3, "{answer:?}");
    assert_eq!(server.metric("sluicegate_tls_handshakes_failed_total").await, 2.0);
}

#[tokio::test]
async fn new_connections_get_reloaded_certificates() {
    let folder = tempfile::tempdir().unwrap();
    let authorities = ["first", "second", "third"].map(Authority::new);
    authorities[0].issue(HOST).write(folder.path(), "server");
    let server = start(folder, &["--poll-interval", "1h"]).await;
    let loads = async |result: &str| {
        server.metric(&format!("sluicegate_tls_loads_total{{result=\"{result}\"}}")).await
    };
    let mut connections = vec![connect(&server, &authorities[0].pem()).await];
    for (taken_up, authority) in (1..).zip(&authorities[1..]) {
        authority.issue(HOST).write(server.folder(), "server");
        // The files change one after the other; in between they need not match.
        until("the new certificate", || async {
            (loads("success").await >= f64::from(taken_up)).then_some(())
        })
        .await;
        connections.push(connect(&server, &authority.pem()).await);
    }
    for connection in &mut connections {
        connection.should_rate_limit(hit("user", "bob")).await.unwrap();
    }
    let old = server.folder().join("first.pem");
    fs::write(&old, authorities[0].pem()).unwrap();
    let answer = sluicectl(&server, &[("--tls-ca", &old)]).await;
    assert_eq!(answer.code, 3, "{answer:?}");
    server.process.printed("TLS files reloaded", 1).await;

    let successful = async || server.metric("sluicegate_tls_last_load_successful").await;
    assert_eq!(successful().await, 1.0);
    fs::write(server.folder().join("server.key"), "no key").unwrap();
    server.process.printed("TLS files rejected", 1).await;
    assert_eq!(successful().await, 0.0);
    let mut connection = connect(&server, &authorities[2].pem()).await;
    connection.should_rate_limit(hit("user", "bob")).await.unwrap();
}
