//! Late replies of Redis: charges of requests that were not allowed are refunded, and hits without a reply are counted
//! as unknown.

use std::time::Duration;

use sluicegate_proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use sluicegate_tests::{Cluster, Fleet, Mode, Proxy, Redis, Sluicegate, hits, request, until};
use tonic::Code as GrpcCode;

const LIMIT: usize = 100;

/// A rule for each failure policy.
const LIMITS: &str = "
domain: api
descriptors:
  - {key: allow, on_failure: allow, rate_limit: {unit: day, requests_per_unit: 100}}
  - {key: deny, on_failure: deny, rate_limit: {unit: day, requests_per_unit: 100}}
  - {key: defer, on_failure: defer, rate_limit: {unit: day, requests_per_unit: 100}}
  - {key: local, on_failure: local, rate_limit: {unit: day, requests_per_unit: 100}}
  - {key: shadow, shadow_mode: true, on_failure: deny, rate_limit: {unit: day, requests_per_unit: 100}}
  - {key: debit, counting: debit, on_failure: deny, rate_limit: {unit: day, requests_per_unit: 100}}
  - {key: own, on_failure: deny, rate_limit: {unit: day, requests_per_unit: 1}}
";

/// Longer than the deadline of a call, and shorter than the time in which late replies are awaited.
const DELAY: Duration = Duration::from_millis(200);

const FLAGS: [&str; 6] =
    ["--decision-timeout", "100ms", "--replicas", "1", "--deny-cache-entries", "0"];

async fn start(store: &str) -> Fleet {
    start_with(store, &[]).await
}

async fn start_with(store: &str, flags: &[&str]) -> Fleet {
    let fleet = Fleet::start(1, LIMITS, &[&["--store", store], &FLAGS[..], flags].concat()).await;
    fleet.until_available().await;
    fleet
}

/// A server that reaches Redis through a proxy.
async fn start_behind_proxy(redis: &Redis) -> (Fleet, Proxy) {
    let proxy = Proxy::start(&redis.address()).await;
    (start(&format!("redis://{}", proxy.address())).await, proxy)
}

/// Sends a request with three hits on each of these keys.
async fn ask(server: &Sluicegate, keys: &[&str]) -> Result<Code, GrpcCode> {
    let entries: Vec<_> = keys.iter().map(|key| [(*key, "x")]).collect();
    let descriptors: Vec<_> = entries.iter().map(<[_; 1]>::as_slice).collect();
    let mut asked = request(&descriptors);
    asked.hits_addend = 3;
    let answer = server.should_rate_limit(asked).await;
    answer.map(|answer| answer.overall_code()).map_err(|status| status.code())
}

/// Waits until no late reply or refund is pending. Returns the unknown hits.
async fn unknown(fleet: &Fleet) -> f64 {
    until("late replies to be settled", || async {
        (fleet.sum("sluicegate_settlements_pending", &[]).await == 0.0).then_some(())
    })
    .await;
    fleet.hits_unknown().await
}

/// The used hits of a key's counter in Redis.
async fn used(fleet: &Fleet, key: &str) -> usize {
    LIMIT - fleet.remaining(&[(key, "x")]).await
}

/// Number of script calls so far.
async fn calls(redis: &Redis) -> u64 {
    redis.calls("evalsha").await
}

#[tokio::test]
async fn late_charge_is_refunded_unless_its_policy_allowed_it() {
    let redis = Redis::start().await;
    let (fleet, proxy) = start_behind_proxy(&redis).await;
    // The hits that stay charged, and the number of calls.
    let cases = [
        ("allow", Ok(Code::Ok), 3, 1),
        ("deny", Ok(Code::OverLimit), 0, 2),
        ("defer", Err(GrpcCode::Unavailable), 0, 2),
        // Charged, refunded (maybe with a probe), and debited.
        ("local", Ok(Code::Ok), 3, 3),
        ("shadow", Ok(Code::Ok), 0, 2),
        // Debits are charged in any case.
        ("debit", Ok(Code::OverLimit), 3, 1),
    ];
    for (key, answer, charged, asked) in cases {
        let before = calls(&redis).await;
        // Half of the delay in each direction.
        proxy.set(Mode::Delay(DELAY / 2));
        assert_eq!(ask(&fleet.servers[0], &[key]).await, answer, "{key}");
        proxy.set(Mode::Pass);
        until("Redis to be asked", || async {
            (calls(&redis).await >= before + asked).then_some(())
        })
        .await;
        assert_eq!(unknown(&fleet).await, 0.0, "{key}");
        until("local hits to be debited", || async {
            (fleet.sum("sluicegate_fallback_hits_undebited", &[]).await == 0.0).then_some(())
        })
        .await;
        assert_eq!(used(&fleet, key).await, charged, "{key}");
    }
    assert_eq!(fleet.servers[0].metric("sluicegate_refunds_failed_total").await, 0.0);
}

/// Replies on an abandoned connection are read when Redis continues.
#[tokio::test]
async fn replies_on_abandoned_connections_are_read_after_a_pause() {
    let mut redis = Redis::start().await;
    let fleet = start_with(&redis.url(), &["--redis-connections", "1"]).await;
    let server = &fleet.servers[0];
    let before = calls(&redis).await;
    redis.pause();
    until("the connection to be given up", || async {
        assert_eq!(ask(server, &["deny"]).await, Ok(Code::OverLimit));
        (server.metric("sluicegate_store_degraded").await == 1.0).then_some(())
    })
    .await;
    redis.resume();
    assert_eq!(unknown(&fleet).await, 0.0);
    assert!(calls(&redis).await >= before + 2, "nothing was charged late");
    fleet.until_available().await;
    assert_eq!(used(&fleet, "deny").await, 0);
}

