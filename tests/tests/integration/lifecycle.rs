//! Health, reflection and shutdown of a server.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use futures::stream;
use nix::sys::signal::Signal;
use prost::Message;
use prost_types::{FileDescriptorProto, field_descriptor_proto::Type};
use sluicegate_proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use sluicegate_tests::{Caller, Frame, HangingStore, RawConnection, Sluicegate, hit, until};
use tokio::{io::AsyncWriteExt, net::TcpStream, task::JoinSet};
use tonic::Code as GrpcCode;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

const LIMITS: &str = "
domain: api
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 1000000}
";

const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";

async fn health(server: &Sluicegate, name: &str) -> Result<ServingStatus, GrpcCode> {
    let mut client = HealthClient::new(server.channel().await);
    let answer = client.check(HealthCheckRequest { service: name.to_owned() }).await;
    answer.map(|answer| answer.into_inner().status()).map_err(|error| error.code())
}

#[tokio::test]
async fn health_has_three_names() {
    let server = Sluicegate::start(LIMITS, &[]).await;
    for name in ["", "ratelimit", SERVICE] {
        assert_eq!(health(&server, name).await, Ok(ServingStatus::Serving), "{name:?}");
    }
    assert_eq!(health(&server, "unknown").await, Err(GrpcCode::NotFound));
    assert_eq!(server.get("/healthcheck").await, (200, "OK".to_owned()));
}

macro_rules! reflect {
    ($server:expr, $version:ident) => {{
        use tonic_reflection::pb::$version::{
            ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
            server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
        };
        let symbol = "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry";
        let requests = [
            MessageRequest::ListServices(String::new()),
            MessageRequest::FileContainingSymbol(symbol.to_owned()),
        ]
        .map(|request| ServerReflectionRequest {
            host: String::new(),
            message_request: Some(request),
        });
        let mut client = ServerReflectionClient::new($server.channel().await);
        let answers = client.server_reflection_info(stream::iter(requests)).await.unwrap();
        let mut answers = answers.into_inner();
        let (mut services, mut files) = (Vec::new(), Vec::new());
        while let Some(answer) = answers.message().await.unwrap() {
            match answer.message_response.unwrap() {
                MessageResponse::ListServicesResponse(list) => {
                    services.extend(list.service.into_iter().map(|service| service.name));
                }
                MessageResponse::FileDescriptorResponse(list) => {
                    files.extend(list.file_descriptor_proto);
                }
                other => panic!("{other:?}"),
            }
        }
        (services, files)
    }};
}

