//! Health checks for orchestrators, and `sluicectl health`.

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use sluicegate_tests::{Finished, Redis, Sluicegate, binary, finish, free_port, until};
use tokio::process::Command;

const LIMITS: &str = "domain: api";

/// Exit code and output of `sluicectl health`.
async fn health(server: &Sluicegate, flags: &[&str]) -> (i32, String) {
    let mut command = Command::new(binary("sluicectl"));
    command.env_clear().args(["health", "--server", &format!("http://{}", server.grpc)]);
    command.args(flags);
    let Finished { code, stdout, stderr } = finish(command).await;
    (code, stdout + &stderr)
}

fn outcome(code: i32, text: &str) -> (i32, String) {
    (code, format!("{text}\n"))
}

/// Asserts that the server is live over gRPC and HTTP.
async fn assert_live(server: &Sluicegate) {
    assert_eq!(health(server, &["--service", "liveness"]).await, outcome(0, "serving"));
    assert_eq!(server.get("/livez").await, (200, "OK".to_owned()));
}

#[tokio::test]
async fn a_draining_server_is_live() {
    let mut server = Sluicegate::start(LIMITS, &["--drain-delay", "1h"]).await;
    for service in ["", "ratelimit", "envoy.service.ratelimit.v3.RateLimitService"] {
        assert_eq!(health(&server, &["--service", service]).await, outcome(0, "serving"));
    }
    assert_live(&server).await;
    server.process.signal(Signal::SIGTERM);
    until("the drain", || async { (server.get("/healthcheck").await.0 == 500).then_some(()) })
        .await;
    assert_eq!(health(&server, &[]).await, outcome(1, "not serving"));
    assert_live(&server).await;
    server.process.assert_running();
}

#[tokio::test]
async fn a_server_without_its_required_redis_is_live() {
    let store = format!("redis://127.0.0.1:{}", free_port());
    let flags = ["--store", &store, "--health-requires-store"];
    let server = Sluicegate::start(LIMITS, &flags).await;
    until("the store's health", || async {
        (health(&server, &[]).await == outcome(1, "not serving")).then_some(())
    })
    .await;
    assert_live(&server).await;
}

#[tokio::test]
async fn health_of_the_store_follows_redis() {
    let mut redis = Redis::start().await;
    let store = format!("redis://{}", redis.address());
    let server = Sluicegate::start(LIMITS, &["--store", &store]).await;
    let becomes = async |expected: (i32, String)| {
        until("the store's health", || async {
            (health(&server, &["--service", "store"]).await == expected).then_some(())
        })
        .await;
        // The health of the server for load balancers does not change.
        assert_eq!(health(&server, &[]).await, outcome(0, "serving"));
    };
    becomes(outcome(0, "serving")).await;
    redis.kill().await;
    becomes(outcome(1, "not serving")).await;
    redis.restart().await;
    becomes(outcome(0, "serving")).await;
    let server = Sluicegate::start(LIMITS, &[]).await;
    assert_eq!(health(&server, &["--service", "store"]).await, outcome(0, "serving"));
}

#[tokio::test]
async fn an_open_watch_of_liveness_ends_with_the_server() {
    use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
    let mut server = Sluicegate::start(LIMITS, &["--drain-timeout", "1h"]).await;
    let mut client = HealthClient::new(server.channel().await);
    let watch = client.watch(HealthCheckRequest { service: "liveness".to_owned() }).await;
    let mut watch = watch.unwrap().into_inner();
    assert!(watch.message().await.unwrap().is_some());
    server.process.signal(Signal::SIGTERM);
    assert_eq!(watch.message().await.unwrap(), None);
    assert_eq!(server.process.ended().await.code(), Some(0));
}

#[tokio::test]
async fn health_command_prints_json_and_errors() {
    let server = Sluicegate::start(LIMITS, &[]).await;
    let (code, text) = health(&server, &["--output", "json"]).await;
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, answer), (0, json!({"status": "SERVING"})));
    let (code, text) = health(&server, &["--service", "unknown"]).await;
    assert_eq!((code, text.lines().count()), (3, 1));
    assert!(text.contains("NotFound"), "{text}");
    let grpc = server.grpc.clone();
    assert!(server.stop().await.success());
    let mut command = Command::new(binary("sluicectl"));
    command.env_clear().args(["health", "--server", &format!("http://{grpc}")]);
    let gone = finish(command).await;
    assert_eq!((gone.code, gone.stdout.as_str()), (3, ""));
    assert!(gone.stderr.contains("refused"), "{}", gone.stderr);
}
