//! Attacks by a hostile or broken Redis.

use std::{
    fs,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use sluicegate_proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use sluicegate_tests::{Attack, Redis, Sluicegate, hit, until};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::{JoinHandle, JoinSet},
    time::sleep,
};

use crate::connections::with_files;

/// The healthy client must be allowed without Redis too.
const LIMITS: &str = "
domain: api
on_failure: allow
descriptors:
  - {key: healthy, rate_limit: {unit: hour, requests_per_unit: 1000000}}
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 10}}
";

/// Duration of each kind of reply.
const SPAN: Duration = Duration::from_millis(600);

/// Maximum growth of the server's memory, for any replies.
const GROWTH_MAX: u64 = 48 << 20;

/// Maximum bytes of an endless reply on one connection.
const ENDLESS_MAX: usize = 64 << 20;

/// A reply to a command.
#[derive(Clone, Debug)]
enum Sent {
    Bytes(Vec<u8>),
    /// The beginning, and then the rest repeatedly.
    Endless(Vec<u8>, Vec<u8>),
    Nothing,
}

/// Behavior of the peer.
#[derive(Clone)]
enum Mode {
    /// Forwards everything to the real Redis.
    Honest,
    /// Sends replies without commands.
    Hostile(Arc<dyn Fn(&Command) -> Sent + Send + Sync>),
}

/// A command and its arguments.
type Command = Vec<String>;

/// A RESP peer in front of a real Redis.
struct Peer {
    address: SocketAddr,
    mode: watch::Sender<Mode>,
    accepted: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Peer {
    async fn start(redis: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mode = watch::Sender::new(Mode::Honest);
        let accepted = Arc::new(AtomicUsize::new(0));
        let (modes, count, redis) = (mode.clone(), Arc::clone(&accepted), redis.to_owned());
        let task = tokio::spawn(async move {
            // Closes all connections when the peer is dropped.
            let mut connections = JoinSet::new();
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                count.fetch_add(1, Ordering::Relaxed);
                connections.spawn(connection(socket, redis.clone(), modes.subscribe()));
            }
        });
        Self { address, mode, accepted, task }
    }

    /// Changes the mode, and closes open connections.
    fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }

    fn hostile(&self, reply: impl Fn(&Command) -> Sent + Send + Sync + 'static) {
        self.set(Mode::Hostile(Arc::new(reply)));
    }

    fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn connection(mut socket: TcpStream, redis: String, mut modes: watch::Receiver<Mode>) {
    let mode = modes.borrow_and_update().clone();
    let served = async {
        match mode {
            Mode::Honest => {
                // Without a Redis the connection ends.
                if let Ok(mut real) = TcpStream::connect(redis).await {
                    let _ended = tokio::io::copy_bidirectional(&mut socket, &mut real).await;
                }
            }
            Mode::Hostile(reply) => serve(BufStream::new(socket), &*reply).await,
        }
    };
    tokio::select! {
        () = served => {}
        _ = modes.changed() => {}
    }
}

/// Sends replies until the other end closes the connection.
async fn serve(mut stream: BufStream<TcpStream>, reply: &(dyn Fn(&Command) -> Sent + Send + Sync)) {
    while let Some(command) = read(&mut stream).await {
        let sent = match reply(&command) {
            Sent::Bytes(bytes) => stream.write_all(&bytes).await,
            Sent::Endless(head, rest) => {
                let _closed = stream.write_all(&head).await;
                let mut sent = head.len();
                while sent < ENDLESS_MAX && stream.write_all(&rest).await.is_ok() {
                    sent += rest.len();
                }
                return;
            }
            Sent::Nothing => Ok(()),
        };
        if sent.is_err() || stream.flush().await.is_err() {
            return;
        }
    }
}

async fn read(stream: &mut BufStream<TcpStream>) -> Option<Command> {
    let count = number(stream).await?;
    let mut command = Vec::new();
    for _ in 0..count {
        let mut argument = vec![0; number(stream).await? + 2];
        stream.read_exact(&mut argument).await.ok()?;
        argument.truncate(argument.len() - 2);
        command.push(String::from_utf8_lossy(&argument).into_owned());
    }
    Some(command)
}