#[tokio::test]
async fn reflection_describes_every_service() {
    let server = Sluicegate::start(LIMITS, &[]).await;
    for (itself, (services, files)) in [
        ("grpc.reflection.v1.ServerReflection", reflect!(server, v1)),
        ("grpc.reflection.v1alpha.ServerReflection", reflect!(server, v1alpha)),
    ] {
        for name in [SERVICE, "grpc.health.v1.Health", itself] {
            assert!(services.iter().any(|service| service == name), "{name} of {services:?}");
        }
        let files: Vec<_> = files
            .iter()
            .map(|file| FileDescriptorProto::decode(file.as_slice()).unwrap())
            .collect();
        let messages: Vec<_> = files.iter().flat_map(|file| &file.message_type).collect();
        let entry = messages
            .iter()
            .filter(|message| message.name() == "RateLimitDescriptor")
            .flat_map(|message| &message.nested_type)
            .find(|message| message.name() == "Entry")
            .unwrap();
        // The server's own types have bytes, because entries need not be UTF-8.
        let types: Vec<_> =
            entry.field.iter().map(|field| (field.name(), field.r#type())).collect();
        assert_eq!(types, [("key", Type::String), ("value", Type::String)]);
    }
}

/// Sends a signal while calls run; each caller stops when health reports `NOT_SERVING`.
async fn calls_survive(signal: Signal) {
    let mut server = Sluicegate::start(LIMITS, &["--drain-delay", "2s"]).await;
    let (turn_away, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut callers = JoinSet::new();
    for _ in 0..8 {
        let mut client = server.connect().await;
        let (turn_away, answered) = (Arc::clone(&turn_away), Arc::clone(&answered));
        callers.spawn(async move {
            while !turn_away.load(Ordering::Relaxed) {
                let answer = client.should_rate_limit(hit("user", "bob")).await.unwrap();
                assert_eq!(answer.into_inner().overall_code(), Code::Ok);
                answered.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let more_answers = async || {
        let before = answered.load(Ordering::Relaxed);
        until("answers", || async {
            (answered.load(Ordering::Relaxed) > before + 100).then_some(())
        })
        .await;
    };
    more_answers().await;
    let mut watch = HealthClient::new(server.channel().await)
        .watch(HealthCheckRequest::default())
        .await
        .unwrap()
        .into_inner();
    let mut next_status = async || watch.message().await.unwrap().unwrap().status();
    assert_eq!(next_status().await, ServingStatus::Serving);
    server.process.signal(signal);
    assert_eq!(next_status().await, ServingStatus::NotServing);
    more_answers().await;
    // An open stream is a call in progress.
    drop(watch);
    turn_away.store(true, Ordering::Relaxed);
    callers.join_all().await;
    assert_eq!(server.process.ended().await.code(), Some(0));
    let log = server.process.output();
    assert!(log.ends_with("stopped\n") && !log.contains("WARN"), "{log}");
}

#[tokio::test]
async fn sigterm_fails_no_call() {
    calls_survive(Signal::SIGTERM).await;
}

#[tokio::test]
async fn sigquit_fails_no_call() {
    calls_survive(Signal::SIGQUIT).await;
}

#[tokio::test]
async fn a_call_in_progress_is_answered_after_the_drain_began() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut store = HangingStore::start().await;
        let mut server = Sluicegate::start(LIMITS, &store.arguments()).await;
        let call = store.hold(&server, hit("user", "bob")).await;
        let mut other = RawConnection::connect(&server.grpc).await;
        other.until("hello", |frame| (*frame == Frame::Other(4)).then_some(())).await;
        server.process.signal(signal);
        other.until("GOAWAY", |frame| (*frame == Frame::GoAway).then_some(())).await;
        drop(other);
        store.release();
        let answer = call.answer().await.unwrap();
        assert_eq!(answer.overall_code(), Code::Ok);
        assert_eq!(server.process.ended().await.code(), Some(0));
    }
}

#[tokio::test]
async fn sixteen_connections_get_every_answer_until_goaway() {
    let mut server = Sluicegate::start(LIMITS, &[]).await;
    let answered = Arc::new(AtomicUsize::new(0));
    let mut callers = JoinSet::new();
    for _ in 0..16 {
        let caller = Caller::connect(&server.grpc).await;
        let answered = Arc::clone(&answered);
        callers.spawn(async move {
            // Calls that have begun must be answered. After GOAWAY no call can begin.
            while let Ok(call) = caller.begin().await {
                let answer = call.ask(&hit("user", "bob")).await.unwrap();
                assert_eq!(answer.overall_code(), Code::Ok);
                answered.fetch_add(1, Ordering::Relaxed);
            }
            caller.closed().await
        });
    }
    until("answers", || async { (answered.load(Ordering::Relaxed) > 1_000).then_some(()) }).await;
    server.process.signal(Signal::SIGTERM);
    for closed in callers.join_all().await {
        closed.unwrap();
    }
    assert_eq!(server.process.ended().await.code(), Some(0));
    assert!(!server.process.output().contains("WARN"), "{}", server.process.output());
}

#[tokio::test]
async fn an_idle_connection_gets_goaway() {
    let mut server = Sluicegate::start(LIMITS, &[]).await;
    let mut idle = RawConnection::connect(&server.grpc).await;
    idle.until("hello", |frame| (*frame == Frame::Other(4)).then_some(())).await;
    server.process.signal(Signal::SIGTERM);
    idle.until("GOAWAY", |frame| (*frame == Frame::GoAway).then_some(())).await;
    drop(idle);
    assert_eq!(server.process.ended().await.code(), Some(0));
}

#[tokio::test]
async fn health_watchers_do_not_delay_the_drain() {
    // Repeatedly, because the watch ends at the moment at which the connection is asked to close.
    for _ in 0..10 {
        let mut server = Sluicegate::start(LIMITS, &[]).await;
        let mut watch = HealthClient::new(server.channel().await)
            .watch(HealthCheckRequest::default())
            .await
            .unwrap()
            .into_inner();
        assert!(watch.message().await.unwrap().is_some());
        server.process.signal(Signal::SIGTERM);
        assert_eq!(server.process.ended().await.code(), Some(0));
        // The watcher does not close the stream: it has received the change, and waits for the next one.
        let log = server.process.output();
        assert!(!log.contains("calls in progress were aborted"), "{log}");
        drop(watch);
    }
}

#[tokio::test]
async fn a_unix_socket_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let outer = tempfile::tempdir().unwrap();
    let limits = folder.path().join("limits.yaml");
    std::fs::write(&limits, LIMITS).unwrap();
    let socket = outer.path().join("s.sock");
    let listen = format!("unix:{}", socket.display());
    let flags = ["--limits", limits.to_str().unwrap(), "--grpc-listen", &listen];
    let server = Sluicegate::start_with(folder, &flags).await;
    assert_eq!(server.grpc, listen);
    assert!(socket.exists());
    assert_eq!(server.stop().await.code(), Some(0));
    assert!(!socket.exists());
}

#[tokio::test]
async fn a_stale_unix_socket_is_replaced_and_a_live_one_is_not() {
    let outer = tempfile::tempdir().unwrap();
    let listen = format!("unix:{}", outer.path().join("s.sock").display());
    let mut first = Sluicegate::start(LIMITS, &["--grpc-listen", &listen]).await;
    let (folder, limits) = (first.folder().to_owned(), "limits.yaml");
    let limits = folder.join(limits);
    let flags = ["--limits", limits.to_str().unwrap(), "--grpc-listen", &listen];
    let refused = sluicegate_tests::finish(Sluicegate::command(&flags, &[])).await;
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("another server listens there"), "{refused:?}");
    first.process.signal(Signal::SIGKILL);
    first.process.ended().await;
    let second = Sluicegate::start(LIMITS, &["--grpc-listen", &listen]).await;
    assert_eq!(second.stop().await.code(), Some(0));
}

#[tokio::test]
async fn invalid_bytes_affect_no_other_connection() {
    let server = Sluicegate::start(LIMITS, &[]).await;
    let noise: Vec<u8> =
        (0..100_000_u32).map(|at| at.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
    let hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let cases: [&[u8]; 6] = [
        b"",
        &noise,
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
        &hello[..10],
        &[hello, &noise[..]].concat(),
        // A frame of the maximum size for a stream that does not exist.
        &[hello, &[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 7][..]].concat(),
    ];
    let mut open = Vec::new();
    for bytes in cases {
        let mut socket = TcpStream::connect(&server.grpc).await.unwrap();
        // The server may have closed the connection.
        let _hung_up = socket.write_all(bytes).await;
        open.push(socket);
        server.should_rate_limit(hit("user", "bob")).await.unwrap();
    }
    drop(open);
    server.should_rate_limit(hit("user", "bob")).await.unwrap();
    assert!(!server.process.output().contains("ERROR"), "{}", server.process.output());
    assert!(!server.process.output().contains("panic"), "{}", server.process.output());
    assert_eq!(server.stop().await.code(), Some(0));
}
