//! Attacks with unusual calls, and with responses that are not read.

use bytes::Bytes;
use futures::future::join_all;
use sluicegate_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use sluicegate_tests::{
    Attack, Caller, Sluicegate, framed, hit,
    http2::{Flood, call_headers, call_headers_to, flag, frame, header_frames, kind},
    until,
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

const LIMITS: &str = "
domain: api
descriptors:
  - key: healthy
    rate_limit: {unit: day, requests_per_unit: 1000000}
";

/// Maximum growth of memory during an attack.
const GROWTH_MAX: u64 = 192 << 20;

/// Runs an attack on a new server.
async fn attack(name: &str, flags: &[&str], attack: impl AsyncFnOnce(&Sluicegate)) {
    let server = Sluicegate::start(LIMITS, flags).await;
    let beside = Attack::start(name, &server, GROWTH_MAX).await;
    attack(&server).await;
    beside.end(&server).await;
}

/// A small message, and in the same call one of 2 million empty descriptors.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_message_is_not_decoded() {
    attack("a second message of 4 MiB", &[], async |server| {
        let mut many = hit("healthy", "attacker");
        many.descriptors = vec![RateLimitDescriptor::default(); 2_000_000];
        let body = [framed(&hit("healthy", "attacker")), framed(&many)].concat();
        let body = Bytes::from(body);
        let unimplemented = "12";
        for _ in 0..10 {
            let asked = join_all((0..4).map(async |_| {
                let caller = Caller::connect(&server.grpc).await;
                caller.begin().await.unwrap().send([body.clone()], true).await.unwrap().0
            }));
            assert!(asked.await.iter().all(|status| status == unimplemented));
        }
    })
    .await;
}

/// 10,000 calls to health with 110 kB of headers each, and without a message.
#[tokio::test(flavor = "multi_thread")]
async fn headers_of_calls_to_other_services_are_not_kept() {
    attack("headers of health checks without a message", &[], async |server| {
        let long = "x".repeat(110_000);
        let headers = call_headers_to("/grpc.health.v1.Health/Check", &[("x", &long)]);
        let sent: Vec<u8> = (0..1_000).flat_map(|at| header_frames(2 * at + 1, &headers)).collect();
        let _floods = join_all((0..10).map(async |_| {
            let mut flood = Flood::connect(&server.grpc, &[]).await;
            assert!(flood.send(&sent).await);
            flood
        }))
        .await;
        let mut health = HealthClient::new(server.channel().await);
        health.check(HealthCheckRequest::default()).await.unwrap();
    })
    .await;
}

/// Calls of Watch and reflection on 64 connections, without a message: as many as may be in progress.
#[tokio::test(flavor = "multi_thread")]
async fn streaming_calls_without_a_message_end_in_time() {
    let name = "streaming calls without a message";
    attack(name, &["--grpc-message-timeout", "500ms"], async |server| {
        let paths = [
            "/grpc.health.v1.Health/Watch",
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        ];
        let calls = |at: u32| call_headers_to(paths[usize::from(at.is_multiple_of(2))], &[]);
        let sent: Vec<u8> = (0..16).flat_map(|at| header_frames(2 * at + 1, &calls(at))).collect();
        let streaming = async || server.metric("sluicegate_grpc_streaming_calls").await;
        let floods = join_all((0..64).map(async |_| {
            let mut flood = Flood::connect(&server.grpc, &[]).await;
            assert!(flood.send(&sent).await);
            flood
        }))
        .await;
        // The calls end while the attackers stay connected.
        until("places to be given back", async || (streaming().await == 0.0).then_some(())).await;
        drop(floods);
    })
    .await;
}

/// Calls of 32 descriptors whose responses cannot be sent, because the caller opens no flow-control window.
#[tokio::test(flavor = "multi_thread")]
async fn unread_responses_are_bounded() {
    let name = "answers that are not taken";
    let flags = ["--grpc-max-waiting-bytes", "33554432"];
    attack(name, &flags, async |server| {
        let mut many = hit("healthy", "attacker");
        // As many calls as fit into the connection's window.
        many.descriptors = vec![many.descriptors[0].clone(); 32];
        let message = framed(&many);
        let settings = [(4, 0)];
        let headers = call_headers(&[]);
        let calls = |stream| {
            let data = frame(kind::DATA, flag::END_STREAM, stream, &message);
            [header_frames(stream, &headers), data].concat()
        };
        let sent: Vec<u8> = (0..1_000).flat_map(|at| calls(2 * at + 1)).collect();
        let floods = join_all((0..20).map(async |_| {
            let mut flood = Flood::connect(&server.grpc, &settings).await;
            assert!(flood.send(&sent).await);
            flood
        }))
        .await;
        let met = "sluicegate_grpc_bounds_met_total{grpc_bound=\"waiting_bytes\"}";
        until("the bound to be met", async || (server.metric(met).await > 0.0).then_some(())).await;
        assert!(server.metric("sluicegate_grpc_waiting_bytes").await <= 33_554_432.0);
        drop(floods);
        let bytes = async || server.metric("sluicegate_grpc_waiting_bytes").await;
        until("bytes to be given back", async || (bytes().await == 0.0).then_some(())).await;
    })
    .await;
}