/// The number in a line such as `*3` or `$7`.
async fn number(stream: &mut BufStream<TcpStream>) -> Option<usize> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok()?;
    line.trim_end().get(1..)?.parse().ok()
}

fn text(text: &str) -> Sent {
    Sent::Bytes(text.as_bytes().to_vec())
}

fn bulk(content: &str) -> Sent {
    text(&format!("${}\r\n{content}\r\n", content.len()))
}

/// A valid reply to any command but scripts.
fn friendly(command: &Command) -> Sent {
    match command[0].as_str() {
        "EVAL" => text(":1\r\n"),
        "INFO" => bulk(""),
        "CLUSTER" if command[1] == "INFO" => bulk("cluster_state:ok\r\n"),
        _ => text("+OK\r\n"),
    }
}

fn is_script(command: &Command) -> bool {
    command[0] == "EVALSHA"
}

async fn start(store: &str, flags: &[&str]) -> Sluicegate {
    Sluicegate::start(LIMITS, &[&["--store", store], flags].concat()).await
}

async fn from_store(server: &Sluicegate) -> f64 {
    server.sum("sluicegate_decisions_total", &[("source", "store")]).await
}

/// Waits until Redis has decided more requests.
async fn until_stored(server: &Sluicegate) {
    let before = from_store(server).await;
    until("the store to decide", || async {
        server.should_rate_limit(hit("healthy", "client")).await.unwrap();
        (from_store(server).await > before).then_some(())
    })
    .await;
}

/// Replies of a hostile peer.
type Replies = Box<dyn Fn(&Command) -> Sent + Send + Sync>;

/// Whether replies are rejected, or requests are unanswered for another reason.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Rejected,
    Any,
}

/// Attacks a server with each of these replies, and waits for its recovery.
async fn reply_with(fate: Fate, attacks: Vec<(&str, Replies)>) -> Sluicegate {
    let redis = Redis::start().await;
    let peer = Peer::start(&redis.address()).await;
    let mut server = start(&format!("redis://{}", peer.address), &[]).await;
    until_stored(&server).await;
    let mut attack = Attack::start("hostile replies", &server, GROWTH_MAX).await;
    for (name, reply) in attacks {
        let rejected = async || server.metric("sluicegate_redis_replies_rejected_total").await;
        let known = rejected().await;
        peer.hostile(reply);
        sleep(SPAN).await;
        // After many broken connections the next attempt follows after a second.
        until("a reply to be rejected", || async {
            (fate == Fate::Any || rejected().await > known).then_some(())
        })
        .await;
        server.process.assert_running();
        attack.check(&server, name).await;
    }
    peer.set(Mode::Honest);
    until_stored(&server).await;
    attack.end(&server).await;
    let log = server.process.output();
    assert!(!log.contains("panicked"), "{log}");
    server
}

/// Sends this reply to scripts, and valid replies to anything else.
fn to_scripts(sent: Sent) -> Replies {
    Box::new(move |command| if is_script(command) { sent.clone() } else { friendly(command) })
}

/// Sends this reply to everything.
fn to_all(sent: Sent) -> Replies {
    Box::new(move |_| sent.clone())
}

