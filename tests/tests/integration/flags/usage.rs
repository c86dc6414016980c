//! The usage listener.

use sluicegate_tests::{Finished, Sluicegate, finish};
use tokio::process::Command;

use super::{
    Row,
    given::{Given, one_line},
    row,
};

pub(super) fn rows() -> Vec<Row> {
    vec![
        row("serve --usage-listen", "127.0.0.2:0", usage_listen),
        row("serve --usage-tenants-file", "{folder}/tenants.json", usage_tenants_file),
        row("serve --usage-max-requests-per-second", "1", usage_max_requests_per_second),
        row("serve --usage-tls-cert", "{folder}/server.pem", usage_tls),
        row("serve --usage-tls-key", "{folder}/server.key", usage_tls),
        row("serve --usage-tls-client-ca", "{folder}/ca.pem", usage_tls_client_ca),
        row("serve --usage-tls-client-names", "other,spiffe://test/a", usage_tls_client_names),
    ]
}

/// The token of the tenant `bob`.
const TOKEN: &str = "the-token-of-bob";

/// What `sha256sum` prints for it.
const TENANTS: &str = r#"{"tenants": [{
    "domain": "api",
    "descriptor": "user=bob",
    "token_sha256": ["14c82be42a0227d2fa226bb66cf042033e52fcfc5e06a8f73a4df3ebfa689890"]
}]}"#;

/// A server with a usage listener. The flag given takes the place of the same among `flags`.
async fn serve(given: &Given, flags: &[(&str, &str)]) -> Sluicegate {
    given.write("tenants.json", TENANTS);
    let tenants = given.path("tenants.json");
    let own = [("--usage-listen", "127.0.0.1:0"), ("--usage-tenants-file", &*tenants)];
    given.serve(&[&own, flags].concat()).await
}

fn address(server: &Sluicegate) -> String {
    let log = server.process.output();
    let line = log.lines().find(|line| line.contains("usage listener bound")).unwrap();
    line.split_once("address=").unwrap().1.trim().to_owned()
}

async fn curl(url: &str, flags: &[&str]) -> Finished {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--output", "/dev/null", "--write-out", "%{http_code}"]);
    curl.args(["--header", &format!("authorization: Bearer {TOKEN}"), url]).args(flags);
    finish(curl).await
}

/// The status of the usage of the tenant.
async fn status(server: &Sluicegate) -> String {
    curl(&format!("http://{}/usage", address(server)), &[]).await.stdout
}

/// The same over TLS, with the certificate of a caller; `000` without an answer.
async fn status_over_tls(given: &Given, server: &Sluicegate, caller: Option<&str>) -> String {
    let ca = given.path("ca.pem");
    let mut flags = vec!["--cacert".to_owned(), ca];
    if let Some(caller) = caller {
        flags.extend(["--cert".to_owned(), given.path(&format!("{caller}.pem"))]);
        flags.extend(["--key".to_owned(), given.path(&format!("{caller}.key"))]);
    }
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    curl(&format!("https://{}/usage", address(server)), &flags).await.stdout
}

pub(super) async fn usage_listen(given: Given) {
    let server = serve(&given, &[]).await;
    assert!(address(&server).starts_with("127.0.0.2:"));
    assert_eq!(status(&server).await, "200");
    let refused = finish(given.serve_command(&[])).await;
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("--usage-tenants-file"), "{}", refused.stderr);
}

pub(super) async fn usage_tenants_file(given: Given) {
    let server = serve(&given, &[]).await;
    assert_eq!(status(&server).await, "200");
    given.write("tenants.json", "{}");
    let refused = finish(given.serve_command(&[("--usage-listen", "127.0.0.1:0")])).await;
    one_line(&refused, 1, &["--usage-tenants-file: ", "tenants.json: missing field `tenants`"]);
}

pub(super) async fn usage_max_requests_per_second(given: Given) {
    let server = serve(&given, &[]).await;
    let mut statuses = Vec::new();
    // On a slow machine more than a second may pass between two requests.
    while !statuses.contains(&"429".to_owned()) {
        statuses.push(status(&server).await);
    }
    assert_eq!(statuses[0], "200");
}

pub(super) async fn usage_tls(given: Given) {
    given.certify("127.0.0.1", &[]);
    let (cert, key) = (given.path("server.pem"), given.path("server.key"));
    let server = serve(&given, &[("--usage-tls-cert", &cert), ("--usage-tls-key", &key)]).await;
    assert_eq!(status_over_tls(&given, &server, None).await, "200");
}

pub(super) async fn usage_tls_client_ca(given: Given) {
    given.certify("127.0.0.1", &[("caller", "caller")]);
    let (cert, key) = (given.path("server.pem"), given.path("server.key"));
    let server = serve(&given, &[("--usage-tls-cert", &cert), ("--usage-tls-key", &key)]).await;
    assert_eq!(status_over_tls(&given, &server, Some("caller")).await, "200");
    assert_eq!(status_over_tls(&given, &server, None).await, "000");
}

pub(super) async fn usage_tls_client_names(given: Given) {
    given.certify("127.0.0.1", &[("a", "spiffe://test/a"), ("b", "spiffe://test/b")]);
    let [ca, cert, key] = ["ca.pem", "server.pem", "server.key"].map(|name| given.path(name));
    let flags =
        [("--usage-tls-cert", &*cert), ("--usage-tls-key", &*key), ("--usage-tls-client-ca", &*ca)];
    let server = serve(&given, &flags).await;
    assert_eq!(status_over_tls(&given, &server, Some("a")).await, "200");
    assert_eq!(status_over_tls(&given, &server, Some("b")).await, "000");
}
