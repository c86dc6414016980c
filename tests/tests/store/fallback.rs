//! Local decisions during outages: they start from what the store last reported, and are debited when it answers again.
//! The clock is tokio's paused one: a sleep takes no time.

use std::{
    collections::HashSet,
    num::NonZeroU32,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::future::join_all;
use sluicegate_core::{
    Algorithm, Answers, Batch, Charge, Check, CounterKey, Decision, Limit, OnFailure, Store,
    StoreError, Time,
    store::{DecisionSource, Group, LateAnswersFuture},
};
use sluicegate_store::{
    Clock, Deferred, FailurePolicy, FallbackStats, LiveReplicas, LocalFallback, Memory,
    MemorySettings,
};
use sluicegate_tests::{ManualClock, until};

use crate::conformance::{ask, check, per_day};

/// Noon of some day.
const NOON: u64 = (20_000 * 86_400 + 43_200) * 1_000_000;

/// Longer than it takes until every hit is debited and the store's answers suffice again.
const SETTLED: Duration = Duration::from_secs(4);

const REPLICAS: u32 = 4;

type Failure = Box<dyn Fn(&Check) -> Option<StoreError> + Send>;

/// A store in which the test selects the checks that fail.
struct Failing {
    inner: Memory<Arc<dyn Clock>>,
    failure: Mutex<Failure>,
    /// The late answer to a single check that failed.
    late: Mutex<Option<Result<Decision, StoreError>>>,
    /// Counters of a server without a connection.
    unavailable: Mutex<HashSet<CounterKey>>,
    charges: AtomicU64,
    groups_unavailable: AtomicU64,
}

impl Failing {
    fn fail(&self, failure: impl Fn(&Check) -> Option<StoreError> + Send + 'static) {
        *self.failure.lock().unwrap() = Box::new(failure);
    }

    fn pause(&self) {
        self.fail(|_| Some(StoreError::Unavailable));
    }

    fn resume(&self) {
        self.fail(|_| None);
    }

    async fn left(&self, limit: Limit) -> u64 {
        ask(&self.inner, vec![hits(limit, 0)]).await[0].remaining
    }
}

impl Store for Failing {
    async fn decide(&self, batch: Batch) -> Answers {
        let mut answers = Answers::new();
        for group in batch.groups {
            let is_unavailable =
                group.iter().any(|check| self.unavailable.lock().unwrap().contains(&check.key));
            self.groups_unavailable.fetch_add(u64::from(is_unavailable), Ordering::Relaxed);
            let failures: Vec<_> =
                group.iter().map(|check| self.failure.lock().unwrap()(check)).collect();
            let asked = group.iter().zip(&failures).filter(|(_, failure)| failure.is_none());
            let asked: Group = asked.map(|(check, _)| check.clone()).collect();
            let charges = asked.iter().any(|check| check.charge.adds_hits());
            self.charges.fetch_add(u64::from(charges), Ordering::Relaxed);
            let mut asked =
                self.inner.decide(Batch::single(asked, batch.deadline)).await.into_iter();
            let answer = |failure: Option<_>| failure.map_or_else(|| asked.next().unwrap(), Err);
            answers.extend(failures.into_iter().map(answer));
        }
        answers
    }

    fn late_answers(&self, _: &Group) -> Option<LateAnswersFuture> {
        let answer = (*self.late.lock().unwrap())?;
        Some(Box::pin(std::future::ready([answer].into_iter().collect())))
    }

    fn is_available(&self, key: &CounterKey) -> bool {
        !self.unavailable.lock().unwrap().contains(key)
    }
}

type Policy = FailurePolicy<Arc<Failing>>;

/// Replicas that share a store.
struct Scene {
    clock: Arc<ManualClock>,
    store: Arc<Failing>,
    replicas: Vec<Policy>,
    /// The number of replicas that each replica assumes.
    live: LiveReplicas,
}

impl Scene {
    /// Replicas with this `counters_max` of their local fallbacks.
    fn new(counters_max: usize) -> Self {
        let clock = Arc::new(ManualClock::at(Time::from_micros(NOON)));
        let memory = || {
            let clock: Arc<dyn Clock> = Arc::<ManualClock>::clone(&clock);
            Memory::new(MemorySettings { counters_max: 1000 }, clock)
        };
        let store = Arc::new(Failing {
            inner: memory(),
            failure: Mutex::new(Box::new(|_| None)),
            late: Mutex::default(),
            unavailable: Mutex::default(),
            charges: AtomicU64::new(0),
            groups_unavailable: AtomicU64::new(0),
        });
        let live = LiveReplicas::new(NonZeroU32::new(REPLICAS).unwrap());
        let replica = |_| {
            let local = LocalFallback { store: memory(), replicas: live.clone(), counters_max };
            FailurePolicy::new(Arc::clone(&store), Some(local))
        };
        let replicas = (0..REPLICAS).map(replica).collect();
        Self { clock, store, replicas, live }
    }

    /// Sends 1 hit to every replica, `times` times. Returns the number of admitted hits.
    async fn admitted(&self, limit: Limit, times: usize) -> u64 {
        let mut admitted = 0;
        for _ in 0..times {
            for replica in &self.replicas {
                admitted += u64::from(decide(replica, hits(limit, 1)).await.allowed);
            }
        }
        admitted
    }

    /// Sends a peek to every replica, so that each knows the remaining hits.
    async fn peek_everywhere(&self, limit: Limit) {
        for replica in &self.replicas {
            decide(replica, hits(limit, 0)).await;
        }
    }

    /// Waits until all debits are made. Returns the statistics of all replicas.
    async fn settled(&self) -> Vec<FallbackStats> {
        tokio::time::sleep(SETTLED).await;
        self.replicas.iter().map(Policy::fallback_stats).collect()
    }
}

fn hits(limit: Limit, hits: u64) -> Check {
    check("bob", limit, 0, Charge::IfAllowed(hits))
}

/// Waits until no refund is pending.
async fn until_refunded(replica: &Policy) {
    until("refunds to be made", || async { (replica.refunds_pending() == 0).then_some(()) }).await;
}

fn refund(limit: Limit, hits: u64) -> Check {
    check("bob", limit, 0, Charge::Refund { hits, receipt: None })
}

/// Runs a test with every algorithm, concurrently.
async fn each_algorithm(test: impl AsyncFn(Algorithm)) {
    join_all(Algorithm::ALL.map(|algorithm| test(algorithm))).await;
}

async fn decide(policy: &Policy, check: Check) -> Decision {
    policy.decide(Arc::from([check]), None).await.unwrap()[0]
}

#[tokio::test(start_paused = true)]
async fn used_hits_stay_used_in_every_outage() {
    each_algorithm(async |algorithm| {
        let (scene, limit) = (Scene::new(10), per_day(algorithm, 100));
        assert_eq!(scene.admitted(limit, 30).await, 100);
        for _ in 0..5 {
            scene.store.pause();
            assert_eq!(scene.admitted(limit, 10).await, 0, "{algorithm:?}");
            scene.store.resume();
            assert_eq!(scene.admitted(limit, 10).await, 0, "{algorithm:?}");
        }
        for stats in scene.settled().await {
            assert_eq!((stats.debited, stats.undebited, stats.missed), (0, 0, 0), "{algorithm:?}");
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn outages_of_one_window_admit_only_the_remaining_hits() {
    each_algorithm(async |algorithm| {
        let (scene, limit) = (Scene::new(10), per_day(algorithm, 100));
        decide(&scene.replicas[0], hits(limit, 90)).await;
        scene.peek_everywhere(limit).await;
        let mut admitted = 0;
        for outage in 0..5 {
            scene.store.pause();
            for _ in 0..7 {
                admitted += scene.admitted(limit, 1).await;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            assert!(
                admitted == 8 || outage > 0,
                "{algorithm:?}: each replica admits a quarter of 10: {admitted}"
            );
            scene.store.resume();
            // At once, before every replica has debited the hits that it admitted.
            for _ in 0..50 {
                admitted += scene.admitted(limit, 1).await;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        scene.settled().await;
        admitted += scene.admitted(limit, 10).await;
        assert_eq!(admitted, 10, "{algorithm:?}");
        assert_eq!(scene.store.left(limit).await, 0, "{algorithm:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn local_hits_are_debited_once_and_exactly() {
    each_algorithm(async |algorithm| {
        let (scene, limit) = (Scene::new(10), per_day(algorithm, 100));
        decide(&scene.replicas[0], hits(limit, 20)).await;
        scene.peek_everywhere(limit).await;
        scene.store.pause();
        assert_eq!(scene.admitted(limit, 3).await, 12);
        let undebited: u64 = scene.replicas.iter().map(|it| it.fallback_stats().undebited).sum();
        assert_eq!(undebited, 12);
        tokio::time::sleep(Duration::from_secs(1)).await;
        scene.store.resume();
        let stats = scene.settled().await;
        assert!(stats.iter().all(|it| (it.undebited, it.debited) == (0, 3)), "{stats:?}");
        assert_eq!(scene.store.left(limit).await, 100 - 20 - 12, "{algorithm:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn debit_of_unknown_outcome_is_not_sent_again() {
    let (scene, limit) = (Scene::new(10), per_day(Algorithm::FixedWindow, 100));
    scene.peek_everywhere(limit).await;
    scene.store.pause();
    assert_eq!(scene.admitted(limit, 2).await, 8);
    // Probes succeed, charges fail.
    scene.store.fail(|check| check.charge.adds_hits().then_some(StoreError::OutcomeUnknown));
    let stats = scene.settled().await;
    assert!(
        stats.iter().all(|it| (it.undebited, it.debited, it.unknown) == (0, 0, 2)),
        "{stats:?}"
    );
    scene.store.resume();
    scene.settled().await;
    assert_eq!(scene.store.charges.load(Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn debit_that_is_not_run_is_sent_again() {
    let errors = [StoreError::Unavailable, StoreError::Full, StoreError::Moved];
    join_all(errors.map(async |error| {
        let (scene, limit) = (Scene::new(10), per_day(Algorithm::FixedWindow, 100));
        scene.peek_everywhere(limit).await;
        scene.store.pause();
        assert_eq!(scene.admitted(limit, 2).await, 8);
        scene.store.fail(move |check| check.charge.adds_hits().then_some(error));
        let stats = scene.settled().await;
        assert!(stats.iter().all(|it| (it.undebited, it.debited) == (2, 0)), "{stats:?}");
        scene.store.resume();
        let stats = scene.settled().await;
        assert!(stats.iter().all(|it| (it.undebited, it.debited) == (0, 2)), "{stats:?}");
        assert_eq!(scene.store.left(limit).await, 92);
    }))
    .await;
}

#[tokio::test(start_paused = true)]
async fn hits_of_a_window_that_ended_are_not_debited() {
    let (scene, limit) = (Scene::new(10), per_day(Algorithm::FixedWindow, 100));
    scene.peek_everywhere(limit).await;
    scene.store.pause();
    assert_eq!(scene.admitted(limit, 5).await, 20);
    scene.clock.advance(Duration::from_secs(86_400));
    assert_eq!(scene.admitted(limit, 1).await, 4);
    scene.store.resume();
    let stats = scene.settled().await;
    assert!(stats.iter().all(|it| (it.undebited, it.debited) == (0, 1)), "{stats:?}");
    assert_eq!(scene.store.left(limit).await, 96);
}

#[tokio::test(start_paused = true)]
async fn after_a_few_slow_calls_the_store_decides_alone() {
    // If the machine does not schedule this test for a moment, the slow calls become an outage.
    for _ in 0..5 {
        let (scene, limit) = (Scene::new(10), per_day(Algorithm::FixedWindow, 100));
        scene.peek_everywhere(limit).await;
        scene.store.fail(|_| Some(StoreError::OutcomeUnknown));
        assert!(decide(&scene.replicas[0], hits(limit, 1)).await.allowed);
        scene.store.resume();
        tokio::time::sleep(Duration::from_millis(500)).await;
        // More hits than the share of this process.
        if decide(&scene.replicas[0], hits(limit, 99)).await.allowed {
            return;
        }
    }
    panic!("refused by this process's share in five of five cases");
}

#[tokio::test(start_paused = true)]
async fn after_an_outage_the_share_applies_until_others_debit() {
    let (scene, limit) = (Scene::new(10), per_day(Algorithm::FixedWindow, 100));
    scene.peek_everywhere(limit).await;
    scene.store.pause();
    assert!(decide(&scene.replicas[0], hits(limit, 5)).await.allowed);
    tokio::time::sleep(Duration::from_secs(1)).await;
    scene.store.resume();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let refused = decide(&scene.replicas[0], hits(limit, 21)).await;
    assert_eq!(
        (refused.allowed, refused.source, refused.remaining),
        (false, DecisionSource::LocalFallback, 20)
    );
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(scene.store.left(limit).await, 95, "the store's charge is refunded");
    assert!(decide(&scene.replicas[0], hits(limit, 20)).await.allowed);
    scene.settled().await;
    assert_eq!(scene.store.left(limit).await, 75, "the refunded hits are not debited");
    assert!(decide(&scene.replicas[0], hits(limit, 75)).await.allowed);
}

/// Other replicas that start or end during an outage do not change the share of this process.
#[tokio::test(start_paused = true)]
async fn the_share_is_kept_when_the_number_of_replicas_changes() {
    let cases = [(true, 1), (true, 5), (false, 1), (false, 5)];
    join_all(cases.map(async |(known, number)| {
        each_algorithm(async |algorithm| {
            let (scene, limit) = (Scene::new(10), per_day(algorithm, 100));
            if known {
                scene.peek_everywhere(limit).await;
            }
            scene.store.pause();
            assert_eq!(scene.admitted(limit, 20).await, 80);
            scene.live.set(NonZeroU32::new(number).unwrap());
            let case = format!("{algorithm:?}, {number} replicas, known: {known}");
            assert_eq!(scene.admitted(limit, 30).await, 20, "{case}");
            scene.store.resume();
            for stats in scene.settled().await {
                assert_eq!((stats.debited, stats.undebited), (25, 0), "{case}");
            }
            assert_eq!(scene.store.left(limit).await, 0, "{case}");
        })
        .await;
    }))
    .await;
}

/// Hits that the share admitted are refunded if the request fails afterwards.
#[tokio::test(start_paused = true)]
async fn deferred_request_charges_no_share_after_an_outage() {
    each_algorithm(async |algorithm| {
        let (scene, limit) = (Scene::new(10), per_day(algorithm, 100));
        let replica = &scene.replicas[0];
        scene.peek_everywhere(limit).await;
        scene.store.pause();
        assert!(decide(replica, hits(limit, 5)).await.allowed);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let other = check("other", limit, 1, Charge::IfAllowed(1));
        let other = Check { on_failure: OnFailure::Defer, ..other };
        let key = other.key.clone();
        scene.store.fail(move |check| (check.key == key).then_some(StoreError::Unavailable));
        tokio::time::sleep(Duration::from_millis(300)).await;
        for _ in 0..3 {
            let group = Group::from([hits(limit, 20), other.clone()]);
            assert_eq!(replica.decide(group, None).await.unwrap_err(), Deferred);
            until_refunded(replica).await;
        }
        let left = decide(replica, hits(limit, 21)).await;
        assert_eq!(
            (left.source, left.remaining),
            (DecisionSource::LocalFallback, 20),
            "{algorithm:?}"
        );
        until_refunded(replica).await;
        assert!(decide(replica, hits(limit, 20)).await.allowed, "{algorithm:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn refund_in_an_outage_reduces_the_hits_to_be_debited() {
    each_algorithm(async |algorithm| {
        let (scene, limit) = (Scene::new(10), per_day(algorithm, 100));
        let replica = &scene.replicas[0];
        scene.peek_everywhere(limit).await;
        scene.store.pause();
        assert!(decide(replica, hits(limit, 25)).await.allowed);
        assert!(decide(replica, refund(limit, 10)).await.allowed);
        assert_eq!(replica.fallback_stats().undebited, 15, "{algorithm:?}");
        assert!(decide(replica, hits(limit, 10)).await.allowed, "{algorithm:?}");
        assert!(!decide(replica, hits(limit, 1)).await.allowed, "{algorithm:?}");
        scene.store.resume();
        assert_eq!(scene.settled().await[0].debited, 25, "{algorithm:?}");
        assert_eq!(scene.store.left(limit).await, 75, "{algorithm:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn refund_that_is_not_run_is_sent_again() {
    each_algorithm(async |algorithm| {
        let (scene, limit) = (Scene::new(10), per_day(algorithm, 100));
        let replica = &scene.replicas[0];
        assert!(decide(replica, hits(limit, 50)).await.allowed);
        scene.store.pause();
        assert!(decide(replica, hits(limit, 2)).await.allowed);
        // Two of the hits are not charged yet.
        assert!(decide(replica, refund(limit, 10)).await.allowed);
        scene.store.fail(|_| Some(StoreError::OutcomeUnknown));
        *scene.store.late.lock().unwrap() = Some(Err(StoreError::Unavailable));
        assert!(decide(replica, refund(limit, 5)).await.allowed);
        scene.store.resume();
        scene.settled().await;
        assert_eq!(scene.store.left(limit).await, 63, "{algorithm:?}");
        assert_eq!((replica.refunds_pending(), replica.refunds_failed()), (0, 0), "{algorithm:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn failed_refund_of_a_caller_is_counted() {
    join_all(OnFailure::ALL.map(async |on_failure| {
        let (scene, limit) = (Scene::new(10), per_day(Algorithm::FixedWindow, 100));
        let replica = &scene.replicas[0];
        assert!(decide(replica, hits(limit, 4)).await.allowed);
        scene.store.pause();
        let refund = Check { on_failure, ..refund(limit, 4) };
        assert!(decide(replica, refund).await.allowed);
        until_refunded(replica).await;
        assert_eq!((replica.refunds_failed(), replica.hits_not_refunded()), (1, 4));
    }))
    .await;
}

/// Debits to counters of an unavailable server wait until the server is available.
#[tokio::test(start_paused = true)]
async fn debits_to_an_unavailable_server_do_not_delay_others() {
    const UNAVAILABLE: usize = 500;
    let (scene, limit) = (Scene::new(10_000), per_day(Algorithm::FixedWindow, 100));
    let replica = &scene.replicas[0];
    let named = |name: &str| check(name, limit, 0, Charge::IfAllowed(1));
    scene.store.pause();
    for number in 0..UNAVAILABLE {
        let check = named(&format!("unavailable{number}"));
        scene.store.unavailable.lock().unwrap().insert(check.key.clone());
        assert!(decide(replica, check).await.allowed);
    }
    assert!(decide(replica, named("here")).await.allowed);
    let groups_unavailable = || scene.store.groups_unavailable.load(Ordering::Relaxed);
    let before = groups_unavailable();
    scene.store.resume();
    until("a counter to be debited", || async {
        (replica.fallback_stats().debited > 0).then_some(())
    })
    .await;
    assert_eq!(
        (replica.fallback_stats().undebited, groups_unavailable()),
        (UNAVAILABLE as u64, before)
    );
    scene.store.unavailable.lock().unwrap().clear();
    until("all to be debited", || async {
        (replica.fallback_stats().undebited == 0).then_some(())
    })
    .await;
    assert_eq!(replica.fallback_stats().debited, 1 + UNAVAILABLE as u64);
}

#[tokio::test(start_paused = true)]
async fn late_answer_to_a_debit_is_counted() {
    let charged = ask(&Scene::new(0).store.inner, vec![hits(per_day(Algorithm::Gcra, 9), 1)]).await;
    // What is undebited, debited and unknown then.
    let cases = [
        (Ok(charged[0]), (0, 2, 0)),
        (Err(StoreError::OutcomeUnknown), (0, 0, 2)),
        (Err(StoreError::Unavailable), (2, 0, 0)),
    ];
    join_all(cases.map(async |(late, expected)| {
        let (scene, limit) = (Scene::new(10), per_day(Algorithm::FixedWindow, 100));
        let replica = &scene.replicas[0];
        scene.peek_everywhere(limit).await;
        scene.store.pause();
        assert!(decide(replica, hits(limit, 2)).await.allowed);
        *scene.store.late.lock().unwrap() = Some(late);
        scene.store.fail(|check| check.charge.adds_hits().then_some(StoreError::OutcomeUnknown));
        tokio::time::sleep(Duration::from_secs(1)).await;
        let stats = replica.fallback_stats();
        assert_eq!((stats.undebited, stats.debited, stats.unknown), expected, "{late:?}");
        scene.store.resume();
        scene.settled().await;
        let sent_again = expected.0;
        assert_eq!(scene.store.charges.load(Ordering::Relaxed), sent_again / 2, "{late:?}");
        assert_eq!(scene.store.left(limit).await, 100 - sent_again, "{late:?}");
        assert_eq!(replica.fallback_stats().undebited, 0);
    }))
    .await;
}

#[tokio::test(start_paused = true)]
async fn counter_that_is_being_reset_is_not_debited() {
    for is_reset in [true, false] {
        let (scene, limit) = (Scene::new(10), per_day(Algorithm::FixedWindow, 100));
        let (replica, key) = (&scene.replicas[0], [hits(limit, 1).key]);
        scene.peek_everywhere(limit).await;
        scene.store.pause();
        assert!(decide(replica, hits(limit, 5)).await.allowed);
        replica.suspend_debits(&key).await;
        scene.store.resume();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(scene.store.left(limit).await, 100);
        if is_reset {
            replica.forget(&key);
        } else {
            replica.resume_debits(&key);
        }
        scene.settled().await;
        assert_eq!(scene.store.left(limit).await, if is_reset { 100 } else { 95 });
        assert_eq!(replica.fallback_stats().undebited, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn reset_removes_known_hits_and_pending_debits() {
    let (scene, limit) = (Scene::new(10), per_day(Algorithm::FixedWindow, 100));
    assert_eq!(scene.admitted(limit, 20).await, 80);
    scene.store.pause();
    assert_eq!(scene.admitted(limit, 3).await, 12);
    let key = hits(limit, 1).key;
    for replica in &scene.replicas {
        replica.forget(std::slice::from_ref(&key));
    }
    assert!(scene.replicas.iter().all(|it| it.fallback_stats().undebited == 0));
    scene.store.resume();
    let stats = scene.settled().await;
    assert!(stats.iter().all(|it| (it.counters, it.debited) == (0, 0)), "{stats:?}");
}

#[tokio::test(start_paused = true)]
async fn the_shutdown_debits_first() {
    let (scene, limit) = (Scene::new(10), per_day(Algorithm::FixedWindow, 100));
    scene.peek_everywhere(limit).await;
    scene.store.pause();
    assert_eq!(scene.admitted(limit, 1).await, 4);
    scene.store.resume();
    scene.replicas[0].finish().await;
    assert_eq!(scene.replicas[0].fallback_stats().debited, 1);
}

#[tokio::test(start_paused = true)]
async fn debits_beyond_their_bound_are_counted() {
    let (scene, limit) = (Scene::new(2), per_day(Algorithm::FixedWindow, 100));
    scene.store.pause();
    for name in ["a", "b", "c", "a"] {
        let check = check(name, limit, 0, Charge::IfAllowed(2));
        assert!(decide(&scene.replicas[0], check).await.allowed);
    }
    let stats = scene.replicas[0].fallback_stats();
    assert_eq!((stats.undebited, stats.dropped, stats.missed), (6, 2, 4));
}

#[tokio::test(start_paused = true)]
async fn without_a_table_local_counters_start_unused() {
    let (scene, limit) = (Scene::new(0), per_day(Algorithm::FixedWindow, 100));
    assert_eq!(scene.admitted(limit, 30).await, 100);
    scene.store.pause();
    assert_eq!(scene.admitted(limit, 30).await, 100);
    scene.store.resume();
    for stats in scene.settled().await {
        assert_eq!(stats, FallbackStats::default());
    }
}