#[tokio::test]
async fn replies_over_a_bound_close_the_connection() {
    let nested = || text(&"*1\r\n".repeat(4_000));
    let endless = |head: &str, rest: &str| {
        Sent::Endless(head.as_bytes().to_vec(), rest.repeat(4_096).into_bytes())
    };
    let server = reply_with(
        Fate::Rejected,
        vec![
            ("nested arrays", to_scripts(nested())),
            ("an endless bulk string", to_scripts(endless("$9999999999\r\n", "a"))),
            ("an endless simple string", to_scripts(endless("+", "a"))),
            ("an endless error", to_scripts(endless("-ERR ", "a"))),
            ("an endless array", to_scripts(endless("*2147483647\r\n", ":1\r\n"))),
            ("endless nested arrays", to_scripts(endless("", "*1\r\n"))),
            ("wide nested arrays", to_scripts(endless("", "*9\r\n"))),
            ("endless replies", to_scripts(endless("", ":1\r\n"))),
            ("a reply too many", to_scripts(text("*1\r\n:1\r\n*1\r\n:1\r\n"))),
            ("a push message", to_scripts(text(">2\r\n+message\r\n+hello\r\n"))),
            ("a web page", to_scripts(text("HTTP/1.1 200 OK\r\n\r\n"))),
        ],
    )
    .await;
    for reason in [
        "a reply nested more than 4 levels deep",
        "a reply of more than",
        "bytes that are no RESP2 reply",
        "a reply that no command asked for",
    ] {
        server.process.printed(reason, 1).await;
    }
}

