//! Counters in Redis: calls, keys, and Redis that starts late, fails or is full.

use std::{collections::BTreeSet, time::Duration};

use sluicegate_proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use sluicegate_tests::{
    Cluster, Fleet, Mode, Proxy, Redis, Sentinels, Setup, Sluicegate, chain, free_port, hit,
    long_windows, request, until,
};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

/// Every answer must be the store's.
const PATIENT: [&str; 2] = ["--decision-timeout", "5s"];

const HEARTBEATS: &str = "s1:replicas";

const CHAIN: &str = "
domain: api
tenant: tenant
descriptors:
  - key: tenant
    rate_limit: {unit: minute, requests_per_unit: 1000}
    descriptors:
      - key: user
        rate_limit: {unit: minute, requests_per_unit: 1000, algorithm: gcra}
        descriptors:
          - key: route
            rate_limit: {unit: minute, requests_per_unit: 1000, algorithm: sliding_window_counter}
";

async fn fleet(count: usize, limits: &str, store: &str, flags: &[&str]) -> Fleet {
    Fleet::start(count, limits, &[&PATIENT, &["--store", store], flags].concat()).await
}

async fn code(server: &Sluicegate, key: &str, value: &str) -> Code {
    server.should_rate_limit(hit(key, value)).await.unwrap().overall_code()
}

// === Calls ===

/// Sends requests with chains one after the other, and asserts that Redis has run one script for each.
async fn a_chain_is_one_call(store: &str, calls: impl AsyncFn() -> u64) {
    let fleet = fleet(1, CHAIN, store, &[]).await;
    let ask = async |tenant: usize| {
        let entries =
            [("tenant", format!("tenant{tenant}")), ("user", "bob".into()), ("route", "a".into())];
        let answer = fleet.servers[0].should_rate_limit(chain(&entries)).await.unwrap();
        assert_eq!((answer.overall_code(), answer.statuses.len()), (Code::Ok, 3));
        assert!(answer.statuses.iter().all(|status| status.current_limit.is_some()));
    };
    // Every node gets the script with its first call.
    for tenant in 0..30 {
        ask(tenant).await;
    }
    let before = calls().await;
    for tenant in 0..30 {
        ask(tenant).await;
    }
    assert_eq!(calls().await - before, 30);
}

#[tokio::test]
async fn a_chain_is_one_call_to_one_redis() {
    let redis = Redis::start().await;
    a_chain_is_one_call(&redis.url(), async || redis.calls("evalsha").await).await;
}

#[tokio::test]
async fn a_chain_is_one_call_to_a_cluster() {
    let cluster = Cluster::start().await;
    a_chain_is_one_call(&cluster.url(), async || cluster.calls("evalsha").await).await;
}

// === Keys ===

#[tokio::test]
async fn keys_are_as_documented_and_expire() {
    let redis = Redis::start().await;
    let limits = "
domain: public_api
tenant: tenant
descriptors:
  - key: tenant
    rate_limit: {unit: minute, requests_per_unit: 100}
    descriptors:
      - key: user
        limits:
          - {unit: minute, requests_per_unit: 100}
          - {unit: hour, requests_per_unit: 100, algorithm: sliding_window_log}
          - {unit: hour, requests_per_unit: 100, algorithm: sliding_window_counter}
          - {unit: hour, requests_per_unit: 100, algorithm: token_bucket}
          - {unit: hour, requests_per_unit: 100, algorithm: gcra}
  - key: ip
    rate_limit: {unit: day, requests_per_unit: 100}
";
    let fleet = fleet(2, limits, &redis.url(), &["--key-prefix", "blue:"]).await;
    let chain = chain(&[("tenant", "acme"), ("user", "bob")]);
    for mut request in [chain, request(&[&[("ip", "10.1.2.3")]])] {
        request.domain = "public_api".to_owned();
        for server in &fleet.servers {
            server.should_rate_limit(request.clone()).await.unwrap();
        }
    }
    until("both servers to say that they live", || async {
        (redis.query(&["ZCARD", "blue:s1:replicas"]).await == "2").then_some(())
    })
    .await;
    let keys = redis.keys("*").await;
    let of_bob = "{acme}:public_api:tenant:user=bob";
    let documented = [
        "s1:fw:60:{acme}:public_api:tenant".to_owned(),
        format!("s1:fw:60:{of_bob}"),
        format!("s1:sl:3600:{of_bob}"),
        format!("s1:sc:3600:{of_bob}"),
        format!("s1:tb:3600:{of_bob}"),
        format!("s1:gc:3600:{of_bob}"),
        long_windows("s1:fw:86400:{public_api:ip=10.1.2.3}"),
        HEARTBEATS.to_owned(),
    ];
    let documented: BTreeSet<_> = documented.iter().map(|key| format!("blue:{key}")).collect();
    assert_eq!(keys, documented);
    for key in keys {
        let seconds: i64 = redis.query(&["TTL", &key]).await.parse().unwrap();
        let window = key.split(':').nth(3).and_then(|window| window.parse().ok()).unwrap_or(60);
        assert!((0..=2 * window).contains(&seconds), "{key}: {seconds}");
    }
}

