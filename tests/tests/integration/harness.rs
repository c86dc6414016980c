//! Tests that Redis servers and the proxy behave as the tests of faults assume.

use std::{collections::BTreeSet, time::Duration};

use sluicegate_tests::{Authority, Cluster, Mode, Proxy, Redis, Sentinels, Setup, until};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::Instant,
};

use sluicegate_tests::tools;

#[tokio::test]
async fn a_restarted_redis_is_empty_at_the_same_address() {
    let mut redis = Redis::start().await;
    let address = redis.address();
    redis.query(&["SET", "a", "1"]).await;
    redis.query(&["SET", "b", "2"]).await;
    assert_eq!(redis.keys("*").await, ["a", "b"].map(str::to_owned).into());
    assert_eq!(redis.calls("set").await, 2);
    assert!(redis.try_query(&["INCR", "a", "b"]).await.unwrap_err().contains("wrong number"));
    redis.pause();
    assert_eq!(redis.try_query(&["PING"]).await, Err("no answer".to_owned()));
    redis.resume();
    assert_eq!(redis.query(&["GET", "a"]).await, "1");
    redis.kill().await;
    assert!(redis.try_query(&["PING"]).await.unwrap_err().contains("refused"));
    redis.restart().await;
    assert_eq!((redis.address(), redis.keys("*").await), (address, BTreeSet::new()));
}

#[tokio::test]
async fn a_guarded_redis_needs_certificate_and_password() {
    let setup = Setup::new().tls(&Authority::new("redis")).user("limiter", "secret");
    let redis = setup.clone().start().await;
    assert_eq!(redis.query(&["ACL", "WHOAMI"]).await, "limiter");
    let port = redis.address();
    let mut plain = TcpStream::connect(&port).await.unwrap();
    plain.write_all(b"PING\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _closed = plain.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"+"), "{answer:?}");
}

#[tokio::test]
async fn valkey_replies_like_redis() {
    let valkey = Setup::new().binary(tools::valkey()).start().await;
    valkey.query(&["SET", "a", "1"]).await;
    assert_eq!(valkey.query(&["GET", "a"]).await, "1");
}

#[tokio::test]
async fn a_cluster_survives_a_dead_primary() {
    let mut cluster = Cluster::start().await;
    let slot = cluster.slot("{a}1").await;
    let primary = cluster.primary_of(slot).await.unwrap();
    cluster.nodes[primary].query(&["SET", "{a}1", "x"]).await;
    cluster.until_replicated(primary).await;
    assert_eq!((cluster.keys("*").await.len(), cluster.calls("set").await > 0), (1, true));
    cluster.nodes[primary].kill().await;
    let successor = cluster.until_taken_over(slot, primary).await;
    assert_eq!(cluster.nodes[successor].query(&["GET", "{a}1"]).await, "x");
    cluster.nodes[primary].restart().await;
    until("the former primary to follow", || async {
        let role = cluster.nodes[primary].info("replication", "role").await;
        (role == Ok(Some("slave".to_owned()))).then_some(())
    })
    .await;
    cluster.until_whole().await;
    assert_eq!(cluster.primary_of(slot).await, Some(successor));
}

#[tokio::test]
async fn a_slot_moves_key_by_key() {
    let cluster = Cluster::of(Setup::new().tls(&Authority::new("redis"))).await;
    let slot = cluster.slot("{a}1").await;
    let from = cluster.primary_of(slot).await.unwrap();
    let to = (from + 1) % 3;
    for key in ["{a}1", "{a}2", "{a}3"] {
        cluster.nodes[from].query(&["SET", key, key]).await;
    }
    let migration = cluster.migrate_start(slot, to).await;
    assert_eq!(cluster.migrate_keys(migration, 1).await, 1);
    let split = cluster.nodes[from].try_query(&["MGET", "{a}1", "{a}2", "{a}3"]).await;
    assert!(split.as_ref().is_err_and(|error| error.contains("TRYAGAIN")), "{split:?}");
    let gone = cluster.nodes[from].try_query(&["GET", "{a}4"]).await;
    assert!(gone.as_ref().is_err_and(|error| error.contains("ASK")), "{gone:?}");
    cluster.migrate_end(migration).await;
    let moved = cluster.nodes[from].try_query(&["GET", "{a}1"]).await;
    assert!(moved.as_ref().is_err_and(|error| error.contains("MOVED")), "{moved:?}");
    assert_eq!(cluster.nodes[to].query(&["GET", "{a}1"]).await, "{a}1");
    assert_eq!(cluster.keys("{a}*").await.len(), 3);
}

#[tokio::test]
async fn sentinels_promote_a_replica_of_a_dead_primary() {
    let mut sentinels = Sentinels::start().await;
    assert_eq!(sentinels.primary().await, Some(0));
    sentinels.servers[0].kill().await;
    let successor = sentinels.until_taken_over(0).await;
    sentinels.servers[successor].query(&["SET", "a", "1"]).await;
}

/// Sends a line, and reads what arrives.
async fn ping(proxy: &mut TcpStream) -> Vec<u8> {
    let mut answer = vec![0; 100];
    let _gone = proxy.write_all(b"PING\r\n").await;
    let length = proxy.read(&mut answer).await.unwrap_or(0);
    answer.truncate(length);
    answer
}

#[tokio::test]
async fn a_proxy_follows_its_mode() {
    let redis = Redis::start().await;
    let proxy = Proxy::start(&redis.address()).await;
    let connect = async || TcpStream::connect(proxy.address()).await.unwrap();
    let mut connection = connect().await;
    assert_eq!(ping(&mut connection).await, b"+PONG\r\n");

    proxy.set(Mode::Delay(Duration::from_millis(50)));
    let sent = Instant::now();
    assert_eq!(ping(&mut connection).await, b"+PONG\r\n");
    assert!(sent.elapsed() >= Duration::from_millis(100));

    proxy.set(Mode::Cut(3));
    assert_eq!(ping(&mut connection).await, b"+PO");
    assert_eq!(ping(&mut connection).await, b"");
    assert_eq!((proxy.mode(), ping(&mut connect().await).await), (Mode::Pass, b"+PONG\r\n".into()));

    proxy.set(Mode::Swallow);
    let mut lost = connect().await;
    let calls = redis.calls("ping").await;
    let answer = tokio::time::timeout(Duration::from_millis(200), ping(&mut lost)).await;
    assert!(answer.is_err(), "{answer:?}");
    proxy.set(Mode::Pass);
    let answer = tokio::time::timeout(Duration::from_millis(200), ping(&mut lost)).await;
    assert!(answer.is_err(), "{answer:?}");
    assert_eq!(redis.calls("ping").await, calls);

    let mut connection = connect().await;
    assert_eq!(ping(&mut connection).await, b"+PONG\r\n");
    proxy.set(Mode::Refuse);
    assert_eq!(ping(&mut connection).await, b"");
    assert_eq!(ping(&mut connect().await).await, b"");
}
