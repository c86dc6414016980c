//! Failure policies while Redis is unavailable.

use std::time::{Duration, Instant};

use sluicegate_proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use sluicegate_tests::{Fleet, Redis, Sluicegate, free_port, hits, request, until};
use tonic::Code as GrpcCode;

/// A rule for each failure policy, with and without shadow mode.
const LIMITS: &str = "
domain: api
descriptors:
  - {key: allow, on_failure: allow, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: deny, on_failure: deny, rate_limit: {unit: day, requests_per_unit: 1000}}
  - {key: local, on_failure: local, rate_limit: {unit: day, requests_per_unit: 10}}
  - {key: one, on_failure: local, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: defer, on_failure: defer, rate_limit: {unit: day, requests_per_unit: 1000}}
  - key: burst
    on_failure: local
    rate_limit: {unit: day, requests_per_unit: 10, burst: 20, algorithm: gcra}
  - key: shadow_deny
    shadow_mode: true
    on_failure: deny
    rate_limit: {unit: day, requests_per_unit: 1000}
  - key: shadow_defer
    shadow_mode: true
    on_failure: defer
    rate_limit: {unit: day, requests_per_unit: 1000}
  - {key: silent, rate_limit: {unit: day, requests_per_unit: 10}}
";

/// A server whose Redis has stopped.
async fn alone(limits: &str, flags: &[&str]) -> Sluicegate {
    let mut redis = Redis::start().await;
    let store = redis.url();
    let flags = [&["--store", &store], flags].concat();
    let mut fleet = Fleet::start(1, limits, &flags).await;
    redis.kill().await;
    fleet.servers.remove(0)
}

/// Sends a request with one hit on each of these keys.
async fn ask(server: &Sluicegate, keys: &[&str]) -> Result<Code, GrpcCode> {
    let descriptors: Vec<_> = keys.iter().map(|key| vec![(*key, "x")]).collect();
    let descriptors: Vec<_> = descriptors.iter().map(Vec::as_slice).collect();
    let answer = server.should_rate_limit(request(&descriptors)).await;
    answer.map(|answer| answer.overall_code()).map_err(|status| status.code())
}

/// Sends some hits on the key. Returns how many are allowed.
async fn admitted(server: &Sluicegate, key: &str) -> usize {
    let mut admitted = 0;
    for _ in 0..30 {
        admitted += usize::from(ask(server, &[key]).await == Ok(Code::Ok));
    }
    admitted
}

async fn decided(server: &Sluicegate, source: &str, code: &str) -> f64 {
    server.sum("sluicegate_decisions_total", &[("source", source), ("code", code)]).await
}

#[tokio::test]
async fn allow_admits_every_request() {
    let server = alone(LIMITS, &[]).await;
    assert_eq!(admitted(&server, "allow").await, 30);
    assert_eq!(decided(&server, "policy", "ok").await, 30.0);
}

#[tokio::test]
async fn deny_refuses_every_request() {
    let server = alone(LIMITS, &[]).await;
    assert_eq!(admitted(&server, "deny").await, 0);
    assert_eq!(decided(&server, "policy", "over_limit").await, 30.0);
}

#[tokio::test]
async fn defer_returns_unavailable() {
    let server = alone(LIMITS, &[]).await;
    for _ in 0..30 {
        assert_eq!(ask(&server, &["defer"]).await, Err(GrpcCode::Unavailable));
    }
    let body =
        r#"{"domain": "api", "descriptors": [{"entries": [{"key": "defer", "value": "x"}]}]}"#;
    assert_eq!(server.json(body).await.0, 503);
}

#[tokio::test]
async fn local_counts_against_a_share_of_the_limit() {
    let mut redis = Redis::start().await;
    let fleet = Fleet::start(2, LIMITS, &["--store", &redis.url()]).await;
    for server in &fleet.servers {
        until("the servers to know of each other", || async {
            (server.metric("sluicegate_live_replicas").await == 2.0).then_some(())
        })
        .await;
    }
    redis.kill().await;
    for server in &fleet.servers {
        assert_eq!(admitted(server, "local").await, 5);
        assert_eq!(admitted(server, "burst").await, 10);
        // A share is at least 1.
        assert_eq!(admitted(server, "one").await, 1);
        assert_eq!(decided(server, "local", "ok").await, 16.0);
    }
}

#[tokio::test]
async fn the_replicas_setting_divides_the_limit() {
    let server = alone(LIMITS, &["--replicas", "4"]).await;
    assert_eq!(admitted(&server, "local").await, 2);
    assert_eq!(server.metric("sluicegate_live_replicas").await, 4.0);
}