#[tokio::test]
async fn nothing_is_left_behind() {
    let cluster = Cluster::start().await;
    let limits = CHAIN.replace("unit: minute", "unit: second");
    let fleet = fleet(2, &limits, &cluster.url(), &[]).await;
    for user in 0..200 {
        let user = format!("user{user}");
        let request = chain(&[("tenant", "acme"), ("user", &user), ("route", "a")]);
        fleet.servers[user.len() % 2].should_rate_limit(request).await.unwrap();
    }
    assert!(!cluster.keys("*{acme}*").await.is_empty());
    let left = async |what, left: BTreeSet<String>| {
        until(what, || async { (cluster.keys("*").await == left).then_some(()) }).await;
    };
    left("counters to expire", [HEARTBEATS.to_owned()].into()).await;
    for server in fleet.servers {
        server.stop().await;
    }
    left("heartbeats to expire", BTreeSet::new()).await;
}

#[tokio::test]
async fn installations_with_different_prefixes_share_no_counters() {
    let redis = Redis::start().await;
    let limits = "
domain: api
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 1}
";
    let blue = fleet(1, limits, &redis.url(), &["--key-prefix", "blue:"]).await;
    let green = fleet(1, limits, &redis.url(), &["--key-prefix", "green:"]).await;
    for fleet in [&blue, &green] {
        assert_eq!(code(&fleet.servers[0], "user", "bob").await, Code::Ok);
        assert_eq!(code(&fleet.servers[0], "user", "bob").await, Code::OverLimit);
        assert_eq!(fleet.servers[0].metric("sluicegate_live_replicas").await, 1.0);
    }
}

#[tokio::test]
async fn the_database_of_the_address_is_used() {
    let redis = Redis::start().await;
    let fleet = fleet(1, CHAIN, &format!("{}/3", redis.url()), &[]).await;
    code(&fleet.servers[0], "tenant", "acme").await;
    assert_eq!(redis.keys("*").await, BTreeSet::new());
    until("the counter and the heartbeat", || async {
        redis.query(&["INFO", "keyspace"]).await.contains("db3:keys=2").then_some(())
    })
    .await;
}

#[tokio::test]
async fn refused_multi_slot_request_is_not_charged_after_cancel() {
    let limits = "
domain: api
descriptors:
  - {key: shared, rate_limit: {unit: day, requests_per_unit: 100}}
  - {key: own, rate_limit: {unit: day, requests_per_unit: 1}}
";
    let cluster = Cluster::start().await;
    let fleet = fleet(1, limits, &cluster.url(), &["--deny-cache-entries", "0"]).await;
    let server = &fleet.servers[0];
    let both = || request(&[&[("shared", "x")], &[("own", "x")]]);
    let spent = server.should_rate_limit(both()).await.unwrap();
    assert_eq!(spent.overall_code(), Code::Ok);
    let mut left = 0;
    for _ in 0..10 {
        for node in &cluster.nodes {
            node.query(&["CLIENT", "PAUSE", "300", "ALL"]).await;
        }
        let asked = server.should_rate_limit(both());
        left += usize::from(tokio::time::timeout(Duration::from_millis(100), asked).await.is_err());
    }
    assert!(left > 0, "no caller disconnected before the answer");
    let abandoned = "sluicegate_split_requests_abandoned_total";
    until("all requests to be settled", || async {
        let settling = server.metric("sluicegate_split_requests_settling").await;
        (settling == 0.0 && server.metric(abandoned).await >= 1.0).then_some(())
    })
    .await;
    let mut peek = request(&[&[("shared", "x")]]);
    peek.descriptors[0].hits_addend = Some(0);
    until("the charges to be refunded", || async {
        let left = server.should_rate_limit(peek.clone()).await.unwrap();
        (left.statuses[0].limit_remaining == 99).then_some(())
    })
    .await;
    assert_eq!(server.metric("sluicegate_refunds_failed_total").await, 0.0);
}

