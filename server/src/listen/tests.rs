//! Tests of listeners with real clients.

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
    Admission, AdmissionBounds, Alpn, Connection, DropReason, HandshakeEnd, Listener, Tls,
    TlsError,
    admission::{ConnectionGuard, IDLE_SWEEPS, SILENT_AGE},
};
use crate::{reloaded::ReloadOutcome, settings::TlsSettings, values::ListenAddress};

/// A timeout that no step reaches.
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

const BOUNDS: AdmissionBounds = AdmissionBounds {
    connections: 100,
    pending_per_address: 64,
    handshake_timeout: NEVER,
    // Ends at once, so that no test depends on its duration.
    handshake_end: HandshakeEnd::Bytes(0),
    idle_timeout: None,
};

fn admission() -> Admission {
    Admission::new(BOUNDS)
}

/// Returns to each client the bytes that it sends.
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

/// The TLS files of a server. One authority issues all certificates.
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
        let tls = Tls::load(settings, Alpn::Http2).unwrap();
        echo(listener.incoming(Some(tls.clone()), admission()));
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

    /// Completes the handshake, and exchanges bytes.
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
async fn plain_connections_are_served_and_have_an_address() {
    let (listener, address) = listener().await;
    let mut connections = Box::pin(listener.incoming(None, admission()));
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
    drop(listener.incoming(None, admission()));
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
    let mut connections = Box::pin(listener.incoming(None, admission()));
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
    echo(Listener::bind(&address).await.unwrap().incoming(None, admission()));
    answers(&path).await;
}

#[tokio::test]
async fn a_socket_in_use_is_an_error_and_stays() {
    let (_guard, path, address) = socket();
    echo(Listener::bind(&address).await.unwrap().incoming(None, admission()));
    let error = Listener::bind(&address).await.unwrap_err();
    assert_eq!(error.to_string(), "another server listens there");
    answers(&path).await;
}

