//! Listeners with real clients. Only what the clients see counts.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures::{Stream, StreamExt};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType, string::Ia5String,
};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpStream, UnixStream},
    time,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tonic::transport::server::Connected;

use super::{
    Connection, ListenAddress, Listener, Tls, TlsError, TlsSettings,
    accept::{HandshakeBounds, Handshakes, endless},
};

/// Far beyond what any step takes.
const BOUND: Duration = Duration::from_secs(30);
const NEVER: Duration = Duration::from_secs(24 * 3600);

const SPIFFE: &str = "spiffe://cluster.local/ns/istio-system/sa/ingress";

// === Clients and servers ===

async fn bound<F: Future>(future: F) -> F::Output {
    time::timeout(BOUND, future).await.expect("takes too long")
}

async fn listener() -> (Listener, String) {
    let listener = Listener::bind(&"localhost:0".parse().unwrap()).await.unwrap();
    let ListenAddress::Tcp(address) = listener.local_address() else { panic!("not TCP") };
    (listener, address)
}

/// Sends back to each client what it sends.
fn echo(connections: impl Stream<Item = io::Result<Connection>> + Send + 'static) {
    tokio::spawn(connections.for_each(async |connection| {
        tokio::spawn(async {
            let (mut from, mut to) = tokio::io::split(connection.unwrap());
            let _closed = tokio::io::copy(&mut from, &mut to).await;
        });
    }));
}

async fn exchange(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> io::Result<()> {
    let mut answer = [0; 4];
    bound(async {
        stream.write_all(b"ping").await?;
        stream.flush().await?;
        stream.read_exact(&mut answer).await
    })
    .await?;
    assert_eq!(&answer, b"ping");
    Ok(())
}

// === Certificates ===

struct Authority(CertifiedIssuer<'static, KeyPair>);

struct Issued {
    certificate: String,
    key: String,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn pem(&self) -> String {
        self.0.pem()
    }

    fn issue(&self, name: &str) -> Issued {
        let mut params = CertificateParams::default();
        let text = Ia5String::try_from(name).unwrap();
        let name = if name.contains(':') { SanType::URI(text) } else { SanType::DnsName(text) };
        params.subject_alt_names.push(name);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap().pem();
        Issued { certificate, key: key.serialize_pem() }
    }
}

impl Issued {
    fn der(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(self.certificate.as_bytes()).unwrap()
    }
}

/// A server's files, with all authorities one.
struct Files {
    folder: TempDir,
    authority: Authority,
    server: Issued,
}

impl Files {
    fn new() -> Self {
        let authority = Authority::new();
        let server = authority.issue("localhost");
        let files = Self { folder: TempDir::new().unwrap(), authority, server };
        files.write("ca.pem", &files.authority.pem());
        files.write("cert.pem", &files.server.certificate);
        files.write("key.pem", &files.server.key);
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, content: &str) {
        fs::write(self.path(name), content).unwrap();
    }

    fn settings(&self) -> TlsSettings {
        TlsSettings {
            certificate: self.path("cert.pem"),
            key: self.path("key.pem"),
            client_ca: None,
            client_names: Vec::new(),
        }
    }

    fn mutual(&self, names: &[&str]) -> TlsSettings {
        let client_names = names.iter().copied().map(str::to_owned).collect();
        TlsSettings { client_ca: Some(self.path("ca.pem")), client_names, ..self.settings() }
    }

    async fn serve(&self, settings: TlsSettings) -> Server {
        let (listener, address) = listener().await;
        let tls = Tls::load(settings).unwrap();
        echo(listener.incoming(Some(tls.clone())));
        Server { address, tls, client: Client::trusting(&self.authority) }
    }
}

struct Server {
    address: String,
    tls: Tls,
    client: Client,
}

impl Server {
    async fn connect(&self, with: Option<&Issued>) -> io::Result<TlsStream<TcpStream>> {
        self.client.connect(TcpStream::connect(&self.address).await?, with).await
    }
}

struct Client {
    roots: Arc<RootCertStore>,
    protocol: &'static [u8],
}

impl Client {
    fn trusting(authority: &Authority) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(authority.0.der().clone()).unwrap();
        Self { roots: Arc::new(roots), protocol: b"h2" }
    }

    /// Shakes hands and gets an answer.
    async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        socket: S,
        with: Option<&Issued>,
    ) -> io::Result<TlsStream<S>> {
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(Arc::clone(&self.roots));
        let mut config = match with {
            None => builder.with_no_client_auth(),
            Some(own) => {
                let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).unwrap();
                builder.with_client_auth_cert(vec![own.der()], key).unwrap()
            }
        };
        config.alpn_protocols = vec![self.protocol.to_vec()];
        let name = ServerName::try_from("localhost").unwrap();
        let connector = TlsConnector::from(Arc::new(config));
        let mut stream = bound(connector.connect(name, socket)).await?;
        exchange(&mut stream).await?;
        Ok(stream)
    }
}