#[tokio::test]
async fn no_value_chooses_a_slot_or_causes_an_error() {
    let cluster = Cluster::start().await;
    let limits = "
domain: api
tenant: tenant
descriptors:
  - key: tenant
    descriptors:
      - key: user
        rate_limit: {unit: day, requests_per_unit: 1}
  - key: user
    rate_limit: {unit: day, requests_per_unit: 1}
";
    let fleet = fleet(1, limits, &cluster.url(), &[]).await;
    let long = vec![b'x'; 65_536];
    let values: [&[u8]; 14] = [
        b"{",
        b"}",
        b"{}",
        b"{acme}",
        b"}{acme}",
        b"a:b",
        b"a=b",
        b"%7B",
        b"*",
        b"a\nb",
        b"a\r\nSET b 1\r\n",
        b"\0\xff\xfe",
        b"",
        &long,
    ];
    for value in values {
        let chain: &[(&str, &[u8])] = &[("tenant", b"acme"), ("user", value)];
        let mut codes = Vec::new();
        for descriptor in [chain, &chain[1..], &[("tenant", value), ("user", value)]] {
            for _ in 0..2 {
                let answer = fleet.servers[0].should_rate_limit(request(&[descriptor])).await;
                codes.push(answer.unwrap().overall_code());
            }
        }
        // The limits of other tenants are unused.
        assert_eq!(codes, [Code::Ok, Code::OverLimit].repeat(3), "{:?}", value.escape_ascii());
    }
    let tagged = cluster.keys("*:{acme}:*").await;
    assert_eq!(tagged.len(), values.len());
    let slot = cluster.slot("{acme}").await;
    let mut elsewhere = 0;
    for key in cluster.keys("s1:fw:*").await {
        assert!(key.bytes().all(|byte| byte.is_ascii_graphic()), "{key:?}");
        let is_there = cluster.slot(&key).await == slot;
        assert_eq!(is_there, tagged.contains(&key), "{key}");
        elsewhere += usize::from(!is_there);
    }
    assert_eq!(elsewhere, 2 * values.len());
}

// === Outages ===

const DAILY: &str = "
domain: api
on_failure: deny
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 1}
";

async fn health(server: &Sluicegate) -> ServingStatus {
    let mut client = HealthClient::new(server.channel().await);
    client.check(HealthCheckRequest::default()).await.unwrap().into_inner().status()
}

#[tokio::test]
async fn start_up_waits_for_a_connection_to_redis() {
    let redis = Redis::start().await;
    let proxy = Proxy::start(&redis.address()).await;
    proxy.set(Mode::Delay(Duration::from_millis(50)));
    let url = format!("redis://{}", proxy.address());
    let flags = ["--redis-connect-timeout", "10s", "--store", &url];
    let server = Sluicegate::start(DAILY, &[&PATIENT[..], &flags].concat()).await;
    assert_eq!(code(&server, "user", "bob").await, Code::Ok);
    assert_eq!(server.metric("sluicegate_requests_unanswered_total").await, 0.0);
}

#[tokio::test]
async fn a_server_can_start_before_its_redis() {
    let mut redis = Redis::start().await;
    redis.kill().await;
    let server = Sluicegate::start(DAILY, &["--store", &redis.url()]).await;
    assert_eq!(code(&server, "user", "bob").await, Code::OverLimit);
    assert_eq!(health(&server).await, ServingStatus::Serving);
    assert_eq!(server.get("/healthcheck").await, (200, "OK".to_owned()));
    let (status, text) = server.get("/healthcheck?verbose").await;
    assert!(status == 200 && text.contains("store: degraded"), "{status} {text}");
    assert_eq!(server.metric("sluicegate_store_degraded").await, 1.0);
    redis.restart().await;
    let well =
        || async { server.get("/healthcheck?verbose").await.1.contains("store: ok").then_some(()) };
    until("the store to be well", well).await;
    assert_eq!(server.metric("sluicegate_store_degraded").await, 0.0);
    assert_eq!(code(&server, "user", "bob").await, Code::Ok);
    assert_eq!(code(&server, "user", "bob").await, Code::OverLimit);
}

#[tokio::test]
async fn health_can_require_the_store() {
    let mut redis = Redis::start().await;
    let flags = ["--store", &redis.url(), "--health-requires-store"];
    let fleet = Fleet::start(1, DAILY, &flags).await;
    let server = &fleet.servers[0];
    for (expected, status) in [
        (ServingStatus::Serving, 200),
        (ServingStatus::NotServing, 500),
        (ServingStatus::Serving, 200),
    ] {
        until("health to follow the store", || async {
            (health(server).await == expected).then_some(())
        })
        .await;
        assert_eq!(server.get("/healthcheck").await.0, status);
        if status == 500 {
            redis.restart().await;
        } else {
            redis.kill().await;
        }
    }
}

