//! Flags of the gRPC listener.

use std::time::{Duration, Instant};

use bytes::Bytes;
use prost::Message;
use sluicegate_proto::envoy::service::ratelimit::v3::{
    RateLimitResponse, rate_limit_response::Code,
};
use sluicegate_tests::{
    Caller, Frame, HangingStore, RawConnection, Sluicegate, binary, finish, framed, hit,
    http2::{frame, kind},
    until,
};
use tokio::{process::Command, task::JoinSet};
use tonic::{Code as GrpcCode, transport::Channel};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus,
    health_client::HealthClient,
};

use super::{
    Row,
    given::{Given, bound_met, code, health, over_bound, until_in_flight, until_waiting},
    row,
};

pub(super) fn rows() -> Vec<Row> {
    vec![
        row("serve --grpc-listen", "unix:{folder}/s.sock", grpc_listen),
        row("serve --grpc-tls-cert", "{folder}/server.pem", grpc_tls),
        row("serve --grpc-tls-key", "{folder}/server.key", grpc_tls),
        row("serve --grpc-tls-client-ca", "{folder}/ca.pem", grpc_tls_client_ca),
        row("serve --grpc-tls-client-names", "other,spiffe://test/a", grpc_tls_client_names),
        row("serve --grpc-max-message-bytes", "1000", grpc_max_message_bytes),
        row("serve --grpc-keepalive-interval", "50ms", grpc_keepalive_interval),
        row("serve --grpc-keepalive-timeout", "50ms", grpc_keepalive_timeout),
        row("serve --grpc-max-connection-age", "200ms", grpc_max_connection_age),
        row("serve --grpc-max-connection-age-grace", "200ms", grpc_max_connection_age_grace),
        row("serve --grpc-max-concurrent-streams", "2", grpc_max_concurrent_streams),
        row("serve --grpc-max-header-list-bytes", "20000", grpc_max_header_list_bytes),
        row("serve --grpc-max-in-flight-share", "0.1", grpc_max_in_flight_share),
        row("serve --grpc-message-timeout", "100ms", grpc_message_timeout),
        row("serve --grpc-max-waiting-bytes", "200000", grpc_max_waiting_bytes),
        row(
            "serve --grpc-max-waiting-bytes-per-connection",
            "100000",
            grpc_max_waiting_bytes_per_connection,
        ),
        row("serve --grpc-max-streaming-calls", "1", grpc_max_streaming_calls),
        row(
            "serve --grpc-max-streaming-calls-per-connection",
            "1",
            grpc_max_streaming_calls_per_connection,
        ),
        row("serve --grpc-max-connection-idle", "200ms", grpc_max_connection_idle),
    ]
}

pub(super) async fn grpc_listen(given: Given) {
    let server = given.serve(&[]).await;
    assert_eq!(server.grpc, given.value);
    let mut ask = Command::new(binary("sluicectl"));
    ask.args(["check", "--domain", "api", "--descriptor", "user=bob", "--timeout", "30s"]);
    ask.args(["--server", &given.value]);
    let answer = finish(ask).await;
    assert_eq!(answer.code, 0, "{answer:?}");
}

pub(super) async fn grpc_tls(given: Given) {
    given.certify("127.0.0.1", &[]);
    let (cert, key) = (given.path("server.pem"), given.path("server.key"));
    let server = given.serve(&[("--grpc-tls-cert", &cert), ("--grpc-tls-key", &key)]).await;
    let answer = given.call(&server, None).await;
    assert_eq!(answer.code, 0, "{answer:?}");
}

pub(super) async fn grpc_tls_client_ca(given: Given) {
    given.certify("127.0.0.1", &[("caller", "caller")]);
    let (cert, key) = (given.path("server.pem"), given.path("server.key"));
    let server = given.serve(&[("--grpc-tls-cert", &cert), ("--grpc-tls-key", &key)]).await;
    for (caller, code) in [(None, 3), (Some("caller"), 0)] {
        let answer = given.call(&server, caller).await;
        assert_eq!(answer.code, code, "{caller:?}: {answer:?}");
    }
}

