//! Attacks with the streams of one or a few HTTP/2 connections.

use std::time::Duration;

use futures::future::join_all;
use nix::sys::signal::Signal;
use prost::Message;
use sluicegate_proto::envoy::service::ratelimit::v3::{
    RateLimitResponse, rate_limit_response::Code,
};
use sluicegate_tests::{
    Attack, Caller, Envoy, Listener, Sluicegate, Upstream, bootstrap, finish, framed, hit,
    http2::{Flood, PREFACE, call_headers, flag, frame, header_frames, kind, settings_frame},
    request, tools, until,
};
use tokio::{process::Command, task::JoinSet, time::sleep};
use tonic::Code as GrpcCode;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

const LIMITS: &str = "
domain: api
descriptors:
  - key: healthy
    rate_limit: {unit: day, requests_per_unit: 1000000}
  - key: user
    rate_limit: {unit: day, requests_per_unit: 1000000}
";

const INITIAL_WINDOW_SIZE: u16 = 4;

/// Maximum growth of memory with one to four connections, as in `docs/security.md`.
const GROWTH_MAX: u64 = 64 << 20;

/// Maximum growth of memory with ten connections.
const GROWTH_OF_TEN_MAX: u64 = 128 << 20;

/// Runs an attack with few connections on a new server.
async fn attack(name: &str, flags: &[&str], attack: impl AsyncFnOnce(&Sluicegate)) {
    attack_within(GROWTH_MAX, name, flags, attack).await;
}

/// Runs an attack on a new server, whose memory must grow by less than `growth_max` bytes.
async fn attack_within(
    growth_max: u64,
    name: &str,
    flags: &[&str],
    attack: impl AsyncFnOnce(&Sluicegate),
) {
    let server = Sluicegate::start(LIMITS, flags).await;
    let beside = Attack::start(name, &server, growth_max).await;
    attack(&server).await;
    beside.end(&server).await;
    assert_eq!(server.stop().await.code(), Some(0));
}

async fn gauge(server: &Sluicegate, name: &str) -> f64 {
    server.metric(&format!("sluicegate_{name}")).await
}

async fn bound_met(server: &Sluicegate, bound: &str) -> f64 {
    gauge(server, &format!("grpc_bounds_met_total{{grpc_bound=\"{bound}\"}}")).await
}

/// The stream identifier of the client's stream number `at`, from 0.
fn stream(at: u32) -> u32 {
    2 * at + 1
}

/// HEADERS frames of this number of calls without a message.
fn headers(calls: u32, list: &[u8]) -> Vec<u8> {
    (0..calls).flat_map(|at| header_frames(stream(at), list)).collect()
}

/// A complete call.
fn call(at: u32, list: &[u8]) -> Vec<u8> {
    let message = framed(&hit("user", "attacker"));
    [header_frames(stream(at), list), frame(kind::DATA, flag::END_STREAM, stream(at), &message)]
        .concat()
}

/// Sends the bytes `times` times, or until the server closes the connection.
async fn flood(flood: &mut Flood, bytes: &[u8], times: usize) {
    for _ in 0..times {
        if !flood.send(bytes).await {
            break;
        }
    }
}

async fn others_are_decided(server: &Sluicegate) {
    let answer = server.should_rate_limit(hit("user", "other")).await.unwrap();
    assert_eq!(answer.overall_code(), Code::Ok);
    let body = r#"{"domain":"api","descriptors":[{"entries":[{"key":"user","value":"other"}]}]}"#;
    assert_eq!(server.json(body).await.0, 200);
}

// === Unfinished calls ===

/// 10,001 calls that wait for their messages: more than may be in flight.
async fn calls_without_messages(timeout: &[(&str, &str)]) {
    let name = format!("HEADERS without a message, {timeout:?}");
    attack_within(GROWTH_OF_TEN_MAX, &name, &[], async |server| {
        let sent = headers(1_001, &call_headers(timeout));
        let floods = join_all((0..10).map(async |_| {
            let mut flood = Flood::connect(&server.grpc, &[]).await;
            assert!(flood.send(&sent).await);
            flood
        }))
        .await;
        until_calls_wait(server, 9_000.0).await;
        others_are_decided(server).await;
        assert_eq!(gauge(server, "requests_shed_total").await, 0.0);
        // The calls end while the attacker stays connected.
        until("the calls to end", async || {
            (gauge(server, "grpc_waiting_calls").await == 0.0).then_some(())
        })
        .await;
        assert!(floods.iter().all(|flood| !flood.is_closed()));
        assert!(bound_met(server, "message_timeout").await >= 9_000.0);
    })
    .await;
}

