//! Unix sockets, TLS, lazy and eager connections.

use std::{fs, path::PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use sluicegate_client::{CheckError, Client, ConnectError, Endpoint};
use sluicegate_proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tempfile::TempDir;
use tonic::transport::{Certificate, Identity, ServerTlsConfig};

use sluicegate_client_testkit::service::{
    Service, client_of, free_address, response_with_limit, sample_check,
};

fn service() -> Service {
    Service::new(response_with_limit(Code::Ok, 9))
}

/// A certificate authority with a certificate for the service and one for the client.
struct Certificates {
    folder: TempDir,
    server: Identity,
    ca: Certificate,
}

impl Certificates {
    fn new() -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let issue = |name: &str| {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new([name.to_owned()]).unwrap();
            (params.signed_by(&key, &ca).unwrap().pem(), key.serialize_pem())
        };
        let (client, client_key) = issue("client.example");
        let (server, server_key) = issue("limiter.example");

        let folder = tempfile::tempdir().unwrap();
        let texts = [("ca.pem", ca.pem()), ("client.pem", client), ("client.key", client_key)];
        for (name, text) in texts {
            fs::write(folder.path().join(name), text).unwrap();
        }
        Self {
            folder,
            server: Identity::from_pem(server, server_key),
            ca: Certificate::from_pem(ca.pem()),
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

#[tokio::test]
async fn unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = service().start_unix(&folder.path().join("limiter.sock"));
    assert!(client_of(endpoint).check(sample_check()).await.unwrap().allowed);
}

#[tokio::test]
async fn missing_unix_socket_is_unavailable() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("none.sock");
    let endpoint: Endpoint = format!("unix:{}", path.display()).parse().unwrap();
    let error = client_of(endpoint).check(sample_check()).await.unwrap_err();
    assert!(matches!(error, CheckError::Unavailable { .. }), "{error}");
}

#[tokio::test]
async fn lazy_client_can_start_before_the_service() {
    let address = free_address().await;
    let endpoint: Endpoint = format!("http://{address}").parse().unwrap();
    let client = client_of(endpoint.clone());

    let error = client.check(sample_check()).await.unwrap_err();
    assert!(matches!(error, CheckError::Unavailable { .. }), "{error}");
    service().start_on(address).await;
    assert!(client.check(sample_check()).await.unwrap().allowed);
}

#[tokio::test]
async fn connect_fails_without_the_service() {
    let error = Client::connect(&format!("http://{}", free_address().await)).await.unwrap_err();
    let ConnectError::Unreachable { reason, .. } = &error else { panic!("{error}") };
    assert!(reason.contains("refused"), "{reason}");
}

#[tokio::test]
async fn tls_with_a_client_certificate() {
    let certificates = Certificates::new();
    let tls = ServerTlsConfig::new()
        .identity(certificates.server.clone())
        .client_ca_root(certificates.ca.clone());
    let endpoint = service().start_tls(tls).await;
    let builder = || {
        Client::builder(endpoint.clone())
            .deadline(std::time::Duration::from_secs(30))
            .connect_timeout(std::time::Duration::from_secs(30))
            .tls_ca_file(certificates.file("ca.pem"))
            .tls_server_name("limiter.example")
    };

    let known = builder()
        .tls_client_files(certificates.file("client.pem"), certificates.file("client.key"))
        .connect_lazy()
        .unwrap();
    assert!(known.check(sample_check()).await.unwrap().allowed);

    let plain: Endpoint = endpoint.to_string().replace("https:", "http:").parse().unwrap();
    let error = client_of(plain).check(sample_check()).await.unwrap_err().to_string();
    assert!(
        error.ends_with(
            "; does it ask for TLS or for a client certificate, or is it another listener?"
        ),
        "{error}"
    );

    let unknown = builder().connect_lazy().unwrap();
    let error = unknown.check(sample_check()).await.unwrap_err();
    assert!(matches!(error, CheckError::Unavailable { .. }), "{error}");
}

#[tokio::test]
async fn tls_rejects_other_names_and_authorities() {
    let certificates = Certificates::new();
    let tls = ServerTlsConfig::new().identity(certificates.server.clone());
    let endpoint = service().start_tls(tls).await;
    let error = async |ca: PathBuf, name: &str| {
        let builder = Client::builder(endpoint.clone())
            .connect_timeout(std::time::Duration::from_secs(30))
            .tls_ca_file(ca)
            .tls_server_name(name);
        builder.connect().await.unwrap_err().to_string()
    };

    let other = error(certificates.file("ca.pem"), "other.example").await;
    assert!(other.contains("not valid for name"), "{other}");
    let stranger = error(Certificates::new().file("ca.pem"), "limiter.example").await;
    assert!(stranger.contains("UnknownIssuer") || stranger.contains("BadSignature"), "{stranger}");
}

#[tokio::test]
async fn unusable_settings_have_distinct_errors() {
    let certificates = Certificates::new();
    let secure = || Client::builder("https://limiter.example".parse().unwrap());
    let missing = certificates.file("missing.pem");

    let plain = Client::builder("http://limiter.example".parse().unwrap());
    let error = plain.tls_server_name("x").connect_lazy().unwrap_err();
    assert!(matches!(error, ConnectError::TlsUnused(_)), "{error}");

    let error = secure().tls_ca_file(&missing).connect_lazy().unwrap_err();
    assert!(matches!(&error, ConnectError::File { path, .. } if *path == missing), "{error}");

    let error = secure().tls_ca_file(certificates.file("client.key")).connect_lazy().unwrap_err();
    assert!(matches!(error, ConnectError::NoCertificate(_)), "{error}");

    let (cert, key) = (certificates.file("client.pem"), certificates.file("client.pem"));
    let error = secure()
        .tls_ca_file(certificates.file("ca.pem"))
        .tls_client_files(cert, key)
        .connect_lazy();
    let error = error.unwrap_err();
    assert!(matches!(error, ConnectError::Settings(_)), "{error}");

    let error = Client::connect("limiter.example").await.unwrap_err();
    assert!(matches!(error, ConnectError::Endpoint(_)), "{error}");
}