fn shown(stream: &TlsStream<TcpStream>) -> CertificateDer<'static> {
    stream.get_ref().1.peer_certificates().unwrap()[0].clone()
}

// === TCP ===

#[tokio::test]
async fn plain_connections_are_served_and_known_by_address() {
    let (listener, address) = listener().await;
    let mut connections = Box::pin(listener.incoming(None));
    let client = TcpStream::connect(address).await.unwrap();
    let connection = bound(connections.next()).await.unwrap().unwrap();
    let info = connection.connect_info();
    assert_eq!(info.address, client.local_addr().ok());

    echo(futures::stream::iter([Ok(connection)]));
    let mut client = client;
    exchange(&mut client).await.unwrap();
}

#[tokio::test]
async fn an_address_is_free_again_when_the_stream_is_dropped() {
    let (listener, address) = listener().await;
    let wanted = ListenAddress::Tcp(address);
    assert_eq!(Listener::bind(&wanted).await.unwrap_err().kind(), io::ErrorKind::AddrInUse);
    drop(listener.incoming(None));
    Listener::bind(&wanted).await.unwrap();
}

// === Unix sockets ===

fn socket() -> (TempDir, PathBuf, ListenAddress) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("sluicegate.sock");
    let address = ListenAddress::Unix(path.clone());
    (folder, path, address)
}

async fn answers(path: &Path) {
    let mut client = UnixStream::connect(path).await.unwrap();
    exchange(&mut client).await.unwrap();
}

#[tokio::test]
async fn a_socket_is_served_and_its_file_removed_on_drop() {
    let (_guard, path, address) = socket();
    let listener = Listener::bind(&address).await.unwrap();
    assert_eq!(listener.local_address(), address);
    let mut connections = Box::pin(listener.incoming(None));
    let mut client = UnixStream::connect(&path).await.unwrap();
    echo(futures::stream::iter([bound(connections.next()).await.unwrap()]));
    exchange(&mut client).await.unwrap();
    drop(connections);
    assert!(!path.exists());
}

#[tokio::test]
async fn a_stale_socket_is_replaced() {
    let (_guard, path, address) = socket();
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    echo(Listener::bind(&address).await.unwrap().incoming(None));
    answers(&path).await;
}

#[tokio::test]
async fn a_live_socket_is_refused_and_stays() {
    let (_guard, path, address) = socket();
    echo(Listener::bind(&address).await.unwrap().incoming(None));
    let error = Listener::bind(&address).await.unwrap_err();
    assert_eq!(error.to_string(), "another server listens there");
    answers(&path).await;
}

#[tokio::test]
async fn a_file_that_is_no_socket_is_refused_and_stays() {
    let (_guard, path, address) = socket();
    fs::write(&path, "precious").unwrap();
    let error = Listener::bind(&address).await.unwrap_err();
    assert_eq!(error.to_string(), "something other than a socket is there");
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
}

