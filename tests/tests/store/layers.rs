//! Tests of the failure policy and the deny cache.

use std::{
    num::NonZeroU32,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use sluicegate_core::{
    Algorithm, Answers, Batch, Charge, Check, CounterKey, Decision, Limit, OnFailure, Store,
    StoreError, Time, Window,
    store::{self, DecisionSource, Group, RefusalScope},
};
use sluicegate_store::{
    Clock, Deferred, DenyCache, FailurePolicy, LiveReplicas, LocalFallback, Memory, MemorySettings,
};
use sluicegate_tests::{self as harness, ManualClock};
use tokio::sync::{Semaphore, oneshot};

use crate::conformance::{self, ask, check, per_day};

fn memory() -> Memory<Arc<dyn Clock>> {
    let clock = ManualClock::at(Time::from_micros(1_800_000_000_000_000));
    Memory::new(MemorySettings { counters_max: 10_000 }, Arc::new(clock))
}

fn local(replicas: u32) -> LocalFallback {
    let replicas = LiveReplicas::new(NonZeroU32::new(replicas).unwrap());
    LocalFallback { store: memory(), replicas, counters_max: 0 }
}

fn daily(requests: u32) -> Limit {
    per_day(Algorithm::FixedWindow, requests)
}

// === Failure policy ===

/// Implements `Store` for the failure policy, which is not a store.
struct PolicyStore<S>(FailurePolicy<S>);

impl<S: Store> Store for PolicyStore<S> {
    async fn decide(&self, batch: Batch) -> Answers {
        let mut answers = Answers::new();
        for group in batch.groups {
            answers.extend(self.0.decide(group, batch.deadline).await.unwrap().into_iter().map(Ok));
        }
        answers
    }
}

/// A store that fails checks of the limits of [`dead`].
struct Half {
    inner: Memory<Arc<dyn Clock>>,
    error: StoreError,
}

/// A limit whose checks fail in [`Half`].
fn dead(requests: u32) -> Limit {
    per_day(Algorithm::Gcra, requests)
}

impl Store for Half {
    async fn decide(&self, batch: Batch) -> Answers {
        let mut answers = Answers::new();
        for group in batch.groups {
            let lives = |check: &&Check| check.limit.algorithm() != Algorithm::Gcra;
            let asked = group.iter().filter(lives).cloned().collect();
            let mut asked =
                self.inner.decide(Batch::single(asked, batch.deadline)).await.into_iter();
            answers.extend(group.iter().map(|check| match lives(&check) {
                true => asked.next().unwrap(),
                false => Err(self.error),
            }));
        }
        answers
    }
}

fn half(error: StoreError, local: Option<LocalFallback>) -> FailurePolicy<Half> {
    FailurePolicy::new(Half { inner: memory(), error }, local)
}

fn on(on_failure: OnFailure, check: Check) -> Check {
    Check { on_failure, ..check }
}

fn one(name: &str, limit: Limit) -> Check {
    check(name, limit, 0, Charge::IfAllowed(1))
}

/// Sends checks, each of its own descriptor, to the policy.
async fn decided(
    policy: &FailurePolicy<Half>,
    checks: Vec<Check>,
) -> Result<Vec<Decision>, Deferred> {
    let numbered = checks.into_iter().enumerate();
    let group = numbered.map(|(descriptor, check)| Check { descriptor, ..check }).collect();
    Ok(policy.decide(group, None).await?.into_vec())
}

/// Waits for pending refunds. Returns the remaining hits of a counter that does not fail.
async fn left(policy: &FailurePolicy<Half>, name: &str, limit: Limit) -> u64 {
    tokio::time::sleep(Duration::from_millis(20)).await;
    ask(&policy.inner().inner, vec![check(name, limit, 0, Charge::IfAllowed(0))]).await[0].remaining
}

#[tokio::test(flavor = "multi_thread")]
async fn the_failure_policy_conforms() {
    conformance::suite(async || PolicyStore(FailurePolicy::new(memory(), Some(local(2))))).await;
}

#[tokio::test]
async fn every_policy_answers_for_a_failed_store() {
    for error in [StoreError::Unavailable, StoreError::OutcomeUnknown] {
        let policy = half(error, Some(local(2)));
        let answered = async |how, name: &str| {
            let decisions = decided(&policy, vec![on(how, one(name, dead(4)))]).await;
            decisions.map(|it| (it[0].allowed, it[0].source))
        };
        assert_eq!(
            answered(OnFailure::Allow, "a").await,
            Ok((true, DecisionSource::FailurePolicy))
        );
        assert_eq!(
            answered(OnFailure::Deny, "b").await,
            Ok((false, DecisionSource::FailurePolicy))
        );
        assert_eq!(answered(OnFailure::Defer, "c").await, Err(Deferred));
        for allowed in [true, true, false] {
            let (passed, source) = answered(OnFailure::Local, "d").await.unwrap();
            assert_eq!(
                (passed, source),
                (allowed, DecisionSource::LocalFallback),
                "the share of one of two replicas: half of 4"
            );
        }
        assert_eq!(policy.checks_unanswered(), 6);
    }
}

#[tokio::test]
async fn policies_for_a_full_store_neither_count_nor_fail() {
    let policy = half(StoreError::Full, Some(local(1)));
    for (how, allowed) in [
        (OnFailure::Local, false),
        (OnFailure::Deny, false),
        (OnFailure::Defer, false),
        (OnFailure::Allow, true),
    ] {
        let decisions = decided(&policy, vec![on(how, one("a", dead(4)))]).await.unwrap();
        assert_eq!(
            (decisions[0].allowed, decisions[0].source),
            (allowed, DecisionSource::FailurePolicy)
        );
    }
    let shadow =
        Check { refusal_scope: RefusalScope::None, ..on(OnFailure::Defer, one("a", dead(4))) };
    assert!(decided(&policy, vec![shadow, one("b", daily(1))]).await.unwrap()[1].allowed);
}

#[tokio::test]
async fn charges_are_refunded_when_a_policy_refuses() {
    let wide = daily(10);
    for on_failure in [OnFailure::Deny, OnFailure::Defer] {
        let policy = half(StoreError::Unavailable, Some(local(1)));
        let chain = || vec![one("wide", wide), on(on_failure, one("x", dead(1)))];
        let decisions = decided(&policy, chain()).await;
        if let Ok(decisions) = decisions {
            assert_eq!((decisions[0].charged, decisions[0].remaining), (0, 10));
        }
        assert_eq!(left(&policy, "wide", wide).await, 10, "{on_failure:?}");
        assert_eq!(policy.refunds_failed(), 0);
    }
    let policy = half(StoreError::Unavailable, Some(local(1)));
    let chain = || vec![one("wide", wide), one("x", dead(1))];
    assert!(decided(&policy, chain()).await.unwrap().iter().all(|it| it.allowed));
    let refused = decided(&policy, chain()).await.unwrap();
    assert_eq!((refused[1].allowed, refused[1].source), (false, DecisionSource::LocalFallback));
    assert_eq!(left(&policy, "wide", wide).await, 9, "only allowed requests are charged");
}

#[tokio::test]
async fn a_debit_stays_charged_under_every_policy() {
    let wide = daily(10);
    let policy = half(StoreError::Unavailable, None);
    let debit = check("wide", wide, 0, Charge::Always { hits: 3, needs: 1 });
    let denied = on(OnFailure::Deny, one("x", dead(1)));
    assert!(decided(&policy, vec![debit, denied]).await.is_ok());
    assert_eq!(left(&policy, "wide", wide).await, 7);
}

#[tokio::test]
async fn refusal_precedes_defer_and_defer_precedes_ok() {
    let policy = half(StoreError::Unavailable, Some(local(1)));
    let (deny, defer, allow) = (
        || on(OnFailure::Deny, one("a", dead(1))),
        || on(OnFailure::Defer, one("b", dead(1))),
        || on(OnFailure::Allow, one("c", dead(1))),
    );
    let decisions = decided(&policy, vec![defer(), deny(), allow()]).await.unwrap();
    let allowed: Vec<_> = decisions.iter().map(|it| it.allowed).collect();
    assert_eq!(allowed, [true, false, true]);
    assert_eq!(decided(&policy, vec![allow(), defer()]).await, Err(Deferred));
    // A refusal by the store, and one by the local fallback, which decides last.
    let spent = daily(0);
    assert!(decided(&policy, vec![defer(), one("spent", spent)]).await.is_ok());
    let here = || one("here", dead(1));
    assert_eq!(decided(&policy, vec![here(), defer()]).await, Err(Deferred));
    assert!(
        decided(&policy, vec![here()]).await.unwrap()[0].allowed,
        "the local charge was refunded, too"
    );
    assert!(decided(&policy, vec![here(), defer()]).await.is_ok());
}

#[tokio::test]
async fn local_charges_are_refunded_in_full() {
    // The hits charged to the share, not to the whole limit.
    let policy = half(StoreError::Unavailable, Some(local(2)));
    let here = || one("here", dead(4));
    for _ in 0..5 {
        let defer = on(OnFailure::Defer, one("b", dead(1)));
        assert_eq!(decided(&policy, vec![here(), defer]).await, Err(Deferred));
    }
    for allowed in [true, true, false] {
        assert_eq!(decided(&policy, vec![here()]).await.unwrap()[0].allowed, allowed);
    }
}

#[tokio::test]
async fn a_local_quota_over_its_limit_alone_refunds_nothing() {
    let policy = half(StoreError::Unavailable, Some(local(1)));
    let quota = |check| Check { refusal_scope: RefusalScope::Quota, ..check };
    let group =
        || vec![quota(one("living", daily(100))), quota(one("over", dead(0))), one("own", dead(2))];
    for allowed in [true, true, false] {
        assert_eq!(decided(&policy, group()).await.unwrap()[2].allowed, allowed);
    }
    assert_eq!(left(&policy, "living", daily(100)).await, 98);
}

#[tokio::test]
async fn a_refused_request_charges_no_local_counter() {
    let policy = half(StoreError::Unavailable, Some(local(1)));
    let refused = decided(&policy, vec![one("here", dead(1)), one("spent", daily(0))]).await;
    assert_eq!(refused.unwrap()[0].source, DecisionSource::NotAsked);
    assert!(decided(&policy, vec![one("here", dead(1))]).await.unwrap()[0].allowed);
}

#[tokio::test]
async fn shadow_rules_neither_refuse_nor_defer() {
    let policy = half(StoreError::Unavailable, None);
    for on_failure in OnFailure::ALL {
        let shadow =
            Check { refusal_scope: RefusalScope::None, ..on(on_failure, one("s", dead(1))) };
        let decisions = decided(&policy, vec![one("wide", daily(10)), shadow]).await.unwrap();
        assert_eq!(decisions[0].charged, 1, "{on_failure:?}");
    }
}

#[tokio::test]
async fn a_refund_is_never_refused() {
    let policy = half(StoreError::Unavailable, None);
    for on_failure in OnFailure::ALL {
        let refund = check("r", dead(1), 0, Charge::Refund { hits: 1, receipt: None });
        assert!(decided(&policy, vec![on(on_failure, refund)]).await.unwrap()[0].allowed);
    }
}

/// A store in memory that answers late while `is_late` is set.
struct LateStore {
    inner: Memory<Arc<dyn Clock>>,
    is_late: AtomicBool,
    kept: Mutex<Option<Answers>>,
}

impl LateStore {
    fn new() -> Self {
        Self { inner: memory(), is_late: AtomicBool::new(false), kept: Mutex::default() }
    }
}

impl Store for LateStore {
    async fn decide(&self, batch: Batch) -> Answers {
        let has_refund =
            |group: &Group| group.iter().any(|it| matches!(it.charge, Charge::Refund { .. }));
        let is_request = !batch.groups.iter().any(has_refund);
        let answers = self.inner.decide(batch).await;
        if !self.is_late.load(Ordering::SeqCst) || !is_request {
            return answers;
        }
        let unknown = answers.iter().map(|_| Err(StoreError::OutcomeUnknown)).collect();
        *self.kept.lock().unwrap() = Some(answers);
        unknown
    }

    fn late_answers(&self, _: &Group) -> Option<store::LateAnswersFuture> {
        let answers = self.kept.lock().unwrap().take()?;
        Some(Box::pin(std::future::ready(answers)))
    }
}

/// Waits until late answers are settled. Returns the remaining hits of a counter.
async fn left_late(policy: &FailurePolicy<DenyCache<LateStore>>, name: &str, limit: Limit) -> u64 {
    harness::until("late answers to be settled", || async {
        (policy.refunds_pending() == 0 && policy.fallback_stats().undebited == 0).then_some(())
    })
    .await;
    let peek = vec![check(name, limit, 0, Charge::IfAllowed(0))];
    ask(&policy.inner().inner().inner, peek).await[0].remaining
}

/// A policy that debits the hits of the local fallback, or does not if `counters_max` is 0.
fn answering_late(counters_max: usize) -> FailurePolicy<DenyCache<LateStore>> {
    let local = LocalFallback { counters_max, ..local(1) };
    FailurePolicy::new(DenyCache::new(LateStore::new(), 100), Some(local))
}

#[tokio::test]
async fn late_charge_of_a_failed_request_or_descriptor_is_refunded() {
    let limit = daily(10);
    let shadow = |check| Check { refusal_scope: RefusalScope::None, ..check };
    let second = |check| Check { descriptor: 1, ..check };
    let (a, b) = (|how| on(how, one("a", limit)), |how| on(how, one("b", limit)));
    use OnFailure::{Allow, Defer, Deny, Local};
    // The remaining hits of `a` and `b`.
    let cases = [
        (vec![a(Allow), second(b(Allow))], (9, 9)),
        (vec![a(Allow), second(b(Deny))], (10, 10)),
        (vec![a(Allow), second(b(Defer))], (10, 10)),
        // Debited, or not refunded: charged once.
        (vec![a(Allow), second(b(Local))], (9, 9)),
        // Only the descriptor of `b` is over its limit.
        (vec![a(Allow), second(shadow(b(Deny)))], (9, 10)),
        (vec![shadow(a(Allow)), shadow(b(Deny))], (10, 10)),
    ];
    for (counters_max, (group, left)) in
        [0, 10].into_iter().flat_map(|it| cases.clone().map(|case| (it, case)))
    {
        let policy = answering_late(counters_max);
        policy.inner().inner().is_late.store(true, Ordering::SeqCst);
        let _decided = policy.decide(group.clone().into(), None).await;
        policy.inner().inner().is_late.store(false, Ordering::SeqCst);
        let of_both = (left_late(&policy, "a", limit).await, left_late(&policy, "b", limit).await);
        assert_eq!(of_both, left, "{group:?}");
        assert_eq!((policy.refunds_failed(), policy.hits_not_refunded()), (0, 0));
    }
}

/// If the deny cache refuses, only unconditional checks go to the store. Their late answers get their original
/// positions.
#[tokio::test]
async fn late_answers_pass_the_deny_cache() {
    for counters_max in [0, 10] {
        late_answer_passes_the_deny_cache(&answering_late(counters_max)).await;
    }
}

async fn late_answer_passes_the_deny_cache(policy: &FailurePolicy<DenyCache<LateStore>>) {
    let spent = || one("spent", daily(1));
    let debit = Check {
        charge: Charge::Always { hits: 4, needs: 1 },
        descriptor: 1,
        ..on(OnFailure::Local, one("debit", daily(10)))
    };
    for allowed in [true, false] {
        let decisions = policy.decide([spent()].into(), None).await.unwrap();
        assert_eq!(decisions[0].allowed, allowed);
    }
    policy.inner().inner().is_late.store(true, Ordering::SeqCst);
    let decisions = policy.decide([spent(), debit].into(), None).await.unwrap();
    assert_eq!(decisions[0].source, DecisionSource::DenyCache);
    assert_eq!((decisions[1].source, decisions[1].remaining), (DecisionSource::LocalFallback, 6));
    policy.inner().inner().is_late.store(false, Ordering::SeqCst);
    assert_eq!(left_late(policy, "debit", daily(10)).await, 6, "charged once");
}

/// A store that makes refunds only when `go` has a permit, and answers them late.
struct LateRefunds {
    inner: Arc<Memory<Arc<dyn Clock>>>,
    go: Arc<Semaphore>,
    kept: Mutex<Option<oneshot::Receiver<Answers>>>,
}

impl Store for LateRefunds {
    async fn decide(&self, batch: Batch) -> Answers {
        let checks = batch.groups.iter().flat_map(|group| group.iter());
        if !checks.clone().any(|it| matches!(it.charge, Charge::Refund { .. })) {
            return self.inner.decide(batch).await;
        }
        let unknown = checks.map(|_| Err(StoreError::OutcomeUnknown)).collect();
        let (sender, receiver) = oneshot::channel();
        let (inner, go) = (Arc::clone(&self.inner), Arc::clone(&self.go));
        tokio::spawn(async move {
            go.acquire().await.unwrap().forget();
            sender.send(inner.decide(batch).await)
        });
        *self.kept.lock().unwrap() = Some(receiver);
        unknown
    }

    fn late_answers(&self, _: &Group) -> Option<store::LateAnswersFuture> {
        let kept = self.kept.lock().unwrap().take()?;
        Some(Box::pin(async { kept.await.unwrap() }))
    }
}

#[tokio::test]
async fn refusal_older_than_a_late_refund_is_not_cached() {
    let store = LateRefunds {
        inner: Arc::new(memory()),
        go: Arc::new(Semaphore::new(0)),
        kept: Mutex::default(),
    };
    let policy = FailurePolicy::new(DenyCache::new(store, 100), None);
    let asked = async |check| policy.decide([check].into(), None).await.unwrap()[0];
    assert!(asked(one("k", daily(1))).await.allowed);
    // A refund by a caller, and one by the layer because another slot has refused.
    let receipt = asked(one("other", daily(1))).await.receipt;
    for (name, receipt) in [("k", None), ("other", receipt)] {
        let refund = check(name, daily(1), 0, Charge::Refund { hits: 1, receipt });
        assert!(asked(refund).await.allowed);
        assert_eq!(asked(one(name, daily(1))).await.source, DecisionSource::Store);
        assert_eq!(asked(one(name, daily(1))).await.source, DecisionSource::DenyCache);
        policy.inner().inner().go.add_permits(1);
        harness::until("the late answer to the refund", || async {
            (policy.refunds_pending() == 0).then_some(())
        })
        .await;
        assert!(asked(one(name, daily(1))).await.allowed);
    }
}

/// A store that is unavailable for this number of refunds.
struct FailingRefunds(Half, AtomicUsize);

impl Store for FailingRefunds {
    async fn decide(&self, batch: Batch) -> Answers {
        let is_refund = |check: &Check| matches!(check.charge, Charge::Refund { .. });
        let checks = || batch.groups.iter().flat_map(|group| group.iter());
        let decrement = |left: usize| left.checked_sub(1);
        let count = || self.1.fetch_update(Ordering::SeqCst, Ordering::SeqCst, decrement);
        if checks().any(is_refund) && count().is_ok() {
            return checks().map(|_| Err(StoreError::Unavailable)).collect();
        }
        self.0.decide(batch).await
    }
}

#[tokio::test]
async fn refunds_that_were_not_run_are_retried() {
    let half = Half { inner: memory(), error: StoreError::Unavailable };
    let policy = FailurePolicy::new(FailingRefunds(half, AtomicUsize::new(2)), None);
    let limit = daily(10);
    let refused = Check { descriptor: 1, ..on(OnFailure::Deny, one("x", dead(1))) };
    policy.decide([one("a", limit), refused].into(), None).await.unwrap();
    harness::until("it to be given back", || async {
        (policy.refunds_pending() == 0).then_some(())
    })
    .await;
    assert_eq!(policy.inner().1.load(Ordering::SeqCst), 0);
    let peek = vec![check("a", limit, 0, Charge::IfAllowed(0))];
    assert_eq!(ask(&policy.inner().0.inner, peek).await[0].remaining, 10);
    assert_eq!((policy.refunds_failed(), policy.hits_not_refunded()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn failed_refunds_are_counted() {
    let half = Half { inner: memory(), error: StoreError::Unavailable };
    let policy = FailurePolicy::new(FailingRefunds(half, usize::MAX.into()), None);
    let refused = Check { descriptor: 1, ..on(OnFailure::Deny, one("x", dead(1))) };
    let taken = check("a", daily(10), 0, Charge::IfAllowed(3));
    policy.decide([taken, refused].into(), None).await.unwrap();
    harness::until("it to be given up", || async { (policy.refunds_pending() == 0).then_some(()) })
        .await;
    assert_eq!((policy.refunds_failed(), policy.hits_not_refunded()), (1, 3));
}

// === Deny cache ===

/// A store that counts the checks that reach it.
struct Asked {
    inner: Memory<Arc<dyn Clock>>,
    checks: AtomicUsize,
}

impl Store for Asked {
    async fn decide(&self, batch: Batch) -> Answers {
        let checks = batch.groups.iter().map(|group| group.len()).sum();
        self.checks.fetch_add(checks, Ordering::Relaxed);
        self.inner.decide(batch).await
    }
}

fn named(name: &str) -> CounterKey {
    check(name, daily(1), 0, Charge::IfAllowed(1)).key
}

fn cache(entries: usize) -> DenyCache<Asked> {
    DenyCache::new(Asked { inner: memory(), checks: AtomicUsize::new(0) }, entries)
}

/// Number of checks that have reached the store since the last call of this function.
fn asked(cache: &DenyCache<Asked>) -> usize {
    cache.inner().checks.swap(0, Ordering::Relaxed)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_deny_cache_conforms() {
    conformance::suite(async || DenyCache::new(memory(), 1_000)).await;
    conformance::suite(async || DenyCache::new(memory(), 0)).await;
}

#[tokio::test]
async fn a_cached_refusal_is_repeated_without_a_call() {
    let cache = cache(100);
    let hits = async |hits| {
        let decision = ask(&cache, vec![check("k", daily(3), 0, Charge::IfAllowed(hits))]).await[0];
        (decision.allowed, decision.source, asked(&cache))
    };
    assert_eq!(hits(2).await, (true, DecisionSource::Store, 1));
    assert_eq!(hits(2).await, (false, DecisionSource::Store, 1));
    assert_eq!(hits(2).await, (false, DecisionSource::DenyCache, 0));
    assert_eq!(
        hits(9).await,
        (false, DecisionSource::DenyCache, 0),
        "more hits are refused from the cache"
    );
    assert_eq!(
        hits(1).await,
        (true, DecisionSource::Store, 1),
        "fewer hits are checked, because they may pass"
    );
    assert_eq!(hits(0).await, (false, DecisionSource::Store, 1), "a peek shows a refusal of 1 hit");
    assert_eq!(hits(1).await, (false, DecisionSource::DenyCache, 0));
}

#[tokio::test]
async fn a_chain_with_a_cached_refusal_sends_only_debits() {
    let cache = cache(100);
    let chain = || {
        vec![
            check("other", daily(9), 0, Charge::IfAllowed(1)),
            check("spent", daily(0), 1, Charge::IfAllowed(1)),
            check("debit", daily(9), 2, Charge::Always { hits: 1, needs: 1 }),
            check("refund", daily(9), 3, Charge::Refund { hits: 1, receipt: None }),
        ]
    };
    ask(&cache, chain()).await;
    assert_eq!(asked(&cache), 4);
    let decisions = ask(&cache, chain()).await;
    let sources: Vec<_> = decisions.iter().map(|it| it.source).collect();
    assert_eq!(
        sources,
        [
            DecisionSource::NotAsked,
            DecisionSource::DenyCache,
            DecisionSource::Store,
            DecisionSource::Store
        ]
    );
    assert_eq!(asked(&cache), 2);
    assert_eq!(decisions[2].remaining, 7, "the debit was made twice");
}

#[tokio::test(start_paused = true)]
async fn cached_refusals_expire_when_they_may_no_longer_apply() {
    let cache = cache(100);
    let one = async |limit| {
        ask(&cache, vec![check("k", limit, 0, Charge::IfAllowed(1))]).await;
        asked(&cache)
    };
    let refund = async || {
        ask(&cache, vec![check("k", daily(1), 0, Charge::Refund { hits: 1, receipt: None })]).await;
        asked(&cache);
    };
    assert_eq!([one(daily(1)).await, one(daily(1)).await, one(daily(1)).await], [1, 1, 0]);
    assert_eq!(one(daily(2)).await, 1, "a refusal of another limit does not count");
    assert_eq!(one(daily(1)).await, 0);
    refund().await;
    assert_eq!(one(daily(1)).await, 1, "a refund removes the refusal");
    assert_eq!(one(daily(1)).await, 0);
    cache.clear();
    assert_eq!(one(daily(1)).await, 1);
    assert_eq!(one(daily(1)).await, 0);
    cache.invalidate(&[named("other")]);
    assert_eq!(one(daily(1)).await, 0, "another counter was reset");
    cache.invalidate(&[named("k")]);
    assert_eq!(one(daily(1)).await, 1);
    assert_eq!(one(daily(1)).await, 0);
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    assert_eq!(one(daily(1)).await, 1, "other processes may have made refunds");
}

/// A store that decides at once, but answers checks other than refunds only when there are permits.
struct Late {
    inner: Memory<Arc<dyn Clock>>,
    permits: Semaphore,
}

impl Store for Late {
    async fn decide(&self, batch: Batch) -> Answers {
        let is_refund = |check: &Check| matches!(check.charge, Charge::Refund { .. });
        let is_held = !batch.groups.iter().flat_map(|group| group.iter()).all(is_refund);
        let answers = self.inner.decide(batch).await;
        if is_held {
            self.permits.acquire().await.unwrap().forget();
        }
        answers
    }
}

fn late(permits: usize) -> DenyCache<Late> {
    DenyCache::new(Late { inner: memory(), permits: Semaphore::new(permits) }, 100)
}

#[tokio::test]
async fn a_refusal_that_arrives_after_a_refund_is_not_cached() {
    let cache = late(1);
    assert!(ask(&cache, vec![one("k", daily(1))]).await[0].allowed);
    let mut refused = Box::pin(ask(&cache, vec![one("k", daily(1))]));
    assert!(futures::poll!(&mut refused).is_pending());
    let refund = Charge::Refund { hits: 1, receipt: None };
    ask(&cache, vec![check("k", daily(1), 0, refund)]).await;
    cache.inner().permits.add_permits(2);
    assert!(!refused.await[0].allowed);
    assert!(ask(&cache, vec![one("k", daily(1))]).await[0].allowed, "a hit was refunded");
}

#[tokio::test]
async fn a_refusal_that_arrives_after_a_reset_is_not_cached() {
    let cache = late(1);
    assert!(ask(&cache, vec![one("k", daily(1))]).await[0].allowed);
    for invalidate in [|cache: &DenyCache<Late>| cache.invalidate(&[named("k")]), DenyCache::clear]
    {
        let mut refused = Box::pin(ask(&cache, vec![one("k", daily(1))]));
        assert!(futures::poll!(&mut refused).is_pending());
        invalidate(&cache);
        cache.inner().permits.add_permits(1);
        assert!(!refused.await[0].allowed);
        assert!(cache.is_empty());
    }
}

#[tokio::test]
async fn a_late_refusal_is_cached_no_longer_than_its_window() {
    let cache = late(0);
    let wait = Duration::from_millis(200);
    // The limit allows a hit every 100 ms.
    let limit = Limit::new(Algorithm::Gcra, 600, Window::from_seconds(60).unwrap(), None).unwrap();
    let spent = Box::pin(ask(&cache, vec![check("k", limit, 0, Charge::IfAllowed(600))]));
    let refused = Box::pin(ask(&cache, vec![one("k", limit)]));
    let ((), spent, refused) = tokio::join!(
        async {
            tokio::time::sleep(wait).await;
            cache.inner().permits.add_permits(2);
        },
        spent,
        refused
    );
    assert!(spent[0].allowed && !refused[0].allowed);
    assert!(refused[0].retry_after.unwrap() < wait);
    let mut again = Box::pin(ask(&cache, vec![one("k", limit)]));
    assert!(futures::poll!(&mut again).is_pending(), "the cache answers without a call");
}

#[tokio::test]
async fn a_refusal_by_hits_of_its_own_request_is_not_cached() {
    for (limit, hits) in [(1, 1), (5, 3)] {
        let cache = cache(100);
        let twice = |at| check("k", daily(limit), at, Charge::IfAllowed(hits));
        let decisions = ask(&cache, vec![twice(0), twice(1)]).await;
        assert!(!decisions[1].allowed);
        assert!(ask(&cache, vec![twice(0)]).await[0].allowed, "no refusal was cached");
    }
}

#[tokio::test]
async fn rules_that_do_not_refuse_alone_are_always_checked() {
    let cache = cache(100);
    for scope in [RefusalScope::None, RefusalScope::Quota] {
        for _ in 0..3 {
            let spent =
                Check { refusal_scope: scope, ..check("k", daily(0), 0, Charge::IfAllowed(1)) };
            ask(&cache, vec![spent]).await;
            assert_eq!(asked(&cache), 1);
        }
    }
    assert!(cache.is_empty());
}

#[tokio::test]
async fn the_deny_cache_is_bounded() {
    let cache = cache(50);
    for name in 0..500 {
        ask(&cache, vec![check(&name.to_string(), daily(0), 0, Charge::IfAllowed(1))]).await;
    }
    assert!(cache.len() <= 50, "{}", cache.len());
}
