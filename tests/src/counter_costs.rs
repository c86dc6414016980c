//! Measures the memory of counters in Redis.

use std::{num::NonZeroUsize, ops::Range, time::Duration};

use sluicegate_core::{
    Algorithm, Batch, Charge, Check, CounterKey, Limit, OnFailure, Store, Window,
    key::KeyBuilder,
    request::Entry,
    store::{Group, RefusalScope},
};
use sluicegate_store::{
    self as store,
    redis::{KeyPrefix, Password, RedisConnectionSettings, RedisSettings, RedisUrl},
};

use crate::{Redis, until};

/// Requests in one batch.
const BATCH: usize = 500;

/// A check of 1 hit on the counter with this number. Its descriptor has three entries, whose keys and values have 48
/// bytes together.
#[must_use]
pub fn check(number: usize, limit: Limit) -> Check {
    let values =
        [format!("tenant-{:06}", number / 10), format!("u-{number:08}"), "/api/items".to_owned()];
    let keys: [&[u8]; 3] = [b"tenant", b"user", b"route"];
    let entries = keys.iter().zip(&values);
    let entries: Vec<_> =
        entries.map(|(key, value)| Entry { key, value: value.as_bytes() }).collect();
    let key = KeyBuilder::new("public_api", Some(b"tenant"), &entries, &[]).key_for(&limit);
    let take = Charge::IfAllowed(1);
    let on_failure = OnFailure::default();
    Check {
        key,
        limit,
        charge: take,
        descriptor: 0,
        refusal_scope: RefusalScope::Request,
        on_failure,
    }
}

/// A limit of `requests` in `seconds`.
#[must_use]
pub fn limit(algorithm: Algorithm, requests: u32, seconds: u64) -> Limit {
    Limit::new(algorithm, requests, Window::from_seconds(seconds).unwrap(), None).unwrap()
}

/// A counter's key in Redis.
#[must_use]
pub fn text(key: &CounterKey) -> String {
    String::from_utf8(key.as_bytes().to_vec()).unwrap()
}

/// Charges 1 hit to each of these counters.
///
/// # Panics
/// A hit is refused.
pub async fn charge(store: &impl Store, algorithm: Algorithm, counters: Range<usize>) {
    let limit = limit(algorithm, 100, 3_600);
    let numbers: Vec<usize> = counters.collect();
    for batch in numbers.chunks(BATCH) {
        let groups = batch.iter().map(|&number| Group::from([check(number, limit)])).collect();
        let answers = store.decide(Batch { groups, deadline: None }).await;
        assert!(answers.iter().all(|answer| answer.is_ok_and(|it| it.allowed)));
    }
}

/// Memory that the counters of one algorithm use in Redis.
#[derive(Clone, Debug)]
pub struct Growth {
    /// Growth of `used_memory` per counter, in bytes.
    pub used_memory: u64,
    /// `MEMORY USAGE` of one counter, in bytes.
    pub usage: String,
    /// The stored value of one counter.
    pub value: String,
}

impl Growth {
    /// Measures this number of counters in a Redis of their own.
    pub async fn of(algorithm: Algorithm, counters: usize) -> Self {
        let redis = Redis::start().await;
        let store = connect(&redis).await;
        // Loads the script and allocates buffers before the measurement.
        charge(&store, algorithm, 0..BATCH).await;
        let before = used_memory(&redis).await;
        charge(&store, algorithm, BATCH..BATCH + counters).await;
        let growth = used_memory(&redis).await - before;
        let key = text(&check(0, limit(algorithm, 100, 3_600)).key);
        let usage = redis.query(&["MEMORY", "USAGE", &key]).await;
        let value = match redis.query(&["TYPE", &key]).await.as_str() {
            "list" => redis.query(&["LRANGE", &key, "0", "-1"]).await.replace('\n', " "),
            _ => redis.query(&["GET", &key]).await,
        };
        Self { used_memory: growth / u64::try_from(counters).unwrap(), usage, value }
    }
}

async fn used_memory(redis: &Redis) -> u64 {
    redis.info("memory", "used_memory").await.unwrap().unwrap().parse().unwrap()
}

/// Returns a store with its counters in this Redis, after it has connected.
pub async fn connect(redis: &Redis) -> store::Redis {
    let url: RedisUrl = redis.url().parse().unwrap();
    let connection = RedisConnectionSettings {
        username: None,
        password: Password::None,
        tls: None,
        database: 0,
        connect_timeout: Duration::from_secs(10),
        connector: None,
    };
    let connections = NonZeroUsize::MIN;
    let key_prefix = KeyPrefix::default();
    let deployment = url.deployment;
    let settings =
        RedisSettings { deployment, connection, connections, connections_max: 1, key_prefix };
    let store = store::Redis::start(settings, None, None).unwrap();
    until("the store to be connected", || async { (!store.is_degraded()).then_some(()) }).await;
    store
}