#[tokio::test]
async fn a_file_that_is_no_socket_is_an_error_and_stays() {
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
    // Prevents the reuse of the inode.
    fs::hard_link(&path, path.with_extension("old")).unwrap();
    fs::remove_file(&path).unwrap();
    echo(Listener::bind(&address).await.unwrap().incoming(None, admission()));
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
    echo(listener.incoming(Some(Tls::load(files.settings(), Alpn::Http2).unwrap()), admission()));
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
async fn with_a_client_ca_only_certified_clients_are_accepted() {
    let files = Files::new();
    let server = files.serve(files.mutual(&[])).await;
    server.connect(None).await.unwrap_err();
    server.connect(Some(&Authority::new().issue("envoy"))).await.unwrap_err();
    assert_eq!(server.tls.handshakes_failed(), 2);
    server.connect(Some(&files.authority.issue("envoy"))).await.unwrap();
}

#[tokio::test]
async fn with_client_names_only_these_are_accepted() {
    let files = Files::new();
    let server = files.serve(files.mutual(&["envoy.example.com", SPIFFE])).await;
    for name in
        ["other.example.com", "*.example.com", "a.envoy.example.com", "spiffe://cluster.local"]
    {
        let connected = server.connect(Some(&files.authority.issue(name))).await;
        assert!(connected.is_err(), "{name}");
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
    assert_eq!(server.tls.reload().unwrap(), ReloadOutcome::Unchanged);

    let next = files.authority.issue("localhost");
    files.write("cert.pem", &next.certificate);
    files.write("key.pem", &next.key);
    assert_eq!(server.tls.reload().unwrap(), ReloadOutcome::Replaced);
    assert_eq!(server.tls.reload().unwrap(), ReloadOutcome::Unchanged);
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
    assert_eq!(server.tls.reload().unwrap(), ReloadOutcome::Replaced);
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
    assert_eq!(server.tls.reload().unwrap(), ReloadOutcome::Unchanged);
    assert_eq!(shown(&server.connect(None).await.unwrap()), files.server.der());

    files.write("key.pem", &next.key);
    assert_eq!(server.tls.reload().unwrap(), ReloadOutcome::Replaced);
    assert_eq!(shown(&server.connect(None).await.unwrap()), next.der());
}

#[test]
fn errors_name_the_file_and_what_is_wrong() {
    let files = Files::new();
    let message = |settings| Tls::load(settings, Alpn::Http2).unwrap_err().to_string();
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

// === Bounds ===

/// Serves with these bounds. A connection counts as used at its first byte.
async fn serve_within(bounds: AdmissionBounds) -> (String, Admission) {
    let (listener, address) = listener().await;
    let admission = Admission::new(bounds);
    let connections = listener.incoming(None, admission.clone());
    tokio::spawn(connections.for_each(async |connection| {
        tokio::spawn(async {
            let connection = connection.unwrap();
            let handle = connection.handle();
            let (mut from, mut to) = tokio::io::split(connection);
            let mut bytes = [0; 100];
            while let Ok(read @ 1..) = from.read(&mut bytes).await {
                handle.mark_used();
                if to.write_all(&bytes[..read]).await.is_err() {
                    return;
                }
            }
        });
    }));
    (address, admission)
}

async fn connect(address: &str) -> TcpStream {
    TcpStream::connect(address).await.unwrap()
}

/// Whether the server has closed it.
async fn is_closed(client: &mut TcpStream) -> bool {
    bound(client.read(&mut [0])).await.unwrap_or(0) == 0
}

fn is_dropped(guard: &ConnectionGuard) -> bool {
    guard.0.ensure_not_dropped().is_err()
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let waited = time::timeout(BOUND, async {
        while !condition() {
            time::sleep(Duration::from_millis(5)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("timeout while waiting for {what}"));
}

#[tokio::test]
async fn beyond_the_share_of_an_address_its_oldest_pending_connection_is_dropped() {
    let bounds = AdmissionBounds { connections: 10, pending_per_address: 2, ..BOUNDS };
    let (address, admission) = serve_within(bounds).await;
    let mut first = connect(&address).await;
    let mut used = connect(&address).await;
    exchange(&mut used).await.unwrap();
    let mut second = connect(&address).await;
    let mut third = connect(&address).await;
    assert!(is_closed(&mut first).await);
    exchange(&mut second).await.unwrap();
    exchange(&mut third).await.unwrap();
    exchange(&mut used).await.unwrap();
    assert_eq!((admission.open(), admission.pending()), (3, 0));
    assert_eq!(admission.dropped(DropReason::PendingPerAddress), 1);
}

#[tokio::test]
async fn a_new_connection_takes_the_place_of_the_oldest_pending_one() {
    // Half of them may be pending.
    let bounds = AdmissionBounds { connections: 4, ..BOUNDS };
    let (address, admission) = serve_within(bounds).await;
    let mut pending = [connect(&address).await, connect(&address).await];
    let mut next = connect(&address).await;
    assert!(is_closed(&mut pending[0]).await);
    exchange(&mut next).await.unwrap();
    exchange(&mut pending[1]).await.unwrap();
    assert_eq!(admission.dropped(DropReason::Replaced), 1);
}

#[tokio::test]
async fn the_address_that_has_most_pending_connections_loses_its_oldest() {
    let bounds = AdmissionBounds { connections: 6, ..BOUNDS };
    let admission = Admission::new(bounds);
    let from = |host: u8| Some(([192, 0, 2, host], 1).into());
    let quiet = admission.admit(from(1)).unwrap();
    let flood = [admission.admit(from(2)).unwrap(), admission.admit(from(2)).unwrap()];
    let next = admission.admit(from(3)).unwrap();
    assert_eq!(flood.each_ref().map(is_dropped), [true, false]);
    assert!(!is_dropped(&quiet) && !is_dropped(&next));
    assert_eq!((admission.open(), admission.pending()), (4, 3));
    drop(flood);
    assert_eq!((admission.open(), admission.pending()), (2, 2));
}

#[tokio::test]
async fn silent_connections_are_dropped_before_others() {
    let bounds = AdmissionBounds { connections: 10, pending_per_address: 2, ..BOUNDS };
    let admission = Admission::new(bounds);
    let admit = || admission.admit(None).unwrap();
    let first = admit();
    first.0.note_received();
    let silent = admit();
    time::sleep(SILENT_AGE).await;
    let last = admit();
    assert_eq!([&first, &silent, &last].map(is_dropped), [false, true, false]);
    last.0.note_received();
    let next = admit();
    assert_eq!([&first, &last, &next].map(is_dropped), [true, false, false]);
}

#[tokio::test]
async fn a_new_connection_has_time_to_send_bytes() {
    let bounds = AdmissionBounds { connections: 20, pending_per_address: 2, ..BOUNDS };
    let admission = Admission::new(bounds);
    let admit = || admission.admit(None).unwrap();
    let attackers = [admit(), admit()];
    attackers.iter().for_each(|it| it.0.note_received());
    let victims = [admit(), admit()];
    assert!(attackers.iter().all(is_dropped) && !victims.iter().any(is_dropped));
}

#[tokio::test]
async fn an_ipv6_network_counts_as_one_address_and_mapped_ipv4_as_ipv4() {
    let bounds = AdmissionBounds { connections: 100, pending_per_address: 1, ..BOUNDS };
    let admission = Admission::new(bounds);
    let mut held = Vec::new();
    let mut dropped_after = |address: &str| {
        held.push(admission.admit(Some(address.parse().unwrap())).unwrap());
        admission.dropped(DropReason::PendingPerAddress)
    };
    assert_eq!(dropped_after("[2001:db8::1]:1"), 0);
    assert_eq!(dropped_after("[2001:db8:0:1::1]:1"), 0);
    assert_eq!(dropped_after("[2001:db8::ffff]:1"), 1);
    assert_eq!(dropped_after("192.0.2.1:1"), 1);
    assert_eq!(dropped_after("192.0.2.2:1"), 1);
    assert_eq!(dropped_after("[::ffff:192.0.2.1]:1"), 2);
}

#[tokio::test]
async fn without_pending_or_idle_connections_a_new_one_is_not_admitted() {
    let bounds = AdmissionBounds { connections: 2, ..BOUNDS };
    let (address, admission) = serve_within(bounds).await;
    let mut used = Vec::new();
    for _ in 0..2 {
        let mut client = connect(&address).await;
        exchange(&mut client).await.unwrap();
        used.push(client);
    }
    let mut refused = connect(&address).await;
    assert!(is_closed(&mut refused).await);
    assert_eq!(admission.dropped(DropReason::NotAdmitted), 1);
    for client in &mut used {
        exchange(client).await.unwrap();
    }
    // A released place is used.
    drop(used.pop());
    until("the place", || admission.open() == 1).await;
    let mut next = connect(&address).await;
    exchange(&mut next).await.unwrap();
}

#[tokio::test]
async fn a_new_connection_replaces_an_idle_one() {
    let bounds = AdmissionBounds { connections: 2, ..BOUNDS };
    let (address, admission) = serve_within(bounds).await;
    let mut idle = connect(&address).await;
    exchange(&mut idle).await.unwrap();
    let mut busy = connect(&address).await;
    exchange(&mut busy).await.unwrap();
    for _ in 0..IDLE_SWEEPS + 1 {
        exchange(&mut busy).await.unwrap();
        admission.sweep();
    }
    let mut next = connect(&address).await;
    exchange(&mut next).await.unwrap();
    exchange(&mut busy).await.unwrap();
    assert!(is_closed(&mut idle).await);
    assert_eq!(admission.dropped(DropReason::Replaced), 1);
}

#[tokio::test]
async fn a_connection_with_bytes_but_no_request_is_idle() {
    let bounds = AdmissionBounds { connections: 1, ..BOUNDS };
    let admission = Admission::new(bounds);
    let pings = admission.admit(None).unwrap();
    pings.0.mark_used();
    for _ in 0..IDLE_SWEEPS {
        assert!(admission.admit(None).is_none());
        admission.sweep();
        pings.0.note_received();
    }
    // The first sweep saw the request.
    admission.sweep();
    let next = admission.admit(None).unwrap();
    assert!(is_dropped(&pings) && !is_dropped(&next));
}

#[tokio::test]
async fn busy_places_are_divided_among_addresses() {
    let bounds = AdmissionBounds { connections: 4, ..BOUNDS };
    let admission = Admission::new(bounds);
    let use_one = |host: u8| {
        let guard = admission.admit(Some(([192, 0, 2, host], 1).into()))?;
        guard.0.mark_used();
        Some(guard)
    };
    let many = [use_one(1), use_one(1), use_one(1), use_one(1)].map(Option::unwrap);
    assert!(use_one(1).is_none());
    let others = [use_one(2), use_one(2)].map(Option::unwrap);
    assert_eq!(many.each_ref().map(is_dropped), [false, false, true, true]);
    // Each has two, so neither replaces one of the other.
    assert!(use_one(1).is_none() && use_one(2).is_none());
    let third = use_one(3).unwrap();
    let kept = [&many[0], &many[1], &others[0], &others[1], &third];
    assert_eq!(kept.iter().filter(|it| !is_dropped(it)).count(), 4);
    assert!(!is_dropped(&third));
    let counts = [DropReason::NotAdmitted, DropReason::Replaced].map(|it| admission.dropped(it));
    assert_eq!(counts, [3, 3]);
}

#[tokio::test]
async fn idle_connections_are_closed_after_the_idle_timeout() {
    let bounds = AdmissionBounds { idle_timeout: Some(Duration::from_secs(1)), ..BOUNDS };
    let (address, admission) = serve_within(bounds).await;
    let mut idle = connect(&address).await;
    exchange(&mut idle).await.unwrap();
    assert!(is_closed(&mut idle).await);
    assert_eq!(admission.dropped(DropReason::Idle), 1);
    assert_eq!(admission.open(), 0);
}

#[tokio::test]
async fn a_handshake_ends_with_its_last_byte() {
    let bounds = AdmissionBounds {
        handshake_end: HandshakeEnd::Bytes(3),
        handshake_timeout: Duration::from_secs(1),
        ..BOUNDS
    };
    let (listener, address) = listener().await;
    let admission = Admission::new(bounds);
    echo(listener.incoming(None, admission.clone()));
    let (mut half, mut whole) = (connect(&address).await, connect(&address).await);
    half.write_all(b"pr").await.unwrap();
    whole.write_all(b"pre").await.unwrap();
    let mut bytes = [0; 3];
    bound(whole.read_exact(&mut bytes)).await.unwrap();
    bound(half.read_exact(&mut bytes[..2])).await.unwrap();
    assert!(is_closed(&mut half).await);
    assert_eq!(admission.dropped(DropReason::Timeout), 1);
    // Pending connections have no deadline.
    exchange(&mut whole).await.unwrap();
    assert_eq!((admission.open(), admission.pending()), (1, 1));
}

// === Handshakes ===

impl Files {
    async fn serve_within(&self, bounds: AdmissionBounds) -> (Server, Admission) {
        let (listener, address) = listener().await;
        let tls = Tls::load(self.settings(), Alpn::Http2).unwrap();
        let admission = Admission::new(bounds);
        echo(listener.incoming(Some(tls.clone()), admission.clone()));
        (Server { address, tls, client: Client::trusting(&self.authority) }, admission)
    }
}

#[tokio::test]
async fn a_silent_client_delays_no_other() {
    let files = Files::new();
    let (server, _) = files.serve_within(BOUNDS).await;
    let _silent = connect(&server.address).await;
    server.connect(None).await.unwrap();
    server.connect(None).await.unwrap();
    assert_eq!(server.tls.handshakes_failed(), 0);
}

#[tokio::test]
async fn silent_clients_are_dropped_when_others_connect() {
    let files = Files::new();
    let bounds = AdmissionBounds { connections: 4, ..BOUNDS };
    let (server, admission) = files.serve_within(bounds).await;
    let mut silent = [connect(&server.address).await, connect(&server.address).await];
    server.connect(None).await.unwrap();
    assert!(is_closed(&mut silent[0]).await);
    // On a slow machine after the crowded timeout, otherwise for the new connection.
    let dropped = [DropReason::Replaced, DropReason::Timeout].map(|it| admission.dropped(it));
    assert!(dropped.iter().sum::<u64>() >= 1, "{dropped:?}");
}

#[tokio::test]
async fn silent_clients_are_dropped_after_the_handshake_timeout() {
    let files = Files::new();
    let bounds = AdmissionBounds { handshake_timeout: Duration::from_secs(1), ..BOUNDS };
    let (server, admission) = files.serve_within(bounds).await;
    let mut silent = connect(&server.address).await;
    assert!(is_closed(&mut silent).await);
    assert_eq!(admission.dropped(DropReason::Timeout), 1);
    assert_eq!(server.tls.handshakes_failed(), 1);
}

#[tokio::test]
async fn the_handshake_timeout_is_short_while_half_of_the_places_are_pending() {
    let files = Files::new();
    // With four connections, two may be pending. One is half of them.
    let bounds = AdmissionBounds { connections: 4, ..BOUNDS };
    let (server, admission) = files.serve_within(bounds).await;
    let mut silent = connect(&server.address).await;
    assert!(is_closed(&mut silent).await);
    assert_eq!(admission.dropped(DropReason::Timeout), 1);
}

#[tokio::test]
async fn handshakes_end_with_the_listener() {
    let (listener, address) = listener().await;
    let admission =
        Admission::new(AdmissionBounds { handshake_end: HandshakeEnd::Request, ..BOUNDS });
    let mut connections = Box::pin(listener.incoming(None, admission.clone()));
    let mut silent = connect(&address).await;
    let connection = bound(connections.next()).await.unwrap();
    echo(futures::stream::iter([connection]));
    drop(connections);
    assert!(is_closed(&mut silent).await);
    assert_eq!(DropReason::ALL.map(|reason| admission.dropped(reason)), [0; 5]);
}