pub(super) async fn grpc_tls_client_names(given: Given) {
    given.certify("127.0.0.1", &[("a", "spiffe://test/a"), ("b", "spiffe://test/b")]);
    let [cert, key, ca] = ["server.pem", "server.key", "ca.pem"].map(|name| given.path(name));
    let tls =
        [("--grpc-tls-cert", &*cert), ("--grpc-tls-key", &*key), ("--grpc-tls-client-ca", &*ca)];
    let server = given.serve(&tls).await;
    for (caller, code) in [("a", 0), ("b", 3)] {
        let answer = given.call(&server, Some(caller)).await;
        assert_eq!(answer.code, code, "{caller}: {answer:?}");
    }
}

pub(super) async fn grpc_max_message_bytes(given: Given) {
    let server = given.serve(&[]).await;
    assert_eq!(code(&server, &"x".repeat(1000), 1).await, Code::OverLimit);
    assert_eq!(over_bound(&server, "message_bytes").await, 1.0);
    assert!(server.should_rate_limit(hit("user", &"x".repeat(900))).await.is_ok());
    let (status, _) = server.json(&" ".repeat(1001)).await;
    assert_eq!(status, 429);
}

pub(super) async fn ping(connection: &mut RawConnection) -> [u8; 8] {
    let payload = |frame: &Frame| match frame {
        Frame::Ping(payload) => Some(*payload),
        _ => None,
    };
    connection.until("a ping", payload).await
}

pub(super) async fn grpc_keepalive_interval(given: Given) {
    let server = given.serve(&[("--grpc-keepalive-timeout", "1h")]).await;
    let mut connection = RawConnection::connect(&server.grpc).await;
    for _ in 0..3 {
        let payload = ping(&mut connection).await;
        connection.pong(payload).await;
    }
}

pub(super) async fn grpc_keepalive_timeout(given: Given) {
    let server = given.serve(&[("--grpc-keepalive-interval", "50ms")]).await;
    let mut connection = RawConnection::connect(&server.grpc).await;
    ping(&mut connection).await;
    let unanswered = Instant::now();
    connection.closed().await;
    // The default is 20s.
    assert!(unanswered.elapsed() < Duration::from_secs(15), "{:?}", unanswered.elapsed());
}

pub(super) async fn grpc_max_connection_age(given: Given) {
    // Without pings: the server would also send GOAWAY to a connection that does not reply to them.
    let flags = [
        ("--grpc-max-connection-age-grace", "1h"),
        ("--grpc-keepalive-interval", "0s"),
        ("--grpc-message-timeout", "1h"),
    ];
    let server = given.serve(&flags).await;
    let caller = Caller::connect(&server.grpc).await;
    let call = caller.begin().await.unwrap();
    let mut idle = RawConnection::connect(&server.grpc).await;
    idle.until("GOAWAY", |frame| (*frame == Frame::GoAway).then_some(())).await;
    until("new calls to be refused", async || caller.begin().await.err()).await;
    // A call in progress is still answered.
    assert_eq!(call.ask(&hit("user", "bob")).await.unwrap().overall_code(), Code::Ok);
    caller.closed().await.unwrap();
}

pub(super) async fn grpc_max_connection_age_grace(given: Given) {
    let server = given.serve(&[("--grpc-max-connection-age", "200ms")]).await;
    let caller = Caller::connect(&server.grpc).await;
    let call = caller.begin().await.unwrap();
    let begun = Instant::now();
    call.cut().await;
    // The default is 30s.
    assert!(begun.elapsed() < Duration::from_secs(25), "{:?}", begun.elapsed());
    until_in_flight(&server, 0.0).await;
}

pub(super) async fn grpc_max_concurrent_streams(given: Given) {
    let server = given.serve(&[]).await;
    let caller = Caller::connect(&server.grpc).await;
    until("the server's settings", async || (caller.max_calls() == 2).then_some(())).await;
    let (first, second) = (caller.begin().await.unwrap(), caller.begin().await.unwrap());
    // A third call waits until one of them ends.
    let request = hit("user", "bob");
    let (third, first) = tokio::join!(caller.begin(), first.ask(&request));
    assert_eq!(first.unwrap().overall_code(), Code::Ok);
    for call in [second, third.unwrap()] {
        assert_eq!(call.ask(&hit("user", "bob")).await.unwrap().overall_code(), Code::Ok);
    }
}