#[tokio::test]
async fn the_socket_of_a_successor_stays() {
    let (_guard, path, address) = socket();
    let first = Listener::bind(&address).await.unwrap();
    // Keeps the inode from being given out again.
    fs::hard_link(&path, path.with_extension("old")).unwrap();
    fs::remove_file(&path).unwrap();
    echo(Listener::bind(&address).await.unwrap().incoming(None));
    drop(first);
    answers(&path).await;
}

// === TLS ===

#[tokio::test]
async fn tls_serves_http2_and_nothing_else() {
    let files = Files::new();
    let mut server = files.serve(files.settings()).await;
    let stream = server.connect(None).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(b"h2".as_slice()));
    server.client.protocol = b"http/1.1";
    server.connect(None).await.unwrap_err();
    assert_eq!(server.tls.handshakes_failed(), 1);
}

#[tokio::test]
async fn tls_runs_over_unix_sockets_too() {
    let files = Files::new();
    let (_guard, path, address) = socket();
    let listener = Listener::bind(&address).await.unwrap();
    echo(listener.incoming(Some(Tls::load(files.settings()).unwrap())));
    let socket = UnixStream::connect(&path).await.unwrap();
    Client::trusting(&files.authority).connect(socket, None).await.unwrap();
}

#[tokio::test]
async fn a_client_that_does_not_speak_tls_is_counted_and_the_next_served() {
    let files = Files::new();
    let server = files.serve(files.settings()).await;
    let mut client = TcpStream::connect(&server.address).await.unwrap();
    client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let _reset = bound(client.read_to_end(&mut Vec::new())).await;
    server.connect(None).await.unwrap();
    assert_eq!(server.tls.handshakes_failed(), 1);
}

#[tokio::test]
async fn with_a_client_ca_only_certified_clients_get_in() {
    let files = Files::new();
    let server = files.serve(files.mutual(&[])).await;
    server.connect(None).await.unwrap_err();
    server.connect(Some(&Authority::new().issue("envoy"))).await.unwrap_err();
    assert_eq!(server.tls.handshakes_failed(), 2);
    server.connect(Some(&files.authority.issue("envoy"))).await.unwrap();
}

#[tokio::test]
async fn with_client_names_only_they_get_in() {
    let files = Files::new();
    let server = files.serve(files.mutual(&["envoy.example.com", SPIFFE])).await;
    for name in
        ["other.example.com", "*.example.com", "a.envoy.example.com", "spiffe://cluster.local"]
    {
        let refused = server.connect(Some(&files.authority.issue(name))).await;
        assert!(refused.is_err(), "{name}");
    }
    server.connect(Some(&Authority::new().issue(SPIFFE))).await.unwrap_err();
    server.connect(None).await.unwrap_err();
    for name in ["envoy.example.com", SPIFFE] {
        server.connect(Some(&files.authority.issue(name))).await.unwrap();
    }
}

#[tokio::test]
async fn replaced_files_count_for_new_connections() {
    let files = Files::new();
    let server = files.serve(files.settings()).await;
    let mut old = server.connect(None).await.unwrap();
    assert_eq!(shown(&old), files.server.der());
    assert!(!server.tls.reload().unwrap());

    let next = files.authority.issue("localhost");
    files.write("cert.pem", &next.certificate);
    files.write("key.pem", &next.key);
    assert!(server.tls.reload().unwrap());
    assert!(!server.tls.reload().unwrap());
    assert_eq!(shown(&server.connect(None).await.unwrap()), next.der());
    exchange(&mut old).await.unwrap();
}

#[tokio::test]
async fn a_replaced_client_ca_counts_for_new_connections() {
    let files = Files::new();
    let server = files.serve(files.mutual(&[])).await;
    let (next, old_client) = (Authority::new(), files.authority.issue("envoy"));
    server.connect(Some(&old_client)).await.unwrap();
    files.write("ca.pem", &next.pem());
    assert!(server.tls.reload().unwrap());
    server.connect(Some(&old_client)).await.unwrap_err();
    server.connect(Some(&next.issue("envoy"))).await.unwrap();
}

