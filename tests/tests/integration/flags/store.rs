//! Flags of the store, of Redis, and of failures of the store.

use std::time::{Duration, Instant};

use sluicegate_proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use sluicegate_tests::{Authority, Redis, Setup, Sluicegate, finish, free_port, until};
use tonic_health::pb::health_check_response::ServingStatus;

use super::{
    Row,
    given::{Given, code, health, one_line},
    row,
};

pub(super) fn rows() -> Vec<Row> {
    vec![
        row("serve --store", "elsewhere", store),
        row("serve --key-prefix", "shop:", key_prefix),
        row("serve --deny-cache-entries", "0", deny_cache_entries),
        row("serve --memory-max-counters", "1", memory_max_counters),
        row("serve --redis-username", "limits", redis_username),
        row("serve --redis-password", "secret", redis_password),
        row("serve --redis-password-file", "{folder}/password", redis_password_file),
        row("serve --redis-tls-ca", "{folder}/ca.pem", redis_tls),
        row("serve --redis-tls-cert", "{folder}/caller.pem", redis_tls),
        row("serve --redis-tls-key", "{folder}/caller.key", redis_tls),
        row("serve --redis-connections", "3", redis_connections),
        row("serve --redis-connect-timeout", "100ms", redis_connect_timeout),
        row("serve --decision-timeout", "1500ms", decision_timeout),
        row("serve --replicas", "4", replicas),
        row("serve --fallback-counters", "0", fallback_counters),
        row("serve --health-requires-store", "true", health_requires_store),
    ]
}

pub(super) async fn store(given: Given) {
    let refused = finish(given.serve_command(&[])).await;
    assert_eq!(refused.code, 2);
    let first = refused.stderr.lines().next().unwrap();
    assert!(first.contains("--store"), "{first}");
    for wrong in
        ["redis://a,b", "redis://h/x", "redis-cluster://h/1", "redis-sentinel://h", "http://h"]
    {
        let refused = finish(given.with(wrong).serve_command(&[])).await;
        assert!(refused.code == 2 && refused.stderr.contains("--store"), "{refused:?}");
    }
    let server = given.with("memory").serve(&[]).await;
    code(&server, "bob", 1).await;
    assert_eq!(server.metric("sluicegate_memory_counters").await, 1.0);
}

/// An address at which no server answers.
pub(super) fn nowhere() -> String {
    format!("redis://127.0.0.1:{}", free_port())
}

pub(super) async fn until_connected(server: &Sluicegate) {
    until("the store to be there", || async {
        (server.metric("sluicegate_store_degraded").await == 0.0).then_some(())
    })
    .await;
}

pub(super) async fn serve_on(given: &Given, url: &str, flags: &[(&str, &str)]) -> Sluicegate {
    let store = [("--store", url), ("--decision-timeout", "30s")];
    let server = given.serve(&[&store, flags].concat()).await;
    until_connected(&server).await;
    server
}

pub(super) async fn key_prefix(given: Given) {
    let redis = Redis::start().await;
    let server = serve_on(&given, &redis.url(), &[]).await;
    code(&server, "bob", 1).await;
    let expected = ["shop:s1:fw:86400:{api:user=bob}", "shop:s1:replicas"];
    until("the counter and the heartbeat", || async {
        let keys = redis.keys("*").await;
        keys.iter().map(String::as_str).eq(expected).then_some(())
    })
    .await;
    for wrong in ["{a}", "a b", "é", &"x".repeat(65)] {
        let refused = finish(given.with(wrong).serve_command(&[])).await;
        assert!(refused.code == 2 && refused.stderr.contains("--key-prefix"), "{refused:?}");
    }
}

pub(super) async fn deny_cache_entries(given: Given) {
    let redis = Redis::start().await;
    for (given, cached) in [(given.clone(), false), (given.with("10"), true)] {
        let server = serve_on(&given, &redis.url(), &[]).await;
        for _ in 0..5 {
            assert_eq!(code(&server, "bob", 11).await, Code::OverLimit);
        }
        code(&server, "eve", 1).await;
        let calls = server.metric("sluicegate_redis_calls_total").await;
        // A refusal is cached for a second, and a busy machine may need longer for five requests.
        assert!(if cached { calls < 6.0 } else { calls == 6.0 }, "{calls}");
    }
}

/// Asserts that counters are in a Redis that accepts only this user.
pub(super) async fn assert_authenticates(given: &Given, user: &str, flags: &[(&str, &str)]) {
    let redis = Setup::new().user(user, "secret").start().await;
    let server = serve_on(given, &redis.url(), flags).await;
    code(&server, "bob", 1).await;
    assert_eq!(redis.keys("s1:fw*").await.len(), 1);
}