#[tokio::test]
async fn refusal_precedes_defer_and_defer_precedes_ok() {
    let server = alone(LIMITS, &["--replicas", "1"]).await;
    for keys in [["deny", "defer"], ["defer", "deny"], ["deny", "allow"], ["local", "deny"]] {
        assert_eq!(ask(&server, &keys).await, Ok(Code::OverLimit), "{keys:?}");
    }
    for keys in [["defer", "allow"], ["allow", "defer"], ["defer", "local"], ["local", "defer"]] {
        assert_eq!(ask(&server, &keys).await, Err(GrpcCode::Unavailable), "{keys:?}");
    }
    // None of these requests was charged locally.
    assert_eq!(ask(&server, &["local", "allow"]).await, Ok(Code::Ok));
    assert_eq!(admitted(&server, "local").await, 9);
    for keys in [["local", "defer"], ["allow", "local"]] {
        assert_eq!(ask(&server, &keys).await, Ok(Code::OverLimit), "{keys:?}");
    }
}

#[tokio::test]
async fn rules_in_shadow_mode_neither_refuse_nor_defer() {
    let server = alone(LIMITS, &[]).await;
    for key in ["shadow_deny", "shadow_defer"] {
        assert_eq!(admitted(&server, key).await, 30, "{key}");
    }
    assert_eq!(ask(&server, &["shadow_deny", "shadow_defer", "allow"]).await, Ok(Code::Ok));
}

#[tokio::test]
async fn on_failure_defaults_to_the_domain_and_then_to_the_flag() {
    let server = alone(LIMITS, &["--replicas", "1"]).await;
    assert_eq!(admitted(&server, "silent").await, 10);
    let server = alone(LIMITS, &["--default-on-failure", "deny"]).await;
    assert_eq!((admitted(&server, "silent").await, admitted(&server, "allow").await), (0, 30));
    let limits = LIMITS.replace("domain: api", "domain: api\non_failure: allow");
    let server = alone(&limits, &["--default-on-failure", "deny"]).await;
    assert_eq!((admitted(&server, "silent").await, admitted(&server, "deny").await), (30, 0));
}

/// A limit of each algorithm, and a short one.
const OUTAGES: &str = "
domain: api
descriptors:
  - {key: fixed_window, rate_limit: {unit: day, requests_per_unit: 100}}
  - {key: sliding_window_log, rate_limit: {unit: day, requests_per_unit: 100, algorithm: sliding_window_log}}
  - {key: sliding_window_counter, rate_limit: {unit: day, requests_per_unit: 100, algorithm: sliding_window_counter}}
  - {key: token_bucket, rate_limit: {unit: day, requests_per_unit: 100, algorithm: token_bucket}}
  - {key: gcra, rate_limit: {unit: day, requests_per_unit: 100, algorithm: gcra}}
";

const ALGORITHMS: [&str; 5] =
    ["fixed_window", "sliding_window_log", "sliding_window_counter", "token_bucket", "gcra"];

