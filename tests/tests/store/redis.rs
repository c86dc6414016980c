//! Tests of the store in Redis, on one server and on a cluster.

use std::{
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use sluicegate_core::{
    Algorithm, Answers, Batch, Charge, Check, Limit, Store, key::KeyBuilder, request::Entry,
    store::Group,
};
use sluicegate_store::{
    FailurePolicy, Memory, MemorySettings, Redis, SystemClock,
    redis::{KeyPrefix, Password, RedisConnectionSettings, RedisSettings, RedisUrl},
};
use sluicegate_tests::{self as harness, until};
use smallvec::SmallVec;

use crate::conformance::{self, ask, check, per_day};

/// A connected store with its own key prefix.
pub(crate) async fn store(url: &str) -> Redis {
    static STORES: AtomicUsize = AtomicUsize::new(0);
    let prefix = format!("test{}:", STORES.fetch_add(1, Ordering::Relaxed));
    let url: RedisUrl = url.parse().unwrap();
    let settings = RedisSettings {
        deployment: url.deployment,
        connection: RedisConnectionSettings {
            username: url.username,
            password: url.password.map_or(Password::None, Password::Given),
            tls: None,
            database: url.database,
            connect_timeout: Duration::from_secs(10),
            connector: None,
        },
        connections: NonZeroUsize::new(2).unwrap(),
        connections_max: 100,
        key_prefix: prefix.parse::<KeyPrefix>().unwrap(),
    };
    let store = Redis::start(settings, None, None).unwrap();
    until("the store to be connected", || async { (!store.is_degraded()).then_some(()) }).await;
    store
}

#[tokio::test(flavor = "multi_thread")]
async fn one_server_conforms() {
    let redis = harness::Redis::start().await;
    conformance::suite(async || store(&redis.url()).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_conforms() {
    let cluster = harness::Cluster::start().await;
    conformance::suite(async || store(&cluster.url()).await).await;
}

/// A check of a counter without a tenant, so its slot depends on its name.
fn apart(name: &str, limit: Limit, descriptor: usize) -> Check {
    let entries = [Entry { key: b"name", value: name.as_bytes() }];
    let key = KeyBuilder::new("conformance", None, &entries, &[]).key_for(&limit);
    Check { key, ..check(name, limit, descriptor, Charge::IfAllowed(1)) }
}

#[tokio::test(flavor = "multi_thread")]
async fn charges_of_a_slot_are_refunded_when_another_slot_refuses() {
    let cluster = harness::Cluster::start().await;
    for algorithm in Algorithm::ALL {
        let policy = Arc::new(FailurePolicy::new(store(&cluster.url()).await, None));
        let (wide, narrow) = (per_day(algorithm, 1_000), per_day(algorithm, 20));
        let chain = move || {
            let names = ["a", "b", "c", "d"].into_iter().enumerate();
            let mut checks: Vec<_> = names.map(|(at, name)| apart(name, wide, at)).collect();
            checks.push(apart("narrow", narrow, 4));
            checks
        };
        let callers = (0..8).map(|_| {
            let policy = Arc::clone(&policy);
            tokio::spawn(async move {
                let mut admitted = 0;
                for _ in 0..25 {
                    let decisions = policy.decide(chain().into(), None).await.unwrap();
                    admitted += u64::from(decisions.iter().all(|it| it.allowed));
                }
                admitted
            })
        });
        let mut admitted = 0;
        for caller in callers.collect::<Vec<_>>() {
            admitted += caller.await.unwrap();
        }
        assert!(admitted <= 20, "{algorithm:?}: {admitted}");
        for name in ["a", "b", "c", "d"] {
            until("what was taken to be given back", || async {
                let peek = Check { charge: Charge::IfAllowed(0), ..apart(name, wide, 0) };
                let left = ask(policy.inner(), vec![peek]).await[0].remaining;
                assert!(left <= 1_000 - admitted, "{algorithm:?}: {left} left after {admitted}");
                (left == 1_000 - admitted).then_some(())
            })
            .await;
        }
        assert_eq!(policy.refunds_failed(), 0);
    }
}

/// Groups that differ only in their keys, some of them refused by their last check: a typical call for many tenants.
#[tokio::test(flavor = "multi_thread")]
async fn many_similar_groups_are_answered_as_in_memory() {
    let redis = harness::Redis::start().await;
    let in_redis = store(&redis.url()).await;
    let settings = MemorySettings { counters_max: 10_000 };
    let in_memory = Memory::new(settings, SystemClock::new());
    let limits = [100, 50, 2].map(|requests| {
        Limit::new(Algorithm::FixedWindow, requests, harness::long_window(), None).unwrap()
    });
    let group = |tenant: usize| {
        let checks = limits.iter().enumerate().map(|(at, limit)| {
            let name = format!("{tenant} {at}");
            check(&name, *limit, at, Charge::IfAllowed(1))
        });
        checks.collect::<Group>()
    };
    for round in 0..4 {
        // Every third tenant sends more requests, so it is refused sooner than the others.
        let asked = (0..60).filter(|tenant| round > 0 || tenant % 3 == 0);
        let groups: SmallVec<[Group; 1]> = asked.map(group).collect();
        let batch = || Batch { groups: groups.clone(), deadline: None };
        let comparable = |answers: Answers| -> Vec<_> {
            let decisions = answers.into_iter().map(Result::unwrap);
            decisions.map(|it| (it.allowed, it.charged, it.remaining, it.receipt)).collect()
        };
        let answers = comparable(in_redis.decide(batch()).await);
        assert_eq!(answers, comparable(in_memory.decide(batch()).await), "{round}");
        let refused = answers.iter().filter(|it| !it.0).count();
        assert_eq!(refused, [0, 0, 20, 60][round], "{round}");
    }
}
