//! Attacks with many, silent or half-sent connections, on every listener.

use std::{fs, net::SocketAddr, path::Path, time::Duration};

use futures::future::join_all;
use nix::sys::{
    resource::{Resource, getrlimit, setrlimit},
    signal::Signal,
};
use sluicegate_proto::envoy::service::ratelimit::v3::{
    rate_limit_response::Code, rate_limit_service_client::RateLimitServiceClient,
};
use sluicegate_tests::{Attack, Authority, Caller, Sluicegate, hit, until};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    process::Command,
    task::JoinSet,
    time::{sleep, timeout},
};
use tonic::{
    Code as GrpcCode,
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity},
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

const LIMITS: &str = "
domain: api
descriptors:
  - key: healthy
    rate_limit: {unit: day, requests_per_unit: 1000000}
";

const HOST: &str = "127.0.0.1";

/// Another address of the loopback, where attackers come from.
const ATTACKER: &str = "127.0.0.2";

/// Far longer than any step needs.
const BOUND: Duration = Duration::from_secs(60);

/// Number of connections of an attack.
const FLOOD: usize = 1_200;

/// Maximum growth of memory during an attack.
const GROWTH_MAX: u64 = 64 << 20;

// === Attackers ===

/// Raises the limit of open files of this process to what an attacker needs.
fn raise_file_limit() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
}

async fn connect_from(source: &str, address: &str) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(source.parse().unwrap(), 0))?;
    socket.connect(address.parse().unwrap()).await
}

/// Connections that send a text and then nothing. They are reopened a second after the server has closed them, until
/// this is dropped.
struct Flood(JoinSet<()>);

impl Flood {
    /// Opens `count` connections, and waits until all were opened once.
    async fn start(source: &'static str, address: &str, count: usize, text: &'static str) -> Self {
        raise_file_limit();
        let mut attackers = JoinSet::new();
        let (opened, mut all_opened) = tokio::sync::mpsc::channel::<()>(1);
        for _ in 0..count {
            let address = address.to_owned();
            let mut opened = Some(opened.clone());
            attackers.spawn(async move {
                loop {
                    if let Ok(mut socket) = connect_from(source, &address).await {
                        drop(opened.take());
                        let _closed = socket.write_all(text.as_bytes()).await;
                        while let Ok(1..) = socket.read(&mut [0; 1024]).await {}
                    }
                    sleep(Duration::from_secs(1)).await;
                }
            });
        }
        drop(opened);
        timeout(BOUND, all_opened.recv()).await.unwrap();
        Self(attackers)
    }

    async fn stop(mut self) {
        self.0.shutdown().await;
    }
}

/// Whether the server closes a connection to which the bytes of `drip` are sent one by one.
async fn is_closed(mut socket: TcpStream, drip: &'static str) -> bool {
    let closed = async {
        let mut drip = drip.bytes().cycle();
        loop {
            match timeout(Duration::from_millis(100), socket.read(&mut [0; 1024])).await {
                Ok(Ok(0) | Err(_)) => return,
                Ok(Ok(_)) => {}
                Err(_elapsed) => {
                    let next = drip.next();
                    if let Some(byte) = next
                        && socket.write_all(&[byte]).await.is_err()
                    {
                        return;
                    }
                }
            }
        }
    };
    timeout(BOUND, closed).await.is_ok()
}

// === Measurements ===

async fn open(server: &Sluicegate, listener: &str) -> f64 {
    server.metric(&format!("sluicegate_connections_open{{listener=\"{listener}\"}}")).await
}

async fn dropped(server: &Sluicegate, listener: &str, reason: &str) -> f64 {
    let name = "sluicegate_connections_dropped_total";
    server.metric(&format!("{name}{{listener=\"{listener}\",reason=\"{reason}\"}}")).await
}

async fn bound_met(server: &Sluicegate, listener: &str, bound: &str) -> f64 {
    let name = "sluicegate_request_bounds_met_total";
    server.metric(&format!("{name}{{listener=\"{listener}\",request_bound=\"{bound}\"}}")).await
}

