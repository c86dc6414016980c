//! Flags of the HTTP and admin listeners.

use sluicegate_tests::finish;

use super::{
    Row,
    check::says,
    given::{Given, one_line},
    row,
};

pub(super) fn rows() -> Vec<Row> {
    vec![
        row("serve --http-listen", "127.0.0.2:0", http_listen),
        row("serve --admin-listen", "127.0.0.2:0", admin_listen),
        row("serve --admin-token-file", "{folder}/token", admin_token_file),
        row("serve --admin-tls-cert", "{folder}/server.pem", admin_tls),
        row("serve --admin-tls-key", "{folder}/server.key", admin_tls),
        row("serve --admin-tls-client-ca", "{folder}/ca.pem", admin_tls_client_ca),
        row("serve --admin-tls-client-names", "other,spiffe://test/a", admin_tls_client_names),
    ]
}

pub(super) async fn http_listen(given: Given) {
    let server = given.serve(&[]).await;
    assert!(server.http.starts_with("127.0.0.2:"), "{}", server.http);
    assert_eq!(server.get("/healthcheck").await.0, 200);
}

pub(super) async fn admin_listen(given: Given) {
    let server = given.serve(&[]).await;
    assert!(server.admin.starts_with("127.0.0.2:"), "{}", server.admin);
    let address = format!("http://{}", server.admin);
    says(&given.without_flag().explain(&[("--admin-server", &address)]).await, 0, "0 of 10 used");
    let refused = finish(given.with("0.0.0.0:0").serve_command(&[])).await;
    one_line(&refused, 1, &["0.0.0.0:0 is open to the network"]);
}

pub(super) async fn admin_token_file(given: Given) {
    given.write("token", "the-operators-secret");
    given.write("other", "guess");
    let server = given.serve(&[]).await;
    let address = format!("http://{}", server.admin);
    let (good, bad) = (given.path("token"), given.path("other"));
    let explain = async |token: &str| {
        let flags = [("--admin-server", &*address), ("--token-file", token)];
        given.without_flag().explain(&flags).await.code
    };
    assert_eq!((explain(&good).await, explain(&bad).await), (0, 3));
    given.write("token", "fifteen-bytes--");
    let refused = finish(given.serve_command(&[])).await;
    one_line(&refused, 1, &["--admin-token-file: the first line of ", "less than 16 bytes"]);
}

pub(super) async fn admin_tls(given: Given) {
    given.certify("127.0.0.1", &[]);
    let (cert, key) = (given.path("server.pem"), given.path("server.key"));
    let server = given.serve(&[("--admin-tls-cert", &cert), ("--admin-tls-key", &key)]).await;
    assert_eq!(given.call_admin(&server, None).await.code, 0);
}

pub(super) async fn admin_tls_client_ca(given: Given) {
    given.certify("127.0.0.1", &[("caller", "caller")]);
    let (cert, key) = (given.path("server.pem"), given.path("server.key"));
    let server = given.serve(&[("--admin-tls-cert", &cert), ("--admin-tls-key", &key)]).await;
    assert_eq!(given.call_admin(&server, Some("caller")).await.code, 0);
    assert_eq!(given.call_admin(&server, None).await.code, 3);
}

pub(super) async fn admin_tls_client_names(given: Given) {
    given.certify("127.0.0.1", &[("a", "spiffe://test/a"), ("b", "spiffe://test/b")]);
    let [ca, cert, key] = ["ca.pem", "server.pem", "server.key"].map(|name| given.path(name));
    let flags =
        [("--admin-tls-cert", &*cert), ("--admin-tls-key", &*key), ("--admin-tls-client-ca", &*ca)];
    let server = given.serve(&flags).await;
    assert_eq!(given.call_admin(&server, Some("a")).await.code, 0);
    assert_eq!(given.call_admin(&server, Some("b")).await.code, 3);
}