/// Waits until at least this number of calls wait for their messages.
async fn until_calls_wait(server: &Sluicegate, calls: f64) {
    until("the calls", async || (gauge(server, "grpc_waiting_calls").await >= calls).then_some(()))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_without_messages_are_not_in_flight() {
    calls_without_messages(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_without_messages_end_at_the_message_timeout() {
    calls_without_messages(&[("grpc-timeout", "1H")]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_beyond_the_bound_are_refused() {
    attack("100,000 HEADERS on one connection", &[], async |server| {
        let mut flood = Flood::connect(&server.grpc, &[]).await;
        let sent = headers(100_000, &call_headers(&[]));
        for piece in sent.chunks(1 << 16) {
            if !flood.send(piece).await {
                break;
            }
        }
        // After this number of refused streams the connection is closed.
        flood.closed().await;
        assert_eq!(bound_met(server, "http2").await, 1.0);
        assert!(gauge(server, "grpc_waiting_calls").await <= 1_024.0);
        others_are_decided(server).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_headers_are_not_kept() {
    attack("20,000 streams with 15 kB of headers", &[], async |server| {
        let mut flood = Flood::connect(&server.grpc, &[]).await;
        let value = "x".repeat(15_000);
        let sent = headers(20_000, &call_headers(&[("tracestate", &value)]));
        for piece in sent.chunks(1 << 16) {
            if !flood.send(piece).await {
                break;
            }
        }
        until_calls_wait(server, 1_000.0).await;
        others_are_decided(server).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn header_lists_of_many_small_fields_are_not_kept() {
    attack("1,000 streams with 3,500 fields each, a byte a field", &[], async |server| {
        let mut flood = Flood::connect(&server.grpc, &[]).await;
        // The first call adds a field to the connection's dynamic table, whose index is the first after the static
        // ones.
        let add = [0x40, 1, b'a', 0];
        let mut sent = header_frames(1, &[&call_headers(&[])[..], &add].concat());
        let list = [&call_headers(&[])[..], &[0x80 | 62; 3_500]].concat();
        sent.extend((1..1_000).flat_map(|at| header_frames(stream(at), &list)));
        assert!(flood.send(&sent).await);
        until_calls_wait(server, 1_000.0).await;
        others_are_decided(server).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unfinished_messages_are_bounded() {
    attack("60 messages of 4 MiB without an end", &[], async |server| {
        let caller = Caller::connect(&server.grpc).await;
        let message = framed(&hit("user", &"x".repeat((4 << 20) - 100)));
        let unended = message.slice(..message.len() - 1);
        let statuses = join_all((0..60).map(async |_| {
            let call = caller.begin().await.unwrap();
            let (status, body) = call.send([unended.clone()], false).await.unwrap();
            if status == "0" {
                let answer = RateLimitResponse::decode(&body[5..]).unwrap();
                assert_eq!(answer.overall_code(), Code::OverLimit);
            }
            status
        }))
        .await;
        // Refused because there was no room, or because the end did not arrive.
        assert!(statuses.iter().all(|status| status == "0" || status == "4"), "{statuses:?}");
        let over_bound = "requests_over_bound_total{bound=\"waiting_bytes_per_connection\"}";
        assert!(gauge(server, over_bound).await >= 50.0);
        // Complete messages are decided one after the other.
        let whole = caller.begin().await.unwrap().ask(&hit("user", "other")).await.unwrap();
        assert_eq!(whole.overall_code(), Code::Ok);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streaming_calls_are_bounded() {
    attack("floods of Watch and of reflection", &[], async |server| {
        let mut held = Vec::new();
        let mut refused = 0;
        for _ in 0..4 {
            let client = HealthClient::new(server.channel().await);
            let watches = (0..1_000).map(async |_| {
                let answer = client.clone().watch(HealthCheckRequest::default()).await;
                answer.map(tonic::Response::into_inner)
            });
            for watch in join_all(watches).await {
                match watch {
                    Ok(watch) => held.push(watch),
                    Err(error) => {
                        assert_eq!(error.code(), GrpcCode::ResourceExhausted);
                        refused += 1;
                    }
                }
            }
        }
        assert_eq!((held.len(), refused), (64, 3_936));
        let mut flood = Flood::connect(&server.grpc, &[]).await;
        let path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
        let list = call_headers(&[]);
        let list = replace(&list, RATE_LIMIT, path);
        assert!(flood.send(&headers(1_000, &list)).await);
        until("reflection", async || {
            (gauge(server, "grpc_streaming_calls").await == 80.0).then_some(())
        })
        .await;
        until("all others to be refused", async || {
            let refused = bound_met(server, "streaming_calls_per_connection").await;
            (refused == 3_936.0 + 984.0).then_some(())
        })
        .await;
        others_are_decided(server).await;
    })
    .await;
}

const RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The header list with another path of less than 127 bytes.
fn replace(list: &[u8], old: &str, new: &str) -> Vec<u8> {
    let at = list.windows(old.len()).position(|it| it == old.as_bytes()).unwrap();
    let length = u8::try_from(new.len()).unwrap();
    [&list[..at - 1], &[length], new.as_bytes(), &list[at + old.len()..]].concat()
}

// === Frames without calls ===

/// Begins calls whose responses exceed the connection's window, and opens and closes the windows of the streams until
/// the server closes the connection. `flips` changes are sent together, with a pause in between.
async fn flip_windows(address: &str, flips: usize, pause: Duration) {
    let entries: [&[(&str, &str)]; 50] = [&[("user", "attacker")]; 50];
    let message = framed(&request(&entries));
    let one = |at| {
        let list = header_frames(stream(at), &call_headers(&[]));
        [list, frame(kind::DATA, flag::END_STREAM, stream(at), &message)].concat()
    };
    let calls: Vec<u8> = (0..1_000).flat_map(one).collect();
    let flip = [0, 65_535].map(|size| settings_frame(&[(INITIAL_WINDOW_SIZE, size)])).concat();
    let flips = flip.repeat(flips);
    let mut attacker = Flood::connect(address, &[(INITIAL_WINDOW_SIZE, 0)]).await;
    // Not more calls than allowed, so that the connection is not closed for that reason.
    assert!(attacker.send(&calls).await);
    while attacker.send(&flips).await {
        sleep(pause).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn flow_control_floods_delay_neither_calls_nor_the_drain() {
    // Only the end of the drain may close the attackers' connections while the test waits.
    let flags = ["--drain-timeout", "1h", "--grpc-message-timeout", "1h"];
    let flags = [&flags[..], &["--grpc-keepalive-interval", "0s"]].concat();
    let mut server = Sluicegate::start(LIMITS, &flags).await;
    let name = "3 connections × 20,000 streams, windows of 0 and 65,535";
    let attack = Attack::start(name, &server, GROWTH_MAX).await;
    let calls: Vec<u8> = (0..20_000).flat_map(|at| call(at, &call_headers(&[]))).collect();
    join_all((0..3).map(async |_| {
        flip_windows(&server.grpc, 1_000, Duration::ZERO).await;
        let mut attacker = Flood::connect(&server.grpc, &[(INITIAL_WINDOW_SIZE, 0)]).await;
        attacker.send(&calls).await;
    }))
    .await;
    assert!(bound_met(&server, "control_frames").await >= 3.0);
    others_are_decided(&server).await;
    attack.end(&server).await;

    // As many changes as are allowed, also during the drain.
    let name = "windows of 0 and 65,535 at the end";
    let attack = Attack::start(name, &server, GROWTH_MAX).await;
    let met = bound_met(&server, "control_frames").await;
    let mut attackers = JoinSet::new();
    for _ in 0..3 {
        let address = server.grpc.clone();
        attackers.spawn(async move {
            flip_windows(&address, 1, Duration::from_millis(250)).await;
        });
    }
    sleep(Duration::from_secs(3)).await;
    others_are_decided(&server).await;
    assert_eq!(bound_met(&server, "control_frames").await, met);
    assert!(attackers.try_join_next().is_none());
    attack.end_beside_attackers(&server).await;
    server.process.signal(Signal::SIGTERM);
    assert_eq!(server.process.ended().await.code(), Some(0));
    attackers.join_all().await;
    let log = server.process.output();
    assert!(!log.contains("calls in progress were aborted"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn floods_of_frames_without_calls_close_their_connection() {
    let list = call_headers(&[]);
    let open = header_frames(1, &list);
    let continuation = frame(kind::CONTINUATION, 0, 1, &list);
    let window = frame(kind::WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes());
    let floods: [(&str, Vec<u8>, Vec<u8>); 9] = [
        ("CONTINUATION", frame(kind::HEADERS, 0, 1, &list), continuation),
        (
            "empty CONTINUATION",
            frame(kind::HEADERS, 0, 1, &list),
            frame(kind::CONTINUATION, 0, 1, &[]),
        ),
        ("SETTINGS", vec![], settings_frame(&[(INITIAL_WINDOW_SIZE, 65_535)])),
        ("PING", vec![], frame(kind::PING, 0, 0, &[7; 8])),
        ("answers to no PING", vec![], frame(kind::PING, 1, 0, &[7; 8])),
        ("empty DATA", open.clone(), frame(kind::DATA, 0, 1, &[])),
        ("DATA of a byte", open, frame(kind::DATA, 0, 1, &[0])),
        ("WINDOW_UPDATE", vec![], window),
        ("PRIORITY", vec![], frame(kind::PRIORITY, 0, 1, &[0, 0, 0, 3, 1])),
    ];
    attack("floods of frames", &[], async |server| {
        for (name, first, again) in floods {
            let mut attacker = Flood::connect(&server.grpc, &[]).await;
            assert!(attacker.send(&first).await, "{name}");
            let again = again.repeat(1_000);
            flood(&mut attacker, &again, 1_000).await;
            attacker.closed().await;
            others_are_decided(server).await;
        }
        let (own, http2) =
            (bound_met(server, "control_frames").await, bound_met(server, "http2").await);
        println!("{own} ended for control frames, {http2} by HTTP/2");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reset_calls_do_not_delay_others() {
    attack("100,000 calls reset at once", &[], async |server| {
        let list = call_headers(&[]);
        let cancel = 8_u32.to_be_bytes();
        for whole in [false, true] {
            let mut attacker = Flood::connect(&server.grpc, &[]).await;
            for from in (0..100_000).step_by(1_000) {
                let calls = (from..from + 1_000).flat_map(|at| {
                    let begun =
                        if whole { call(at, &list) } else { header_frames(stream(at), &list) };
                    [begun, frame(kind::RST_STREAM, 0, stream(at), &cancel)].concat()
                });
                if !attacker.send(&calls.collect::<Vec<_>>()).await {
                    break;
                }
            }
            others_are_decided(server).await;
        }
    })
    .await;
}

// === Shutdown ===

#[tokio::test(flavor = "multi_thread")]
async fn half_sent_and_silent_connections_do_not_delay_the_drain() {
    let mut server = Sluicegate::start(LIMITS, &["--drain-timeout", "1h"]).await;
    let name = "half-sent and silent connections at the end";
    let attack = Attack::start(name, &server, GROWTH_MAX).await;
    let list = call_headers(&[]);
    let hello = [PREFACE, &settings_frame(&[])].concat();
    let small_windows = [PREFACE, &settings_frame(&[(INITIAL_WINDOW_SIZE, 0)])].concat();
    let unended = frame(kind::DATA, 0, 1, &framed(&hit("user", "bob"))[..10]);
    let sent: [Vec<u8>; 8] = [
        vec![],
        PREFACE[..10].to_vec(),
        PREFACE.to_vec(),
        hello.clone(),
        [&hello[..], &[0, 0, 8, kind::PING]].concat(),
        [&hello[..], &frame(kind::HEADERS, 0, 1, &list)].concat(),
        [&hello[..], &header_frames(1, &list), &unended].concat(),
        // Responses that are not read.
        [small_windows, (0..1_000).flat_map(|at| call(at, &list)).collect()].concat(),
    ];
    let mut held = Vec::new();
    for bytes in sent {
        let mut flood = Flood::silent(&server.grpc).await;
        assert!(flood.send(&bytes).await);
        held.push(flood);
    }
    others_are_decided(&server).await;
    until("the unended call", async || {
        (gauge(&server, "grpc_waiting_calls").await == 1.0).then_some(())
    })
    .await;
    attack.end_beside_attackers(&server).await;
    // A caller that continues to send calls does not delay the drain either.
    let mut busy = Flood::connect(&server.grpc, &[]).await;
    server.process.signal(Signal::SIGTERM);
    let mut at = 0;
    while busy.send(&call(at, &list)).await {
        at += 1;
        sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(server.process.ended().await.code(), Some(0));
    let log = server.process.output();
    assert!(!log.contains("calls in progress were aborted"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn half_sent_connections_are_closed() {
    attack("half-sent connections", &["--grpc-message-timeout", "1s"], async |server| {
        let list = call_headers(&[]);
        let hello = [PREFACE, &settings_frame(&[])].concat();
        let files = server.process.open_files();
        let sent: [Vec<u8>; 4] = [
            PREFACE[..10].to_vec(),
            [&hello[..], &[0, 0, 8, kind::PING]].concat(),
            [&hello[..], &frame(kind::HEADERS, 0, 1, &list)].concat(),
            [&hello[..], &header_frames(1, &list), &[0, 0, 8, kind::DATA, 0, 0, 0, 0, 1, 0]]
                .concat(),
        ];
        let floods = join_all((0..100).map(async |at: usize| {
            let mut flood = Flood::silent(&server.grpc).await;
            assert!(flood.send(&sent[at % sent.len()]).await);
            flood
        }));
        for mut flood in floods.await {
            flood.closed().await;
        }
        until("descriptors to be closed", async || {
            (server.process.open_files() <= files + 2).then_some(())
        })
        .await;
    })
    .await;
}

// === Callers within the bounds ===

#[tokio::test]
async fn the_maximum_of_streams_is_answered() {
    let server = Sluicegate::start(LIMITS, &[]).await;
    let folder = tempfile::tempdir().unwrap();
    let body = folder.path().join("body");
    std::fs::write(&body, framed(&hit("user", "bob"))).unwrap();
    for streams in ["1", "100", "1024"] {
        let mut command = Command::new("h2load");
        command.args(["--threads=1", "-n", "20480", "-c", "2", "-m", streams]);
        command.args(["-H", "content-type: application/grpc", "-H", "te: trailers", "-d"]);
        command.arg(&body).arg(format!("http://{}{RATE_LIMIT}", server.grpc));
        let finished = finish(command).await;
        assert!(finished.stdout.contains(" 20480 succeeded"), "{streams}: {finished:?}");
    }
    let answered = server.sum("sluicegate_requests_total", &[("code", "ok")]).await;
    assert_eq!(answered, 3.0 * 20_480.0);
    assert_eq!(server.sum("sluicegate_grpc_bounds_met_total", &[]).await, 0.0);
    assert_eq!(gauge(&server, "requests_shed_total").await, 0.0);
}

#[tokio::test]
async fn large_headers_of_callers_cause_no_error() {
    let server = Sluicegate::start(LIMITS, &[]).await;
    let mut client = server.connect().await;
    for name in ["tracestate", "baggage"] {
        let mut request = tonic::Request::new(hit("user", "bob"));
        request.metadata_mut().insert(name, "x".repeat(100_000).parse().unwrap());
        let answer = client.should_rate_limit(request).await.unwrap();
        assert_eq!(answer.get_ref().overall_code(), Code::Ok);
    }
}

#[tokio::test]
async fn requests_over_a_bound_are_refused_without_an_error() {
    let bounds = [
        ["--grpc-max-message-bytes", "100000"],
        ["--grpc-max-waiting-bytes-per-connection", "100000"],
    ];
    for flags in bounds {
        let server = Sluicegate::start(LIMITS, &flags).await;
        let upstream = Upstream::start().await;
        let header = serde_json::json!({"request_headers": {"header_name": "x-user", "descriptor_key": "user"}});
        let rate_limits = vec![serde_json::json!({"actions": [header]}); 40];
        let listener = Listener::new("main", "api").route("/", &serde_json::json!(rate_limits));
        let config = bootstrap(upstream.address, &server.grpc, &[listener]);
        let envoy = Envoy::start(&tools::envoy(), &config).await;
        let large = vec![b'x'; 59_000];
        // Repeatedly, because refused messages must not add up to a connection error.
        for _ in 0..100 {
            assert_eq!(envoy.get("/", &[("x-user", &large)]).await.status, 429, "{flags:?}");
            assert_eq!(envoy.get("/", &[("x-user", b"bob")]).await.status, 200, "{flags:?}");
        }
        assert_eq!(envoy.stat("cluster.upstream.ratelimit.error").await, 0, "{flags:?}");
        assert_eq!(envoy.stat("cluster.sluicegate.upstream_rq_rx_reset").await, 0, "{flags:?}");
    }
}