/// Waits until every server has debited the hits that its local fallback admitted.
async fn until_debited(fleet: &Fleet) {
    until("all hits to be debited", || async {
        (fleet.sum("sluicegate_fallback_hits_undebited", &[]).await == 0.0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn local_hits_are_debited_when_redis_is_back() {
    let mut redis = Redis::start().await;
    // Long enough for any reply of an available Redis.
    let flags = ["--store", &redis.url(), "--replicas", "1", "--decision-timeout", "10s"];
    let fleet = Fleet::start(1, LIMITS, &flags).await;
    let server = &fleet.servers[0];
    server.should_rate_limit(hits("local", "x", 3)).await.unwrap();
    redis.kill().await;
    // One counter is known, the other is not.
    assert_eq!(admitted(server, "local").await, 7);
    assert_eq!(
        server.should_rate_limit(hits("local", "y", 4)).await.unwrap().overall_code(),
        Code::Ok
    );
    let checks = async |which: &str| {
        server.metric(&format!("sluicegate_fallback_checks_{which}_total")).await
    };
    assert_eq!((checks("known").await, checks("unknown").await), (30.0, 1.0));
    assert_eq!(server.metric("sluicegate_fallback_hits_undebited").await, 11.0);
    // Redis restarts empty.
    redis.restart().await;
    fleet.until_available().await;
    until_debited(&fleet).await;
    assert_eq!(server.metric("sluicegate_fallback_hits_debited_total").await, 11.0);
    assert_eq!(fleet.remaining(&[("local", "x")]).await, 3);
    assert_eq!(fleet.remaining(&[("local", "y")]).await, 6);
}

#[tokio::test]
async fn hits_used_before_a_pause_stay_used() {
    let mut redis = Redis::start().await;
    let flags = ["--store", &redis.url(), "--replicas", "1"];
    let fleet = Fleet::start(1, OUTAGES, &flags).await;
    let server = &fleet.servers[0];
    for algorithm in ALGORITHMS {
        let spent = server.should_rate_limit(hits(algorithm, "x", 100)).await.unwrap();
        assert_eq!(spent.overall_code(), Code::Ok);
    }
    for _ in 0..3 {
        redis.pause();
        for algorithm in ALGORITHMS {
            assert_eq!(admitted(server, algorithm).await, 0, "{algorithm}");
        }
        redis.resume();
        fleet.until_available().await;
    }
    assert!(decided(server, "local", "over_limit").await > 0.0);
}

#[tokio::test]
async fn pauses_of_a_window_admit_the_remaining_hits_once() {
    const LEFT: usize = 10;
    const PAUSES: usize = 5;
    let mut redis = Redis::start().await;
    let flags = ["--store", &redis.url(), "--replicas", "4"];
    let fleet = Fleet::start(4, OUTAGES, &flags).await;
    let spent = fleet.servers[0].should_rate_limit(hits("fixed_window", "x", 90)).await.unwrap();
    assert_eq!(spent.overall_code(), Code::Ok);
    for server in &fleet.servers {
        until("Redis' own answer", || async {
            let answer = server.should_rate_limit(hits("fixed_window", "x", 0)).await.unwrap();
            assert_eq!(answer.overall_code(), Code::Ok);
            (server.metric("sluicegate_fallback_counters").await > 0.0).then_some(())
        })
        .await;
    }
    let ask_all = async |times: usize| {
        let mut admitted = 0;
        for _ in 0..times {
            for server in &fleet.servers {
                admitted += usize::from(ask(server, &["fixed_window"]).await == Ok(Code::Ok));
            }
        }
        admitted
    };
    let mut admitted = 0;
    for pause in 0..PAUSES {
        redis.pause();
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(700) {
            admitted += ask_all(1).await;
        }
        println!("pause {pause}: {admitted} in all");
        redis.resume();
        // At once, while some replicas have debited and others have not.
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(700) {
            admitted += ask_all(1).await;
        }
    }
    fleet.until_available().await;
    until_debited(&fleet).await;
    until("late charges to be refunded", || async {
        (fleet.sum("sluicegate_settlements_pending", &[]).await == 0.0).then_some(())
    })
    .await;
    let by_redis = || fleet.servers[0].sum("sluicegate_decisions_total", &[("source", "store")]);
    let left = until("Redis' own answer", || async {
        let before = by_redis().await;
        let left = fleet.remaining(&[("fixed_window", "x")]).await;
        (by_redis().await > before).then_some(left)
    })
    .await;
    let charged = LEFT - left;
    println!("{admitted} admitted, {charged} charged");
    assert!((1..=charged).contains(&admitted), "{admitted} admitted, {charged} charged");
    // Late charges are refunded, unless their reply is lost.
    assert!(((charged - admitted) as f64) <= fleet.hits_unknown().await);
}

#[tokio::test]
async fn a_full_store_answers_every_request() {
    let server = Sluicegate::start(LIMITS, &["--memory-max-counters", "1"]).await;
    assert_eq!(ask(&server, &["silent"]).await, Ok(Code::Ok));
    for key in ["local", "deny", "defer"] {
        assert_eq!(ask(&server, &[key]).await, Ok(Code::OverLimit), "{key}");
    }
    for key in ["allow", "shadow_deny", "shadow_defer", "silent"] {
        assert_eq!(ask(&server, &[key]).await, Ok(Code::Ok), "{key}");
    }
    assert_eq!(server.metric("sluicegate_requests_deferred_total").await, 0.0);
}

#[tokio::test]
async fn a_start_without_redis_warns_of_other_replicas() {
    let store = format!("redis://127.0.0.1:{}", free_port());
    let warns = async |flags: &[&str]| {
        let server = Sluicegate::start(LIMITS, &[&["--store", &store], flags].concat()).await;
        server.process.output().contains("divides limits by one replica")
    };
    assert!(warns(&[]).await);
    assert!(!warns(&["--replicas", "4"]).await);
}