#[tokio::test]
async fn a_broken_pair_changes_nothing_and_is_reported_once() {
    let files = Files::new();
    let server = files.serve(files.settings()).await;
    let next = files.authority.issue("localhost");
    files.write("cert.pem", &next.certificate);
    assert!(matches!(server.tls.reload(), Err(TlsError::KeyMismatch { .. })));
    assert!(!server.tls.reload().unwrap());
    assert_eq!(shown(&server.connect(None).await.unwrap()), files.server.der());

    files.write("key.pem", &next.key);
    assert!(server.tls.reload().unwrap());
    assert_eq!(shown(&server.connect(None).await.unwrap()), next.der());
}

#[test]
fn errors_name_the_file_and_what_is_wrong() {
    let files = Files::new();
    let message = |settings| Tls::load(settings).unwrap_err().to_string();
    let path = |name| files.path(name).display().to_string();
    files.write("empty", "");
    files.write("damaged", "-----BEGIN CERTIFICATE-----\n");
    files.write("other.pem", &files.authority.issue("localhost").key);
    files.write("no.der", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");

    let certificate = |name| TlsSettings { certificate: files.path(name), ..files.settings() };
    let key = |name| TlsSettings { key: files.path(name), ..files.settings() };
    let client_ca = |name| TlsSettings { client_ca: Some(files.path(name)), ..files.settings() };
    let missing = format!("cannot read {}: No such file or directory (os error 2)", path("none"));
    assert_eq!(message(certificate("none")), missing);
    assert_eq!(message(key("none")), missing);
    assert_eq!(message(client_ca("none")), missing);
    assert_eq!(message(certificate("empty")), format!("no certificate in {}", path("empty")));
    assert_eq!(message(client_ca("empty")), format!("no certificate in {}", path("empty")));
    assert!(
        message(certificate("damaged")).starts_with(&format!("{} is not PEM: ", path("damaged")))
    );
    assert_eq!(
        message(key("cert.pem")),
        format!("no private key in {} (it must be in PEM and not encrypted)", path("cert.pem"))
    );
    assert_eq!(
        message(key("other.pem")),
        format!(
            "the key in {} does not match the first certificate in {}",
            path("other.pem"),
            path("cert.pem")
        )
    );
    for settings in [certificate("no.der"), client_ca("no.der")] {
        assert!(message(settings).starts_with(&format!("bad certificate in {}: ", path("no.der"))));
    }
    let names = TlsSettings { client_ca: None, ..files.mutual(&["envoy"]) };
    assert_eq!(message(names), "client names are only checked with a client CA");
}

// === Handshakes ===

impl Files {
    async fn serve_within(&self, bounds: HandshakeBounds) -> Server {
        let (listener, address) = listener().await;
        let tls = Tls::load(self.settings()).unwrap();
        echo(endless(Handshakes::new(listener, tls.clone(), bounds), Handshakes::next));
        Server { address, tls, client: Client::trusting(&self.authority) }
    }
}

#[tokio::test]
async fn a_silent_client_delays_nobody() {
    let files = Files::new();
    let server = files.serve_within(HandshakeBounds { pending_max: 2, timeout: NEVER }).await;
    let _silent = TcpStream::connect(&server.address).await.unwrap();
    server.connect(None).await.unwrap();
    server.connect(None).await.unwrap();
    assert_eq!(server.tls.handshakes_failed(), 0);
}

#[tokio::test]
async fn silent_clients_are_cut_off_and_others_wait_for_their_places() {
    let files = Files::new();
    let bounds = HandshakeBounds { pending_max: 2, timeout: Duration::from_secs(1) };
    let server = files.serve_within(bounds).await;
    let mut silent = TcpStream::connect(&server.address).await.unwrap();
    let _silent = TcpStream::connect(&server.address).await.unwrap();
    server.connect(None).await.unwrap();
    assert!(server.tls.handshakes_failed() > 0, "let in beyond the bound");
    assert_eq!(bound(silent.read(&mut [0])).await.unwrap_or(0), 0, "closed");
}