#[tokio::test]
async fn health_that_requires_the_store_recovers_without_requests() {
    let redis = Setup::new().config("maxmemory 1gb\nmaxmemory-policy noeviction").start().await;
    let flags = ["--store", &redis.url(), "--health-requires-store"];
    let fleet = Fleet::start(1, DAILY, &flags).await;
    let server = &fleet.servers[0];
    let health_is = async |status| {
        until("health to follow the store", || async {
            (server.get("/healthcheck").await.0 == status).then_some(())
        })
        .await;
    };
    health_is(200).await;
    redis.query(&["CONFIG", "SET", "maxmemory", "1"]).await;
    until("Redis to refuse", || async {
        code(server, "user", "bob").await;
        (server.get("/healthcheck").await.0 == 500).then_some(())
    })
    .await;
    // Longer than the time after which replies without a write close the breaker.
    tokio::time::sleep(Duration::from_secs(2)).await;
    health_is(500).await;
    redis.query(&["CONFIG", "SET", "maxmemory", "0"]).await;
    health_is(200).await;
    assert_eq!(server.metric("sluicegate_store_degraded").await, 0.0);
}

#[tokio::test]
async fn a_redis_that_may_evict_counters_causes_a_warning() {
    for (policy, warned) in [("allkeys-lru", true), ("volatile-ttl", true), ("noeviction", false)] {
        let config = format!("maxmemory 100mb\nmaxmemory-policy {policy}");
        let redis = Setup::new().config(&config).start().await;
        let fleet = fleet(1, CHAIN, &redis.url(), &[]).await;
        let what = "may drop live counters";
        let log = fleet.servers[0].process.printed(what, usize::from(warned)).await;
        assert_eq!(log.matches(what).count(), usize::from(warned), "{log}");
    }
}

#[tokio::test]
async fn an_outage_is_logged_once_not_per_request() {
    let mut redis = Redis::start().await;
    let fleet = fleet(1, CHAIN, &redis.url(), &[]).await;
    let server = &fleet.servers[0];
    redis.kill().await;
    until("the server to notice", || async {
        (server.metric("sluicegate_store_degraded").await == 1.0).then_some(())
    })
    .await;
    for _ in 0..100 {
        code(server, "tenant", "acme").await;
    }
    redis.restart().await;
    fleet.until_available().await;
    let log = server.process.printed("Redis available", 2).await;
    assert_eq!(log.matches("Redis unavailable").count(), 1, "{log}");
    assert_eq!(log.matches("Redis available").count(), 2, "at first, and again: {log}");
    assert_eq!(
        log.matches("Redis rejects commands").count(),
        0,
        "it accepted no connection: {log}"
    );
    // With the reply to the probe.
    assert!(log.matches(" WARN ").count() <= 3, "{log}");
}

#[tokio::test]
async fn a_full_redis_is_logged_once() {
    let redis = Setup::new().config("maxmemory 1gb\nmaxmemory-policy noeviction").start().await;
    let flags = ["--deny-cache-entries", "0"];
    let limits = "
domain: api
descriptors:
  - {key: spent, rate_limit: {unit: day, requests_per_unit: 0}}
  - {key: user, on_failure: allow, rate_limit: {unit: day, requests_per_unit: 1000}}
";
    let fleet = fleet(1, limits, &redis.url(), &flags).await;
    let server = &fleet.servers[0];
    redis.query(&["CONFIG", "SET", "maxmemory", "1"]).await;
    for user in 0..100 {
        // One request writes and is rejected by Redis, the other does not write and is answered.
        assert_eq!(code(server, "user", &user.to_string()).await, Code::Ok);
        assert_eq!(code(server, "spent", "x").await, Code::OverLimit);
    }
    assert_eq!(server.metric("sluicegate_store_degraded").await, 1.0);
    redis.query(&["CONFIG", "SET", "maxmemory", "0"]).await;
    until("Redis to be of use again", || async {
        code(server, "user", "bob").await;
        (server.metric("sluicegate_store_degraded").await == 0.0).then_some(())
    })
    .await;
    let log = server.process.printed("Redis accepts commands again", 1).await;
    assert_eq!(log.matches("Redis rejects commands").count(), 1, "{log}");
    assert_eq!(log.matches("Redis accepts commands again").count(), 1, "{log}");
}

#[tokio::test]
async fn dead_sentinels_are_skipped() {
    let sentinels = Sentinels::start().await;
    let url = sentinels.url();
    let (living, name) = url.strip_prefix("redis-sentinel://").unwrap().rsplit_once('/').unwrap();
    let living = living.split(',').next().unwrap();
    let dead = format!("127.0.0.1:{}", free_port());
    for both in [format!("{dead},{living}"), format!("{living},{dead}")] {
        let fleet = fleet(1, CHAIN, &format!("redis-sentinel://{both}/{name}"), &[]).await;
        assert_eq!(code(&fleet.servers[0], "tenant", "acme").await, Code::Ok);
    }
}