// === TLS ===

struct TlsServer {
    server: Sluicegate,
    endpoint: Endpoint,
}

impl TlsServer {
    async fn start(mutual: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new("ours");
        authority.issue(HOST).write(folder.path(), "server");
        let caller = authority.issue("caller");
        fs::write(folder.path().join("ca.pem"), authority.pem()).unwrap();
        let server = start_tls(folder, mutual).await;
        let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authority.pem()));
        if mutual {
            tls = tls.identity(Identity::from_pem(&caller.certificate, &caller.key));
        }
        let endpoint = Channel::from_shared(format!("https://{}", server.grpc)).unwrap();
        Self { server, endpoint: endpoint.tls_config(tls).unwrap() }
    }

    /// Starts an attack beside a client with TLS.
    async fn attack(&self, name: &str) -> Attack {
        let channel = self.endpoint.connect().await.unwrap();
        Attack::start_on(channel, name, &self.server, GROWTH_MAX).await
    }

    /// Connects and sends one request.
    async fn ask(&self) -> Code {
        let channel = timeout(BOUND, self.endpoint.connect()).await.unwrap().unwrap();
        let mut client = RateLimitServiceClient::new(channel);
        let answer = client.should_rate_limit(hit("healthy", "newcomer")).await.unwrap();
        answer.into_inner().overall_code()
    }
}

async fn start_tls(folder: TempDir, mutual: bool) -> Sluicegate {
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let [limits, cert, key, ca] = ["limits.yaml", "server.pem", "server.key", "ca.pem"].map(path);
    fs::write(&limits, LIMITS).unwrap();
    let mut flags = vec!["--limits", &limits, "--grpc-tls-cert", &cert, "--grpc-tls-key", &key];
    if mutual {
        flags.extend(["--grpc-tls-client-ca", &ca]);
    }
    Sluicegate::start_with(folder, &flags).await
}

/// As many pending connections as one address may have, all silent after the HTTP/2 preface, and 64 workers of an Envoy
/// at the same address that connect slowly.
#[tokio::test]
async fn pending_connections_do_not_block_workers_of_their_address() {
    let server = Sluicegate::start(LIMITS, &[]).await;
    let attack = Attack::start("connections without a call", &server, GROWTH_MAX).await;
    let hello = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\u{4}\0\0\0\0\0";
    let flood = Flood::start(HOST, &server.grpc, 256, hello).await;
    let mut workers = JoinSet::new();
    for _ in 0..64 {
        let address = server.grpc.clone();
        workers.spawn(async move {
            let socket = TcpStream::connect(&address).await.unwrap();
            sleep(Duration::from_millis(20)).await;
            let caller = Caller::connect_on(socket, &address).await;
            let call = caller.begin().await.unwrap();
            call.ask(&hit("healthy", "worker")).await.unwrap().overall_code()
        });
    }
    assert!(workers.join_all().await.iter().all(|code| *code == Code::Ok));
    flood.stop().await;
    attack.end(&server).await;
}

/// 1,200 silent connections from `source` on the TLS port, while other clients connect.
async fn silent_connections_on_the_tls_port(source: &'static str, mutual: bool, name: &str) {
    let tls = TlsServer::start(mutual).await;
    let attack = tls.attack(name).await;
    let flood = Flood::start(source, &tls.server.grpc, FLOOD, "").await;
    for _ in 0..10 {
        assert_eq!(tls.ask().await, Code::Ok);
        sleep(Duration::from_millis(200)).await;
    }
    assert!(dropped(&tls.server, "grpc", "address").await > 0.0);
    flood.stop().await;
    attack.end(&tls.server).await;
    assert_eq!(tls.server.stop().await.code(), Some(0));
}

#[tokio::test]
async fn silent_tls_connections_delay_no_handshake() {
    silent_connections_on_the_tls_port(ATTACKER, false, "silent TLS connections").await;
}