pub(super) async fn redis_username(given: Given) {
    assert_authenticates(&given, "limits", &[("--redis-password", "secret")]).await;
}

pub(super) async fn redis_password(given: Given) {
    assert_authenticates(&given, "default", &[]).await;
}

pub(super) async fn redis_password_file(given: Given) {
    given.write("password", "secret\nand a remark\n");
    assert_authenticates(&given, "default", &[]).await;
    let missing = finish(given.with("/missing").serve_command(&[("--store", &nowhere())])).await;
    one_line(&missing, 1, &["/missing"]);
}

pub(super) async fn redis_tls(given: Given) {
    let authority = Authority::new("all");
    given.write("ca.pem", &authority.pem());
    authority.issue("caller").write(given.folder.path(), "caller");
    let redis = Setup::new().tls(&authority).start().await;
    let [ca, cert, key] = ["ca.pem", "caller.pem", "caller.key"].map(|name| given.path(name));
    let tls = [("--redis-tls-ca", &*ca), ("--redis-tls-cert", &*cert), ("--redis-tls-key", &*key)];
    let server = serve_on(&given, &redis.url(), &tls).await;
    code(&server, "bob", 1).await;
    assert_eq!(redis.keys("s1:fw*").await.len(), 1);
    let missing = [&[("--store", "rediss://127.0.0.1")], &tls[..]].concat();
    let missing = finish(given.with("/missing").serve_command(&missing)).await;
    one_line(&missing, 1, &["/missing"]);
}

pub(super) async fn redis_connections(given: Given) {
    let redis = Redis::start().await;
    let _server = serve_on(&given, &redis.url(), &[]).await;
    until("as many connections", || async {
        // One of the connections is the test's.
        (redis.query(&["CLIENT", "LIST"]).await.lines().count() == 3 + 1).then_some(())
    })
    .await;
}

pub(super) async fn redis_connect_timeout(given: Given) {
    let mut redis = Redis::start().await;
    redis.pause();
    let url = redis.url();
    let server = given.serve(&[("--store", &url)]).await;
    until("the connection to be given up", || async {
        let (_, health) = server.get("/healthcheck?verbose").await;
        (!health.contains("not connected yet")).then_some(())
    })
    .await;
}

pub(super) async fn decision_timeout(given: Given) {
    let mut redis = Redis::start().await;
    let server = serve_on(&given, &redis.url(), &[]).await;
    redis.pause();
    let started = Instant::now();
    assert_eq!(code(&server, "bob", 1).await, Code::Ok);
    assert!(started.elapsed() >= Duration::from_millis(1500), "the default is 10ms");
    let refused = finish(given.with("0s").serve_command(&[])).await;
    assert!(refused.code == 2 && refused.stderr.contains("--decision-timeout"), "{refused:?}");
}

pub(super) async fn replicas(given: Given) {
    let server = given.serve(&[("--store", &nowhere())]).await;
    for allowed in [Code::Ok, Code::Ok, Code::OverLimit] {
        assert_eq!(code(&server, "bob", 1).await, allowed, "a quarter of 10");
    }
}

pub(super) async fn fallback_counters(given: Given) {
    for (given, admitted) in [(given.clone(), Code::Ok), (given.with("1"), Code::OverLimit)] {
        let mut redis = Redis::start().await;
        let server = serve_on(&given, &redis.url(), &[("--replicas", "1")]).await;
        assert_eq!(code(&server, "bob", 10).await, Code::Ok);
        redis.kill().await;
        assert_eq!(code(&server, "bob", 1).await, admitted);
    }
}

pub(super) async fn health_requires_store(given: Given) {
    let server = given.serve(&[("--store", &nowhere())]).await;
    until("health to follow", || async {
        (health(&server).await == ServingStatus::NotServing).then_some(())
    })
    .await;
    assert_eq!(server.get("/healthcheck").await.0, 500);
    let redis = Redis::start().await;
    let server = given.serve(&[("--store", &redis.url())]).await;
    until("health to follow", || async {
        (health(&server).await == ServingStatus::Serving).then_some(())
    })
    .await;
}

pub(super) async fn memory_max_counters(given: Given) {
    let server = given.serve(&[]).await;
    assert_eq!(code(&server, "bob", 1).await, Code::Ok);
    assert_eq!(code(&server, "eve", 1).await, Code::OverLimit);
    assert_eq!(code(&server, "bob", 1).await, Code::Ok);
    assert_eq!(server.metric("sluicegate_checks_unanswered_total").await, 1.0);
    assert_eq!(server.metric("sluicegate_memory_counters_max").await, 1.0);
}