#[tokio::test]
async fn replies_to_commands_other_than_scripts_are_bounded() {
    let endless = |head: &str, rest: &str| {
        Sent::Endless(head.as_bytes().to_vec(), rest.repeat(4_096).into_bytes())
    };
    let info = endless("$104857600\r\n", "used_memory:1\r\n");
    reply_with(
        Fate::Any,
        vec![
            ("nested arrays", to_all(text(&"*1\r\n".repeat(4_000)))),
            ("an endless simple string", to_all(endless("+", "a"))),
            ("an endless array of nothing", to_all(endless("*60000\r\n", "$-1\r\n"))),
            ("nothing", to_all(Sent::Nothing)),
            ("LOADING", to_all(text("-LOADING Redis is loading the dataset in memory\r\n"))),
            (
                "INFO of 100 MB",
                Box::new(move |command| match command[0].as_str() {
                    "INFO" => info.clone(),
                    _ => friendly(command),
                }),
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn unexpected_script_replies_apply_on_failure() {
    let server = reply_with(
        Fate::Any,
        vec![
            ("a text", to_scripts(text("+OK\r\n"))),
            ("no value", to_scripts(text("$-1\r\n"))),
            ("a number", to_scripts(text(":5\r\n"))),
            ("no elements", to_scripts(text("*0\r\n"))),
            ("too few elements", to_scripts(text("*1\r\n:1\r\n"))),
            ("texts", to_scripts(text("*2\r\n+a\r\n+b\r\n"))),
            ("too many elements", to_scripts(text("*4\r\n:1\r\n:7\r\n:9\r\n:9\r\n"))),
            ("a negative time", to_scripts(text("*2\r\n:-1\r\n:7\r\n"))),
            ("a huge integer", to_scripts(text("*2\r\n:1\r\n:9223372036854775807\r\n"))),
            ("a least integer", to_scripts(text("*2\r\n:1\r\n:-9223372036854775808\r\n"))),
            ("an error", to_scripts(text("-ERR no\r\n"))),
            ("WRONGTYPE", to_scripts(text("-WRONGTYPE Operation against a key\r\n"))),
            ("NOSCRIPT", to_scripts(text("-NOSCRIPT No matching script\r\n"))),
            ("LOADING", to_scripts(text("-LOADING Redis is loading\r\n"))),
            ("nothing", to_scripts(Sent::Nothing)),
        ],
    )
    .await;
    // Not one line per request.
    let log = server.process.output();
    let warnings = log.matches(" WARN ").count() + log.matches(" ERROR ").count();
    assert!(warnings < 100, "{warnings}: {log}");
}

// === Redirections ===

/// A listener that redirections lead to, and that must get no connection.
struct Trap {
    address: SocketAddr,
    peer: Peer,
}

impl Trap {
    async fn start() -> Self {
        let peer = Peer::start("127.0.0.1:1").await;
        peer.hostile(friendly);
        Self { address: peer.address, peer }
    }
}

/// Waits until a redirection was rejected. A busy server may read the reply after its decision.
async fn until_refused(server: &Sluicegate) {
    until("a redirection to be refused", || async {
        let refused = server.metric("sluicegate_redis_redirections_refused_total").await;
        (refused > 0.0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn redirections_outside_a_cluster_are_not_followed() {
    let trap = Trap::start().await;
    let redis = Redis::start().await;
    let peer = Peer::start(&redis.address()).await;
    let server = start(&format!("redis://{}", peer.address), &[]).await;
    until_stored(&server).await;
    let mut attack = Attack::start("redirections", &server, GROWTH_MAX).await;
    for code in ["MOVED", "ASK"] {
        peer.hostile(to_scripts(text(&format!("-{code} 1 {}\r\n", trap.address))));
        sleep(SPAN).await;
        attack.check(&server, code).await;
    }
    until_refused(&server).await;
    assert_eq!(trap.peer.accepted(), 0);
    server.process.printed("redis-cluster://", 1).await;
    peer.set(Mode::Honest);
    until_stored(&server).await;
    attack.end(&server).await;
}

/// The only node of a cluster, which can also list another one.
fn cluster(
    own: SocketAddr,
    other: SocketAddr,
    names_other: bool,
) -> impl Fn(&Command) -> Sent + Send + Sync + 'static {
    let line = |address: SocketAddr, flags: &str, slots: &str| {
        format!("{:040x} {address}@1 {flags} - 0 0 1 connected {slots}\n", address.port())
    };
    let mut nodes = line(own, "myself,master", "0-16383");
    if names_other {
        nodes += &line(other, "master", "");
    }
    move |command| match command[0].as_str() {
        "CLUSTER" if command[1] == "NODES" => bulk(&nodes),
        "EVALSHA" => text(&format!("-MOVED 1 {other}\r\n")),
        _ => friendly(command),
    }
}

#[tokio::test]
async fn redirections_are_followed_only_to_listed_nodes() {
    let trap = Trap::start().await;
    let peer = Peer::start("127.0.0.1:1").await;
    peer.hostile(cluster(peer.address, trap.address, false));
    let server = start(&format!("redis-cluster://{}", peer.address), &[]).await;
    until("a connection", || async {
        (server.metric("sluicegate_redis_connections_total").await > 0.0).then_some(())
    })
    .await;
    let name = "MOVED to a server that the cluster does not name";
    let attack = Attack::start(name, &server, GROWTH_MAX).await;
    sleep(SPAN).await;
    until_refused(&server).await;
    assert_eq!(trap.peer.accepted(), 0);
    let named = "redirects a call to a server outside of its cluster";
    server.process.printed(named, 1).await;
    peer.hostile(cluster(peer.address, trap.address, true));
    until("the other server to be asked", || async {
        server.should_rate_limit(hit("healthy", "client")).await.unwrap();
        (trap.peer.accepted() > 0).then_some(())
    })
    .await;
    drop((peer, trap));
    attack.end(&server).await;
}

#[tokio::test]
async fn lists_of_nodes_are_bounded() {
    let peer = Peer::start("127.0.0.1:1").await;
    let own = peer.address;
    let line = |port: usize| format!("{port:040x} 127.0.0.1:{port}@1 master - 0 0 1 connected\n");
    let many: String = (1..=8_000).map(line).collect();
    let million = "x\n".repeat(1_000_000);
    let endless = Sent::Endless(b"$104857600\r\n".to_vec(), line(7).repeat(100).into_bytes());
    let slots = format!("{:040x} {own}@1 myself,master - 0 0 1 connected 0-99999999\n", 1);
    let mut server = start(&format!("redis-cluster://{own}"), &[]).await;
    let mut attack = Attack::start("lists of nodes", &server, GROWTH_MAX).await;
    for (name, nodes) in [
        ("8,000 nodes", bulk(&many)),
        ("a million lines", bulk(&million)),
        ("CLUSTER NODES of 100 MB", endless),
        ("slots that there are not", bulk(&slots)),
        ("a number", text(":1\r\n")),
    ] {
        peer.hostile(move |command| match command[0].as_str() {
            "CLUSTER" if command[1] == "NODES" => nodes.clone(),
            _ => friendly(command),
        });
        sleep(SPAN).await;
        server.process.assert_running();
        attack.check(&server, name).await;
    }
    let open = server.process.open_files();
    assert!(open < 200, "{open} open files");
    drop(peer);
    attack.end(&server).await;
}

/// Different spellings of 127.0.0.1: octal numbers may begin with any number of zeros.
fn spellings(count: usize) -> impl Iterator<Item = String> {
    let zeros = |number: usize, place: u32| "0".repeat(number / 8_usize.pow(place) % 8);
    (0..count).map(move |number| {
        let [a, b, c, d] = [0, 1, 2, 3].map(|place| zeros(number, place));
        format!("{a}0177.0{b}.0{c}.0{d}1")
    })
}

/// A cluster with a primary for each host, with slots spread over them. All of them are this peer.
fn large_cluster(
    port: u16,
    hosts: &[String],
) -> impl Fn(&Command) -> Sent + Send + Sync + 'static + use<> {
    let slots = 16_384 / hosts.len();
    // The later of two claims to a slot applies.
    let epoch = 4_000 - hosts.len();
    let line = |(number, host): (usize, &String)| {
        let (first, last) = (number * slots, number * slots + slots - 1);
        format!("{number:040x} {host}:{port}@1 master - 0 0 {epoch} connected {first}-{last}\n")
    };
    let nodes: String = hosts.iter().enumerate().map(line).collect();
    move |command| match command[0].as_str() {
        "CLUSTER" if command[1] == "NODES" => bulk(&nodes),
        _ => friendly(command),
    }
}

#[tokio::test]
async fn a_huge_cluster_leaves_file_descriptors_for_listeners() {
    const FILES: usize = 1_024;
    // A quarter of the descriptors that are not reserved.
    const CONNECTIONS: usize = 240;
    const FILES_MAX: usize = CONNECTIONS + 64;
    // Thousands of servers with their metrics, and hundreds of connections.
    const GROWTH_MAX: u64 = 256 << 20;
    let peer = Peer::start("127.0.0.1:1").await;
    let own = peer.address;
    let hosts: Vec<_> = spellings(4_000).collect();
    let (some, others) = hosts.split_at(2_000);
    peer.hostile(to_all(Sent::Nothing));

    let folder = tempfile::tempdir().unwrap();
    let (limits, store) = (folder.path().join("limits.yaml"), format!("redis-cluster://{own}"));
    fs::write(&limits, LIMITS).unwrap();
    let flags = ["--limits", limits.to_str().unwrap(), "--store", &store];
    let command = with_files(FILES, &Sluicegate::command(&flags, &[]));
    let mut server = Sluicegate::started(folder, command).await;
    let open = async || server.sum("sluicegate_redis_connections_open", &[]).await;
    let mut attack = Attack::start("a cluster of thousands", &server, GROWTH_MAX).await;

    peer.hostile(large_cluster(own.port(), some));
    until("all connections", || async { (open().await == CONNECTIONS as f64).then_some(()) }).await;
    assert_eq!(server.get("/livez").await.0, 200);
    let (_, health) = server.get("/healthcheck?verbose").await;
    let without = health
        .matches("no file descriptors left for this server: raise the limit of open files")
        .count();
    assert_eq!(without, some.len() - CONNECTIONS, "{health}");
    server.should_rate_limit(hit("user", "bob")).await.unwrap();
    server.replace_limits(&LIMITS.replace("10}", "11}"));
    until("a reload", || async {
        server.get("/rlconfig").await.1.contains("user: [11 per hour").then_some(())
    })
    .await;
    attack.check(&server, "2,000 primaries").await;
    let opened = server.process.open_files();
    println!("2,000 primaries: {opened} open files");
    assert!(opened <= FILES_MAX, "{opened} open files");

    // Another set of hosts each time.
    let lists = [some, others].map(|hosts| large_cluster(own.port(), hosts));
    let asked = AtomicUsize::new(0);
    peer.hostile(move |command| {
        let number = match command.get(1).is_some_and(|it| it == "NODES") {
            true => asked.fetch_add(1, Ordering::Relaxed),
            false => 0,
        };
        lists[number % 2](command)
    });
    for _ in 0..100 {
        let opened = server.process.open_files();
        assert!(opened <= FILES_MAX, "{opened} open files");
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(server.get("/livez").await.0, 200);
    server.should_rate_limit(hit("user", "bob")).await.unwrap();
    attack.check(&server, "2,000 other primaries each time").await;

    peer.hostile(large_cluster(own.port(), &some[..1]));
    until("the small cluster", || async { (open().await == 2.0).then_some(()) }).await;
    server.process.assert_running();
    drop(peer);
    // The file descriptors are free, see above. The allocator keeps more memory of thousands of small objects than of
    // other attacks.
    attack.end_beside_attackers(&server).await;
    let log = server.process.output();
    println!("{} lines of log", log.lines().count());
    assert_eq!(log.matches("no file descriptors left").count(), 1, "{log}");
    assert!(!log.contains("Too many open files"), "{log}");
}

#[tokio::test]
async fn sentinels_without_a_valid_primary_are_skipped() {
    let peer = Peer::start("127.0.0.1:1").await;
    let mut server = start(&format!("redis-sentinel://{}/main", peer.address), &[]).await;
    let mut attack = Attack::start("sentinels", &server, GROWTH_MAX).await;
    for (host, port) in
        [("127.0.0.1", "99999"), ("127.0.0.1", "-1"), ("", "1"), ("a b\r\nc", "1"), ("::::", "0")]
    {
        let place = format!("*2\r\n${}\r\n{host}\r\n${}\r\n{port}\r\n", host.len(), port.len());
        peer.hostile(move |command| match command[0].as_str() {
            "SENTINEL" if command[1] == "MASTER" => text("*2\r\n+config-epoch\r\n+1\r\n"),
            "SENTINEL" => text(&place),
            _ => friendly(command),
        });
        sleep(SPAN).await;
        server.process.assert_running();
        attack.check(&server, &format!("a primary at {host:?} {port:?}")).await;
    }
    assert_eq!(server.metric("sluicegate_store_degraded").await, 1.0);
    drop(peer);
    attack.end(&server).await;
}

// === Stored values ===

#[tokio::test]
async fn a_poisoned_counter_is_replaced_and_logged_once() {
    let redis = Redis::start().await;
    let flags = ["--deny-cache-entries", "0", "--decision-timeout", "5s"];
    let server = start(&redis.url(), &flags).await;
    let ask = async || server.should_rate_limit(hit("user", "bob")).await.unwrap().overall_code();
    until_stored(&server).await;
    let attack = Attack::start("a poisoned counter", &server, GROWTH_MAX).await;
    assert_eq!(ask().await, Code::Ok);
    let key = redis.keys("s1:*user=bob*").await.pop_first().unwrap();
    for _ in 0..3 {
        redis.query(&["SET", &key, "9223372036854775807"]).await;
        assert_eq!(ask().await, Code::Ok);
        let left: i64 = redis.query(&["PTTL", &key]).await.parse().unwrap();
        assert!((1..=3_600_000).contains(&left), "{left}");
    }
    assert_eq!(server.metric("sluicegate_redis_counters_unusable_total").await, 3.0);
    for _ in 0..9 {
        assert_eq!(ask().await, Code::Ok);
    }
    assert_eq!(ask().await, Code::OverLimit);
    attack.end(&server).await;
    let what = "holds a value that cannot be its state";
    let log = server.process.printed(what, 1).await;
    assert_eq!(log.matches(what).count(), 1, "{log}");
    let line = log.lines().find(|line| line.contains(what)).unwrap();
    assert!(line.contains("key_hash") && !line.contains("bob"), "{line}");
}