#[tokio::test]
async fn silent_tls_connections_of_one_address_delay_no_handshake() {
    silent_connections_on_the_tls_port(HOST, false, "silent TLS connections, same address").await;
}

#[tokio::test]
async fn silent_mtls_connections_delay_no_handshake() {
    silent_connections_on_the_tls_port(ATTACKER, true, "silent mTLS connections").await;
}

/// Another address sends requests on as many connections as there are places, and reopens those that are closed.
#[tokio::test]
async fn connections_in_use_of_one_address_leave_places_for_others() {
    let places = 32;
    let server = Sluicegate::start(LIMITS, &["--grpc-max-connections", "32"]).await;
    let name = "connections in use of one address";
    let attack = Attack::start(name, &server, GROWTH_MAX).await;
    let endpoint = Channel::from_shared(format!("http://{}", server.grpc)).unwrap();
    let attacker = endpoint.clone().local_address(Some(ATTACKER.parse().unwrap()));
    let mut attackers = JoinSet::new();
    for _ in 0..places {
        let mut client = RateLimitServiceClient::new(attacker.connect_lazy());
        attackers.spawn(async move {
            loop {
                let _lost = client.should_rate_limit(hit("healthy", "attacker")).await;
                sleep(Duration::from_millis(50)).await;
            }
        });
    }
    until("all places to be taken", || async {
        (open(&server, "grpc").await >= 32.0).then_some(())
    })
    .await;
    let mut channels = Vec::new();
    for _ in 0..places / 4 {
        let channel = timeout(BOUND, endpoint.connect()).await.unwrap().unwrap();
        let mut client = RateLimitServiceClient::new(channel.clone());
        let answer = client.should_rate_limit(hit("healthy", "newcomer")).await.unwrap();
        assert_eq!(answer.into_inner().overall_code(), Code::Ok);
        channels.push(channel);
    }
    assert!(dropped(&server, "grpc", "replaced").await >= 8.0);
    until("attackers to be refused", || async {
        (dropped(&server, "grpc", "refused").await > 0.0).then_some(())
    })
    .await;
    attackers.shutdown().await;
    drop(channels);
    attack.end(&server).await;
}

/// Connects `times` times in each of `tasks` tasks. Returns the number of successful connections.
async fn shake_hands(endpoint: &Endpoint, tasks: usize, times: usize) -> usize {
    let mut attackers = JoinSet::new();
    for _ in 0..tasks {
        let endpoint = endpoint.clone();
        attackers.spawn(async move {
            let mut shaken = 0;
            for _ in 0..times {
                shaken += usize::from(endpoint.connect().await.is_ok());
            }
            shaken
        });
    }
    attackers.join_all().await.into_iter().sum()
}

#[tokio::test]
async fn a_flood_of_tls_handshakes_does_not_delay_decisions() {
    let tls = TlsServer::start(false).await;
    let attack = tls.attack("a flood of handshakes").await;
    let endpoint = tls.endpoint.clone();
    // On a separate thread: the healthy client must not wait for the attackers' cryptography.
    let attackers = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(shake_hands(&endpoint, 64, 20))
    });
    let shaken = attackers.await.unwrap();
    println!("a flood of handshakes: {shaken} of 1280 succeeded");
    assert!(shaken > 0);
    assert_eq!(tls.ask().await, Code::Ok);
    attack.end(&tls.server).await;
    assert_eq!(tls.server.stop().await.code(), Some(0));
}

// === Half-sent requests ===