#[tokio::test]
async fn request_refused_by_one_slot_is_refunded_on_a_late_one() {
    let cluster = Cluster::start().await;
    let fleet = start(&cluster.url()).await;
    let server = &fleet.servers[0];
    let primary_of = async |pattern: &str| {
        let keys = cluster.keys(pattern).await;
        let slot = cluster.slot(keys.first().unwrap()).await;
        cluster.primary_of(slot).await.unwrap()
    };
    let asked = async |request| server.should_rate_limit(request).await.unwrap().overall_code();
    assert_eq!(asked(hits("own", "x", 1)).await, Code::Ok);
    let own = primary_of("*own*").await;
    // A counter on another server.
    let mut name = 0;
    let (shared, late) = loop {
        let shared = format!("shared{name}");
        assert_eq!(asked(hits("deny", &shared, 1)).await, Code::Ok);
        let primary = primary_of(&format!("*{shared}*")).await;
        if primary != own {
            break (shared, primary);
        }
        name += 1;
    };
    let before = calls(&cluster.nodes[late]).await;
    cluster.nodes[late].query(&["CLIENT", "PAUSE", "300", "ALL"]).await;
    let both = request(&[&[("deny", shared.as_str())], &[("own", "x")]]);
    assert_eq!(asked(both).await, Code::OverLimit);
    until("the late charge and its return", || async {
        (calls(&cluster.nodes[late]).await == before + 2).then_some(())
    })
    .await;
    assert_eq!(unknown(&fleet).await, 0.0);
    assert_eq!(fleet.remaining(&[("deny", &shared)]).await, LIMIT - 1);
}

/// A primary that was paused and replaced runs the commands that it has received before it learns of its successor. Its
/// charges are lost, so the successor must not refund them.
#[tokio::test]
async fn late_charge_of_a_replaced_primary_is_not_refunded() {
    let mut cluster = Cluster::start().await;
    let fleet = start(&cluster.url()).await;
    let server = &fleet.servers[0];
    assert_eq!(ask(server, &["deny"]).await, Ok(Code::Ok));
    let slot = cluster.slot(cluster.keys("*deny*").await.first().unwrap()).await;
    let primary = cluster.primary_of(slot).await.unwrap();
    cluster.nodes[primary].pause();
    assert_eq!(ask(server, &["deny"]).await, Ok(Code::OverLimit));
    let successor = cluster.until_taken_over(slot, primary).await;
    until("the successor to be asked", || async {
        (ask(server, &["deny"]).await == Ok(Code::Ok)).then_some(())
    })
    .await;
    let before = calls(&cluster.nodes[successor]).await;
    cluster.nodes[primary].resume();
    assert!(unknown(&fleet).await >= 3.0);
    assert_eq!(calls(&cluster.nodes[successor]).await, before, "the successor got a refund");
    assert_eq!(used(&fleet, "deny").await, 6);
}

#[tokio::test]
async fn hits_without_a_reply_are_unknown() {
    let redis = Redis::start().await;
    let (fleet, proxy) = start_behind_proxy(&redis).await;
    let server = &fleet.servers[0];
    let mut admitted = 0;
    // The interrupted reply may be another one.
    for _ in 0..10 {
        proxy.set(Mode::Cut(0));
        admitted += 3 * usize::from(ask(server, &["deny"]).await == Ok(Code::Ok));
        proxy.set(Mode::Pass);
        fleet.until_available().await;
        if fleet.hits_unknown().await > 0.0 {
            break;
        }
    }
    assert_eq!(unknown(&fleet).await, 3.0, "the connection broke");
    assert_eq!(used(&fleet, "deny").await, admitted + 3);
    proxy.set(Mode::Swallow);
    assert_eq!(ask(server, &["deny"]).await, Ok(Code::OverLimit));
    assert_eq!(fleet.hits_unknown().await, 3.0, "the reply may still arrive");
    assert_eq!(unknown(&fleet).await, 6.0, "no reply arrived");
}

#[tokio::test]
async fn hits_of_disconnected_callers_stay_charged_and_known() {
    let redis = Redis::start().await;
    let (fleet, proxy) = start_behind_proxy(&redis).await;
    let server = &fleet.servers[0];
    // With replies before and after the deadline.
    for delay in [DELAY / 5, DELAY / 2] {
        let before = used(&fleet, "deny").await;
        until("a caller to disconnect during its call", || async {
            proxy.set(Mode::Delay(delay));
            let asked = tokio::time::timeout(DELAY * 3 / 10, ask(server, &["deny"]));
            assert!(asked.await.is_err(), "the answer arrived before the caller disconnected");
            proxy.set(Mode::Pass);
            tokio::time::sleep(DELAY).await;
            (used(&fleet, "deny").await > before).then_some(())
        })
        .await;
    }
    assert_eq!(unknown(&fleet).await, 0.0);
}

#[tokio::test]
async fn drain_waits_for_late_replies_and_refunds() {
    let redis = Redis::start().await;
    let (mut fleet, proxy) = start_behind_proxy(&redis).await;
    let before = calls(&redis).await;
    proxy.set(Mode::Delay(DELAY / 2));
    assert_eq!(ask(&fleet.servers[0], &["deny"]).await, Ok(Code::OverLimit));
    proxy.set(Mode::Pass);
    fleet.servers.remove(0).stop().await;
    assert_eq!(calls(&redis).await, before + 2);
    assert_eq!(used(&start(&redis.url()).await, "deny").await, 0);
}