pub(super) async fn grpc_max_header_list_bytes(given: Given) {
    let server = given.serve(&[]).await;
    let mut client = server.connect().await;
    let mut with_header = async |length: usize| {
        let mut request = tonic::Request::new(hit("user", "bob"));
        request.metadata_mut().insert("tracestate", "x".repeat(length).parse().unwrap());
        client.should_rate_limit(request).await.map(|answer| answer.get_ref().overall_code())
    };
    assert_eq!(with_header(19_000).await.unwrap(), Code::Ok);
    with_header(20_000).await.unwrap_err();
}

pub(super) async fn grpc_max_in_flight_share(given: Given) {
    let mut store = HangingStore::start().await;
    let [url, timeout] = store.flags();
    let server = given.serve(&[url, timeout, ("--max-in-flight", "10")]).await;
    let mut held = store.hold(&server, hit("user", "bob")).await;
    let beyond = held.client.should_rate_limit(hit("user", "bob")).await.unwrap();
    assert_eq!(beyond.get_ref().overall_code(), Code::OverLimit);
    assert_eq!(bound_met(&server, "in_flight_share").await, 1.0);
    assert_eq!(server.metric("sluicegate_requests_shed_total").await, 1.0);
    // Another connection has its own share.
    let mut other = server.connect().await;
    let mut others = JoinSet::new();
    others.spawn(async move { other.should_rate_limit(hit("user", "bob")).await });
    until_in_flight(&server, 2.0).await;
    store.release();
    assert_eq!(held.answer().await.unwrap().overall_code(), Code::Ok);
    let other = others.join_next().await.unwrap().unwrap().unwrap();
    assert_eq!(other.get_ref().overall_code(), Code::Ok);
}

pub(super) async fn grpc_message_timeout(given: Given) {
    let server = given.serve(&[]).await;
    let caller = Caller::connect(&server.grpc).await;
    let deadline_exceeded = "4";
    let begun = framed(&hit("user", "bob")).slice(..10);
    for pieces in [vec![], vec![begun]] {
        let call = caller.begin().await.unwrap();
        assert_eq!(call.send(pieces, false).await.unwrap().0, deadline_exceeded);
    }
    assert_eq!(bound_met(&server, "message_timeout").await, 2.0);
    // The timeout also applies to an incomplete frame and an incomplete header list.
    for unfinished in [&[0, 0, 8, kind::PING][..], &frame(kind::HEADERS, 0, 1, &[])] {
        let mut connection = RawConnection::connect(&server.grpc).await;
        connection.send(unfinished).await;
        connection.closed().await;
    }
    assert_eq!(bound_met(&server, "message_timeout").await, 4.0);
    // The timeout does not apply to a call with an earlier deadline, nor to one with a complete message.
    let call = caller.begin_with(&[("grpc-timeout", "50m")]).await.unwrap();
    assert_eq!(call.send([], false).await.unwrap().0, "1");
    let call = caller.begin().await.unwrap();
    assert_eq!(call.ask(&hit("user", "bob")).await.unwrap().overall_code(), Code::Ok);
}

/// The first `length` bytes of a longer message.
pub(super) fn message_part(length: usize) -> Bytes {
    framed(&hit("user", &"x".repeat(2 * length))).slice(..length)
}

pub(super) async fn assert_refused_undecoded(caller: &Caller, length: usize) {
    let (status, body) =
        caller.begin().await.unwrap().send([message_part(length)], false).await.unwrap();
    assert_eq!(status, "0");
    let answer = RateLimitResponse::decode(&body[5..]).unwrap();
    assert_eq!((answer.overall_code(), answer.statuses), (Code::OverLimit, vec![]));
}

