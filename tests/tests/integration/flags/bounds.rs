//! Flags of connections, bounds and shutdown.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use sluicegate_proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use sluicegate_tests::{Caller, Frame, HangingStore, RawConnection, finish, hit, until};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tonic_health::pb::health_check_response::ServingStatus;

use super::{
    Row,
    given::{Given, code, health, left, one_line, until_in_flight, until_waiting},
    row,
};

pub(super) fn rows() -> Vec<Row> {
    vec![
        row("serve --grpc-max-connections", "1", grpc_max_connections),
        row("serve --http-max-connections", "1", http_max_connections),
        row(
            "serve --max-pending-connections-per-address",
            "64",
            max_pending_connections_per_address,
        ),
        row("serve --handshake-timeout", "200ms", handshake_timeout),
        row("serve --http-idle-timeout", "1s", http_idle_timeout),
        row("serve --max-in-flight", "1", max_in_flight),
        row("serve --request-max-bytes", "9", request_max_bytes),
        row("serve --drain-delay", "1h", drain_delay),
        row("serve --drain-timeout", "200ms", drain_timeout),
    ]
}

pub(super) async fn grpc_max_connections(given: Given) {
    let server = given.serve(&[]).await;
    let max = "sluicegate_connections_max{listener=\"grpc\"}";
    assert_eq!(server.metric(max).await, 1.0);
    let mut used = server.connect().await;
    used.should_rate_limit(hit("user", "bob")).await.unwrap();
    let mut refused = TcpStream::connect(&server.grpc).await.unwrap();
    assert_eq!(refused.read(&mut [0]).await.unwrap_or(0), 0);
    used.should_rate_limit(hit("user", "bob")).await.unwrap();
    let refused = "sluicegate_connections_dropped_total{listener=\"grpc\",reason=\"refused\"}";
    assert_eq!(server.metric(refused).await, 1.0);
}

pub(super) async fn http_max_connections(given: Given) {
    let server = given.serve(&[]).await;
    let mut first = TcpStream::connect(&server.http).await.unwrap();
    let mut second = TcpStream::connect(&server.http).await.unwrap();
    second.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut answer = [0; 12];
    second.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    // The second connection has taken its place.
    assert_eq!(first.read(&mut answer).await.unwrap_or(0), 0);
}

pub(super) async fn max_pending_connections_per_address(given: Given) {
    let server = given.serve(&[]).await;
    // Complete their handshakes, so that the handshake timeout closes none.
    let mut pending = Vec::new();
    for _ in 0..65 {
        let mut connection = RawConnection::connect(&server.grpc).await;
        connection.until("hello", |frame| (*frame == Frame::Other(4)).then_some(())).await;
        pending.push(connection);
    }
    pending.remove(0).closed().await;
    let dropped = "sluicegate_connections_dropped_total{listener=\"grpc\",reason=\"address\"}";
    assert_eq!(server.metric(dropped).await, 1.0);
    let refused = finish(given.with("63").serve_command(&[])).await;
    one_line(&refused, 2, &[given.name, "must be at least 64"]);
}

pub(super) async fn handshake_timeout(given: Given) {
    let server = given.serve(&[]).await;
    let connected = Instant::now();
    let mut silent = TcpStream::connect(&server.grpc).await.unwrap();
    // The server sends its settings, and later closes the connection.
    let _reset = silent.read_to_end(&mut Vec::new()).await;
    // The default is 10s.
    assert!(connected.elapsed() < Duration::from_secs(8), "{:?}", connected.elapsed());
    let dropped = "sluicegate_connections_dropped_total{listener=\"grpc\",reason=\"timeout\"}";
    assert_eq!(server.metric(dropped).await, 1.0);
}

pub(super) async fn http_idle_timeout(given: Given) {
    let server = given.serve(&[]).await;
    let mut idle = TcpStream::connect(&server.http).await.unwrap();
    idle.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    // Reads the answer, and the end of the connection.
    let mut answer = Vec::new();
    let answered = Instant::now();
    idle.read_to_end(&mut answer).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200"));
    // The default is 75s.
    assert!(answered.elapsed() < Duration::from_secs(60), "{:?}", answered.elapsed());
}

pub(super) async fn max_in_flight(given: Given) {
    let mut store = HangingStore::start().await;
    let server = given.serve(&store.flags()).await;
    let held = store.hold(&server, hit("user", "bob")).await;
    assert_eq!(code(&server, "bob", 1).await, Code::OverLimit);
    let body = r#"{"domain":"api","descriptors":[{"entries":[{"key":"user","value":"bob"}]}]}"#;
    assert_eq!(server.json(body).await.0, 429);
    // Also for a call that bypasses the fast path.
    let caller = Caller::connect(&server.grpc).await;
    let unusual = caller.begin_with(&[("grpc-encoding", "identity")]).await.unwrap();
    let answer = unusual.ask(&hit("user", "bob")).await.unwrap();
    assert_eq!(answer.overall_code(), Code::OverLimit);
    assert_eq!(server.metric("sluicegate_requests_shed_total").await, 3.0);
    assert_eq!(health(&server).await, ServingStatus::Serving);
    // A call is not in flight before its message is complete.
    let begun = caller.begin().await.unwrap();
    until_waiting(&server, 1.0).await;
    until_in_flight(&server, 1.0).await;
    store.release();
    assert_eq!(held.answer().await.unwrap().overall_code(), Code::Ok);
    assert_eq!(begun.ask(&hit("user", "bob")).await.unwrap().overall_code(), Code::Ok);
    until_in_flight(&server, 0.0).await;
    assert_eq!(code(&server, "bob", 1).await, Code::Ok);
}

pub(super) async fn request_max_bytes(given: Given) {
    let server = given.serve(&[]).await;
    // The bytes of `api`, `user` and the value.
    assert_eq!(code(&server, "bob", 1).await, Code::OverLimit);
    assert_eq!(code(&server, "eve", 0).await, Code::OverLimit);
    assert_eq!(code(&server, "me", 1).await, Code::Ok);
    let counted = "sluicegate_requests_over_bound_total{bound=\"bytes\"}";
    assert_eq!(server.metric(counted).await, 2.0);
}

pub(super) async fn drain_delay(given: Given) {
    let server = given.serve(&[]).await;
    assert_eq!(health(&server).await, ServingStatus::Serving);
    assert_eq!(server.get("/healthcheck").await.0, 200);
    server.process.signal(Signal::SIGTERM);
    until("health to report NOT_SERVING", || async {
        (health(&server).await == ServingStatus::NotServing).then_some(())
    })
    .await;
    assert_eq!(server.get("/healthcheck").await.0, 500);
    assert_eq!(code(&server, "bob", 1).await, Code::Ok);
    assert_eq!(left(&server, "bob").await, 9);
}

pub(super) async fn drain_timeout(given: Given) {
    let mut store = HangingStore::start().await;
    let mut server = given.serve(&store.flags()).await;
    let held = store.hold(&server, hit("user", "bob")).await;
    let signalled = Instant::now();
    server.process.signal(Signal::SIGTERM);
    assert_eq!(server.process.ended().await.code(), Some(0));
    // The default is 30s.
    assert!(signalled.elapsed() < Duration::from_secs(25), "{:?}", signalled.elapsed());
    held.answer().await.unwrap_err();
    assert!(server.process.output().contains("calls in progress were aborted"));
}