/// Incomplete requests: listener, address and text.
fn half_sent(server: &Sluicegate) -> Vec<(&'static str, String, &'static str)> {
    let Sluicegate { grpc, http, admin, .. } = server;
    vec![
        ("grpc", grpc.clone(), ""),
        ("grpc", grpc.clone(), "PRI * HTTP/2.0\r\n\r\n"),
        ("grpc", grpc.clone(), "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        ("http", http.clone(), ""),
        ("http", http.clone(), "GET /li"),
        ("http", http.clone(), "GET /livez HTTP/1.1\r\nhost: x\r\n"),
        ("http", http.clone(), "POST /json HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{"),
        (
            "http",
            http.clone(),
            "POST /json HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nf\r\n",
        ),
        ("admin", admin.clone(), ""),
        ("admin", admin.clone(), "PRI * HTTP/2.0\r\n\r\n"),
        ("admin", admin.clone(), "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        ("admin", admin.clone(), "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\u{4}\0\0\0\0\0"),
    ]
}

#[tokio::test]
async fn half_sent_connections_are_dropped_on_every_listener() {
    let server = Sluicegate::start(LIMITS, &["--handshake-timeout", "1s"]).await;
    let attack = Attack::start("half-sent connections", &server, GROWTH_MAX).await;
    let mut attackers = JoinSet::new();
    for (listener, address, text) in half_sent(&server) {
        for _ in 0..20 {
            let mut socket = connect_from(ATTACKER, &address).await.unwrap();
            socket.write_all(text.as_bytes()).await.unwrap();
            attackers.spawn(async move {
                assert!(is_closed(socket, "").await, "{listener} {text:?} stays open");
            });
        }
    }
    // Bytes of a header, a body or a chunk that arrive slowly without end.
    for text in [
        "GET /livez HTTP/1.1\r\nx: ",
        "POST /json HTTP/1.1\r\nhost: x\r\ncontent-length: 10000\r\n\r\n",
        "POST /json HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nffff\r\n",
    ] {
        let mut socket = connect_from(ATTACKER, &server.http).await.unwrap();
        socket.write_all(text.as_bytes()).await.unwrap();
        attackers.spawn(async move {
            assert!(is_closed(socket, "x").await, "{text:?} stays open");
        });
    }
    assert_eq!(server.get("/livez").await.0, 200);
    attackers.join_all().await;
    for listener in ["grpc", "http", "admin"] {
        assert!(dropped(&server, listener, "timeout").await >= 20.0, "{listener}");
    }
    attack.end(&server).await;
    assert_eq!(server.stop().await.code(), Some(0));
}

/// The deadlines apply to every request of a connection.
#[tokio::test]
async fn later_requests_of_a_connection_have_deadlines_too() {
    // A head that arrives byte by byte does not count as idle.
    let flags = ["--http-idle-timeout", "10m"];
    let server = Sluicegate::start(LIMITS, &flags).await;
    let attack = Attack::start("half-sent later requests", &server, GROWTH_MAX).await;
    let whole = "GET /livez HTTP/1.1\r\nhost: x\r\n\r\n";
    let mut attackers = JoinSet::new();
    for (text, drip) in [
        ("GET /livez HTTP/1.1\r\nx: ", "x"),
        ("POST /json HTTP/1.1\r\nhost: x\r\ncontent-length: 10000\r\n\r\n", "x"),
    ] {
        let mut socket = TcpStream::connect(&server.http).await.unwrap();
        socket.write_all(format!("{whole}{text}").as_bytes()).await.unwrap();
        attackers.spawn(async move {
            assert!(is_closed(socket, drip).await, "{text:?} stays open");
        });
    }
    attackers.join_all().await;
    assert_eq!(server.get("/livez").await.0, 200);
    attack.end(&server).await;
}

#[tokio::test]
async fn an_endless_request_head_is_answered_431() {
    let server = Sluicegate::start(LIMITS, &[]).await;
    let attack = Attack::start("a head that never ends", &server, 16 << 20).await;
    let mut socket = connect_from(ATTACKER, &server.http).await.unwrap();
    let (mut from, mut to) = socket.split();
    let endless = async {
        to.write_all(b"GET /livez HTTP/1.1\r\nx: ").await?;
        loop {
            to.write_all(&[b'x'; 4096]).await?;
        }
    };
    let mut answer = [0; 12];
    tokio::select! {
        read = timeout(BOUND, from.read_exact(&mut answer)) => { read.unwrap().unwrap(); }
        closed = endless => { let _reset: std::io::Result<()> = closed; }
    }
    // The reset that follows may overtake the response.
    assert!([*b"HTTP/1.1 431", [0; 12]].contains(&answer), "{answer:?}");
    drop(socket);
    assert_eq!(server.get("/livez").await.0, 200);
    attack.end(&server).await;
}

#[tokio::test]
async fn half_sent_connections_do_not_delay_the_drain() {
    let flags = ["--drain-timeout", "10m", "--handshake-timeout", "10m"];
    let mut server = Sluicegate::start(LIMITS, &flags).await;
    let name = "half-sent connections before the drain";
    let attack = Attack::start(name, &server, GROWTH_MAX).await;
    let mut half = Vec::new();
    for (_, address, text) in half_sent(&server) {
        let mut socket = connect_from(ATTACKER, &address).await.unwrap();
        socket.write_all(text.as_bytes()).await.unwrap();
        half.push(socket);
    }
    // A connection between two requests, and one in the middle of its second request.
    for text in ["", "GET /li", "POST /json HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n"] {
        let mut socket = connect_from(ATTACKER, &server.http).await.unwrap();
        let whole = "GET /livez HTTP/1.1\r\nhost: x\r\n\r\n";
        socket.write_all(format!("{whole}{text}").as_bytes()).await.unwrap();
        half.push(socket);
    }
    until("all to be accepted", || async {
        let open = [open(&server, "grpc").await, open(&server, "admin").await];
        // Includes the connection of the healthy client.
        (open == [4.0, 4.0] && self::open(&server, "http").await >= 8.0).then_some(())
    })
    .await;
    attack.end_beside_attackers(&server).await;
    server.process.signal(Signal::SIGTERM);
    assert_eq!(server.process.ended().await.code(), Some(0));
    let log = server.process.output();
    assert!(!log.contains("calls in progress were aborted"), "{log}");
}

// === Bodies ===

/// Maximum growth of memory with unfinished bodies: twice the 32 MiB that bodies may hold, the first 64 kB of each, the
/// read buffers of 64 connections, and what the allocator keeps.
const BODIES_GROWTH_MAX: u64 = 160 << 20;

/// 64 bodies of 4 MiB whose last byte never arrives.
#[tokio::test]
async fn unfinished_bodies_are_bounded_in_time_and_bytes() {
    let server = Sluicegate::start(LIMITS, &[]).await;
    let attack = Attack::start("unended bodies", &server, BODIES_GROWTH_MAX).await;
    let body = vec![b' '; 4 * 1024 * 1024 - 1];
    let mut attackers = JoinSet::new();
    for _ in 0..64 {
        let (address, body) = (server.http.clone(), body.clone());
        attackers.spawn(async move {
            let mut socket = connect_from(ATTACKER, &address).await.unwrap();
            let head = "POST /json HTTP/1.1\r\nhost: x\r\ncontent-length: 4194304\r\n\r\n";
            socket.write_all(head.as_bytes()).await.unwrap();
            // Fails if the server has already responded.
            let _closed = socket.write_all(&body).await;
            let mut answer = Vec::new();
            let _reset = timeout(BOUND, socket.read_to_end(&mut answer)).await.unwrap();
            String::from_utf8_lossy(&answer).into_owned()
        });
    }
    let mut answers = Vec::new();
    while let Some(answer) = attackers.join_next().await {
        answers.push(answer.unwrap());
        // Other requests are answered as usual.
        let body = r#"{"domain": "api", "descriptors": [{"entries": [{"key": "healthy", "value": "x"}]}]}"#;
        assert_eq!(server.json(body).await.0, 200);
    }
    let refused = answers.iter().filter(|answer| answer.starts_with("HTTP/1.1 429")).count();
    let ended = answers.iter().filter(|answer| answer.starts_with("HTTP/1.1 408")).count();
    println!("unended bodies: {refused} refused, {ended} answered 408");
    assert!(refused + ended > 0, "{answers:?}");
    // Includes requests whose responses were lost because they were still sending.
    let counted = [
        server.metric("sluicegate_requests_over_bound_total{bound=\"body_bytes\"}").await,
        bound_met(&server, "http", "body_time").await,
    ];
    assert!(
        counted.iter().sum::<f64>() >= f64::from(u32::try_from(refused + ended).unwrap()),
        "{counted:?}"
    );
    attack.end(&server).await;
    assert_eq!(server.stop().await.code(), Some(0));
}

// === File descriptors ===

/// A server with this limit of open files.
async fn start_with_files(files: usize, flags: &[&str]) -> Sluicegate {
    let folder = tempfile::tempdir().unwrap();
    let limits = folder.path().join("limits.yaml");
    fs::write(&limits, LIMITS).unwrap();
    let flags = [&["--limits", limits.to_str().unwrap()], flags].concat();
    Sluicegate::started(folder, with_files(files, &Sluicegate::command(&flags, &[]))).await
}

/// The command with this soft and hard limit of open files.
pub(crate) fn with_files(files: usize, command: &Command) -> Command {
    let mut limited = Command::new("sh");
    limited.args(["-c", &format!("ulimit -n {files} && exec \"$0\" \"$@\"")]);
    limited.arg(command.as_std().get_program()).args(command.as_std().get_args());
    limited
}

/// Sends a request to each listener over a new connection.
async fn assert_all_listeners_answer(server: &Sluicegate) {
    assert_eq!(server.get("/livez").await.0, 200);
    assert_eq!(server.get("/healthcheck").await.0, 200);
    for address in [&server.grpc, &server.admin] {
        let endpoint = Channel::from_shared(format!("http://{address}")).unwrap();
        let channel = timeout(BOUND, endpoint.connect()).await.unwrap().unwrap();
        HealthClient::new(channel).check(HealthCheckRequest::default()).await.unwrap();
    }
}

#[tokio::test]
async fn listeners_share_few_file_descriptors() {
    join_all([128, 256].map(async |files| {
        let server = start_with_files(files, &[]).await;
        for (listener, address, text) in [
            ("grpc", server.grpc.clone(), ""),
            ("grpc", server.grpc.clone(), "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\u{4}\0\0\0\0\0"),
            ("http", server.http.clone(), ""),
            ("http", server.http.clone(), "GET /livez HTTP/1.1\r\nhost: x\r\n\r\nGET /li"),
            ("admin", server.admin.clone(), ""),
        ] {
            let name = format!("{files} files, {listener} {text:?}");
            let attack = Attack::start(&name, &server, GROWTH_MAX).await;
            let flood = Flood::start(ATTACKER, &address, 400, text).await;
            assert_all_listeners_answer(&server).await;
            let opened = server.process.open_files();
            println!("{name}: {opened} open files");
            assert!(opened < files, "{name}: {opened} open files");
            flood.stop().await;
            attack.end(&server).await;
            assert_all_listeners_answer(&server).await;
        }
        let log = server.process.output();
        assert!(!log.contains("cannot accept"), "{log}");
        assert_eq!(server.stop().await.code(), Some(0));
    }))
    .await;
}

#[tokio::test]
async fn too_few_file_descriptors_are_reported_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let limits = folder.path().join("limits.yaml");
    fs::write(&limits, LIMITS).unwrap();
    let refused = async |files, flags: &[&str]| {
        let flags = [&["--limits", limits.to_str().unwrap()], flags].concat();
        let finished = with_files(files, &Sluicegate::command(&flags, &[]));
        let finished = sluicegate_tests::finish(finished).await;
        assert_eq!(finished.code, 1, "{finished:?}");
        finished.stderr
    };
    let few = refused(90, &[]).await;
    assert!(few.contains("the limit of open files is 90, and at least 96 are needed"), "{few}");
    let many = refused(256, &["--grpc-max-connections", "200"]).await;
    assert!(many.contains("exceed the limit of open files, 256"), "{many}");
}

// === The admin listener ===

async fn admin_channel(server: &Sluicegate) -> Channel {
    let endpoint = Channel::from_shared(format!("http://{}", server.admin)).unwrap();
    endpoint.connect().await.unwrap()
}

fn token(folder: &Path) -> String {
    let file = folder.join("token");
    fs::write(&file, "0123456789abcdef").unwrap();
    file.to_str().unwrap().to_owned()
}

/// The HEADERS frame of a Watch call, with fields of HPACK's static table and short literals.
fn watch_headers(stream: u32, more: &str) -> Vec<u8> {
    fn literal(block: &mut Vec<u8>, name: u8, value: &str) {
        block.push(name);
        assert!(value.len() < 127);
        block.push(u8::try_from(value.len()).unwrap());
        block.extend(value.as_bytes());
    }
    let mut block = vec![0x83, 0x86];
    literal(&mut block, 0x04, "/grpc.health.v1.Health/Watch");
    literal(&mut block, 0x01, "x");
    // content-type is entry 31: 15 and 16 more.
    block.push(0x0f);
    literal(&mut block, 16, "application/grpc");
    for _ in 0..more.len() / 100 {
        block.extend([0x00, 1, b'x']);
        block.push(100);
        block.extend(&more.as_bytes()[..100]);
    }
    let length = u32::try_from(block.len()).unwrap().to_be_bytes();
    let head = [length[1], length[2], length[3], 1, 4];
    [&head[..], &stream.to_be_bytes(), &block].concat()
}

#[tokio::test]
async fn admin_listener_bounds_streams_before_authentication() {
    let outer = tempfile::tempdir().unwrap();
    let file = token(outer.path());
    let server = Sluicegate::start(LIMITS, &["--admin-token-file", &file]).await;
    let name = "streams on the admin listener";
    let attack = Attack::start(name, &server, 32 << 20).await;

    // Watch calls of a gRPC library.
    let mut watches = Vec::new();
    let mut refused = 0;
    for _ in 0..4 {
        let channel = admin_channel(&server).await;
        for _ in 0..20 {
            let mut client = HealthClient::new(channel.clone());
            match client.watch(HealthCheckRequest::default()).await {
                Ok(watch) => watches.push(watch.into_inner()),
                Err(status) => {
                    assert_eq!(status.code(), GrpcCode::ResourceExhausted, "{status}");
                    refused += 1;
                }
            }
        }
    }
    assert_eq!((watches.len(), refused), (64, 16));
    assert_eq!(bound_met(&server, "admin", "lasting_calls").await, 16.0);
    let mut client = HealthClient::new(admin_channel(&server).await);
    client.check(HealthCheckRequest::default()).await.unwrap();
    drop(watches);
    until("places for Watch", || async {
        let mut client = HealthClient::new(admin_channel(&server).await);
        client.watch(HealthCheckRequest::default()).await.ok().map(drop)
    })
    .await;

    // More calls without messages than the server allows, with and without long headers.
    for (more, calls) in [("", 20_000), (&*"y".repeat(12_000), 2_000)] {
        let mut socket = connect_from(ATTACKER, &server.admin).await.unwrap();
        socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
        for call in 0..calls {
            // Fails when the server closes the connection.
            if socket.write_all(&watch_headers(call * 2 + 1, more)).await.is_err() {
                break;
            }
            // Frames of the server are read, so that it does not wait.
            let _nothing = socket.try_read(&mut [0; 65_536]);
        }
        let mut client = HealthClient::new(admin_channel(&server).await);
        client.check(HealthCheckRequest::default()).await.unwrap();
    }
    drop(client);
    attack.end(&server).await;
    assert_eq!(server.stop().await.code(), Some(0));
}