pub(super) async fn grpc_max_waiting_bytes(given: Given) {
    let server = given.serve(&[("--grpc-message-timeout", "1h")]).await;
    let (one, other) = (Caller::connect(&server.grpc).await, Caller::connect(&server.grpc).await);
    let held = one.begin().await.unwrap().begin_message(message_part(150_000)).unwrap();
    until("the bytes of the message", || async {
        (server.metric("sluicegate_grpc_waiting_bytes").await > 0.0).then_some(())
    })
    .await;
    assert_refused_undecoded(&other, 350_000).await;
    assert_eq!(over_bound(&server, "waiting_bytes").await, 1.0);
    // The first bytes of each connection are not counted.
    assert_eq!(code(&server, "bob", 1).await, Code::Ok);
    let little = other.begin().await.unwrap().begin_message(message_part(1_000)).unwrap();
    until_waiting(&server, 2.0).await;
    drop((held, little));
    until_waiting(&server, 0.0).await;
    assert_eq!(server.metric("sluicegate_grpc_waiting_bytes").await, 0.0);
}

pub(super) async fn grpc_max_waiting_bytes_per_connection(given: Given) {
    let server = given.serve(&[("--grpc-message-timeout", "1h")]).await;
    let (one, other) = (Caller::connect(&server.grpc).await, Caller::connect(&server.grpc).await);
    let held = one.begin().await.unwrap().begin_message(message_part(40_000)).unwrap();
    until_waiting(&server, 1.0).await;
    assert_refused_undecoded(&one, 80_000).await;
    assert_eq!(over_bound(&server, "waiting_bytes_per_connection").await, 1.0);
    let on_another = other.begin().await.unwrap().begin_message(message_part(40_000)).unwrap();
    until_waiting(&server, 2.0).await;
    drop((held, on_another));
    until_waiting(&server, 0.0).await;
}

pub(super) type Watch = tonic::Streaming<HealthCheckResponse>;

pub(super) async fn watch(client: &HealthClient<Channel>) -> Result<Watch, GrpcCode> {
    let answer = client.clone().watch(HealthCheckRequest::default()).await;
    answer.map(tonic::Response::into_inner).map_err(|error| error.code())
}

/// Asserts that a second streaming call is refused until the first ends, and that other calls are not bounded.
pub(super) async fn assert_one_watch(
    server: &Sluicegate,
    first: HealthClient<Channel>,
    second: HealthClient<Channel>,
) {
    let held = watch(&first).await.unwrap();
    assert_eq!(watch(&second).await.unwrap_err(), GrpcCode::ResourceExhausted);
    // Calls with one answer are not streaming calls.
    for _ in 0..3 {
        assert_eq!(health(server).await, ServingStatus::Serving);
    }
    assert_eq!(server.metric("sluicegate_grpc_streaming_calls").await, 1.0);
    drop(held);
    until("the place", async || watch(&second).await.ok()).await;
}

pub(super) async fn grpc_max_streaming_calls(given: Given) {
    let server = given.serve(&[]).await;
    let (first, second) = (server.channel().await, server.channel().await);
    assert_one_watch(&server, HealthClient::new(first), HealthClient::new(second)).await;
    assert!(bound_met(&server, "streaming_calls").await >= 1.0);
}

pub(super) async fn grpc_max_streaming_calls_per_connection(given: Given) {
    let server = given.serve(&[]).await;
    let first = HealthClient::new(server.channel().await);
    assert_one_watch(&server, first.clone(), first.clone()).await;
    assert!(bound_met(&server, "streaming_calls_per_connection").await >= 1.0);
    // The server may not have seen yet that the last call has ended.
    let held = until("the place", async || watch(&first).await.ok()).await;
    drop((watch(&HealthClient::new(server.channel().await)).await.unwrap(), held));
}

pub(super) async fn grpc_max_connection_idle(given: Given) {
    let server = given.serve(&[("--grpc-message-timeout", "1h")]).await;
    let mut idle = RawConnection::connect(&server.grpc).await;
    idle.until("GOAWAY", |frame| (*frame == Frame::GoAway).then_some(())).await;
    // The client does not reply to GOAWAY, and the server still closes the connection.
    idle.closed().await;
    let caller = Caller::connect(&server.grpc).await;
    let call = caller.begin().await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    // A connection with a call is not idle.
    assert_eq!(call.ask(&hit("user", "bob")).await.unwrap().overall_code(), Code::Ok);
    caller.closed().await.unwrap();
    assert_eq!(bound_met(&server, "connection_idle").await, 2.0);
}
