//! Tests of the layer that sends concurrent requests together.

use std::{
    num::NonZeroUsize,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use futures::future::join_all;
use sluicegate_core::{
    Algorithm, Answers, Batch, Charge, Check, CounterKey, Decision, Limit, Store, StoreError, Time,
    Window,
    store::{Group, LateAnswersFuture, RefusalScope},
};
use sluicegate_store::{
    BATCH_CHECKS_MAX, BatchAnswers, Coalesce, CounterLocation, Memory, MemorySettings,
    OnRedirection, QueuedStore, WAITING_GROUPS_MAX,
};
use sluicegate_tests::{self as harness, ManualClock};
use tokio::sync::Semaphore;

use crate::{
    conformance::{self, ask, check, per_day},
    redis::store,
};

/// A store in memory that records its calls, and answers only as many as it has permits for.
struct Gate {
    inner: Memory<Arc<ManualClock>>,
    clock: Arc<ManualClock>,
    /// Permits of answers.
    open: Semaphore,
    /// Number of checks of each call.
    calls: Mutex<Vec<usize>>,
    /// Microseconds by which each call advances the clock.
    pace: AtomicU64,
    locations: fn(&CounterKey) -> CounterLocation,
}

const fn one_location(_: &CounterKey) -> CounterLocation {
    CounterLocation { queue: 0, slot: 0 }
}

impl Gate {
    fn new(open: usize, locations: fn(&CounterKey) -> CounterLocation) -> Self {
        let clock = Arc::new(ManualClock::at(Time::from_micros(1_800_000_000_000_000)));
        let inner = Memory::new(MemorySettings { counters_max: 100_000 }, Arc::clone(&clock));
        Self {
            inner,
            clock,
            open: Semaphore::new(open),
            calls: Mutex::default(),
            pace: AtomicU64::new(0),
            locations,
        }
    }
}

impl Store for Gate {
    async fn decide(&self, batch: Batch) -> Answers {
        self.calls.lock().unwrap().push(batch.groups.iter().map(|group| group.len()).sum());
        let _closed = self.open.acquire().await.map(tokio::sync::SemaphorePermit::forget);
        self.clock.advance(Duration::from_micros(self.pace.load(Ordering::Relaxed)));
        self.inner.decide(batch).await
    }
}

impl QueuedStore for Gate {
    fn location(&self, key: &CounterKey) -> CounterLocation {
        (self.locations)(key)
    }
}

const ONE: NonZeroUsize = NonZeroUsize::MIN;

/// A layer whose store answers the first `open` calls.
fn gated(open: usize) -> Arc<Coalesce<Gate>> {
    Arc::new(Coalesce::new(Gate::new(open, one_location), ONE))
}

/// Sends a group from a task of its own.
fn asking(
    layer: &Arc<Coalesce<Gate>>,
    group: Vec<Check>,
    deadline: Option<Instant>,
) -> tokio::task::JoinHandle<Answers> {
    let layer = Arc::clone(layer);
    tokio::spawn(async move { layer.decide(Batch::single(group.into(), deadline)).await })
}

/// Waits until `count` groups wait for a call.
async fn until_waiting(layer: &Coalesce<Gate>, count: usize) {
    harness::until("groups to wait", || async { (layer.groups_waiting() == count).then_some(()) })
        .await;
}

/// Sends a group that keeps the queue busy.
async fn busy(layer: &Arc<Coalesce<Gate>>) -> tokio::task::JoinHandle<Answers> {
    let before = layer.inner().calls.lock().unwrap().len();
    let first = asking(layer, vec![one("first", 1_000_000)], None);
    harness::until("the first call", || async {
        (layer.inner().calls.lock().unwrap().len() > before).then_some(())
    })
    .await;
    first
}

fn one(name: &str, requests: u32) -> Check {
    check(name, per_day(Algorithm::FixedWindow, requests), 0, Charge::IfAllowed(1))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_layer_conforms_over_memory() {
    let open = Semaphore::MAX_PERMITS;
    for calls_max in [1, 3] {
        let calls_max = NonZeroUsize::new(calls_max).unwrap();
        conformance::suite(async || Coalesce::new(Gate::new(open, one_location), calls_max)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_layer_conforms_over_one_server() {
    let redis = harness::Redis::start().await;
    conformance::suite(async || Coalesce::new(store(&redis.url()).await, ONE)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_layer_conforms_over_a_cluster() {
    let cluster = harness::Cluster::start().await;
    let calls_max = NonZeroUsize::new(2).unwrap();
    conformance::suite(async || Coalesce::new(store(&cluster.url()).await, calls_max)).await;
}

#[tokio::test]
async fn requests_during_a_call_form_the_next_call() {
    let layer = gated(0);
    let first = busy(&layer).await;
    let others: Vec<_> = (0..20)
        .map(|n| asking(&layer, vec![one(&n.to_string(), 1), one("common", 100)], None))
        .collect();
    until_waiting(&layer, 20).await;
    layer.inner().open.add_permits(2);
    for answers in join_all(others).await {
        assert!(answers.unwrap().iter().all(|answer| answer.unwrap().allowed));
    }
    first.await.unwrap();
    assert_eq!(*layer.inner().calls.lock().unwrap(), [1, 40]);
}

#[tokio::test]
async fn the_checks_of_a_call_are_bounded() {
    let layer = gated(0);
    let first = busy(&layer).await;
    let others: Vec<_> = (0..=BATCH_CHECKS_MAX)
        .map(|n| asking(&layer, vec![one(&n.to_string(), 1)], None))
        .collect();
    until_waiting(&layer, BATCH_CHECKS_MAX + 1).await;
    layer.inner().open.add_permits(3);
    join_all(others).await;
    first.await.unwrap();
    assert_eq!(*layer.inner().calls.lock().unwrap(), [1, BATCH_CHECKS_MAX, 1]);
}

#[tokio::test]
async fn a_group_larger_than_the_bound_is_sent_alone() {
    let layer = gated(0);
    let first = busy(&layer).await;
    let long: Vec<_> = (0..=BATCH_CHECKS_MAX).map(|n| one(&n.to_string(), 1)).collect();
    let mut others = Vec::new();
    for (waiting, group) in
        [vec![one("before", 1)], long, vec![one("after", 1)]].into_iter().enumerate()
    {
        others.push(asking(&layer, group, None));
        until_waiting(&layer, waiting + 1).await;
    }
    layer.inner().open.add_permits(4);
    for answers in join_all(others).await {
        assert!(answers.unwrap().iter().all(|answer| answer.unwrap().allowed));
    }
    first.await.unwrap();
    assert_eq!(*layer.inner().calls.lock().unwrap(), [1, 1, BATCH_CHECKS_MAX + 1, 1]);
}

#[tokio::test]
async fn requests_beyond_the_queue_bound_fail_at_once() {
    let layer = gated(0);
    let _first = busy(&layer).await;
    let waiting: Vec<_> =
        (0..WAITING_GROUPS_MAX).map(|_| asking(&layer, vec![one("a", 1)], None)).collect();
    until_waiting(&layer, WAITING_GROUPS_MAX).await;
    let beyond = asking(&layer, vec![one("a", 1)], None).await.unwrap();
    assert_eq!(beyond.as_slice(), [Err(StoreError::Unavailable)]);
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
}

/// A chain of two limits, the inner one of `requests`.
fn chain(algorithm: Algorithm, requests: u32, hits: u64) -> Vec<Check> {
    let (outer, inner) = (per_day(algorithm, 1_000), per_day(algorithm, requests));
    let take = Charge::IfAllowed(hits);
    vec![check("outer", outer, 0, take), check("inner", inner, 1, take)]
}

/// Sends equal groups that wait for a call together. Returns their decisions and the number of calls.
async fn together(
    layer: &Arc<Coalesce<Gate>>,
    groups: usize,
    group: impl Fn() -> Vec<Check>,
) -> (Vec<Vec<Decision>>, usize) {
    layer.inner().open.forget_permits(Semaphore::MAX_PERMITS);
    let first = busy(layer).await;
    let before = layer.inner().calls.lock().unwrap().len();
    let asked: Vec<_> = (0..groups).map(|_| asking(layer, group(), None)).collect();
    until_waiting(layer, groups).await;
    layer.inner().open.add_permits(1_000);
    let mut decided = Vec::new();
    for answers in join_all(asked).await {
        decided.push(answers.unwrap().into_iter().map(Result::unwrap).collect());
    }
    first.await.unwrap();
    let calls = layer.inner().calls.lock().unwrap().len() - before;
    (decided, calls)
}

#[tokio::test]
async fn merged_groups_are_answered_as_each_would_be() {
    for algorithm in Algorithm::ALL {
        let layer = gated(0);
        let (decided, calls) = together(&layer, 10, || chain(algorithm, 100, 3)).await;
        assert_eq!(calls, 1, "{algorithm:?}");
        assert_eq!(layer.inner().calls.lock().unwrap().last(), Some(&2));
        let alone = Gate::new(100, one_location);
        for (position, merged) in decided.iter().enumerate() {
            let single = ask(&alone, chain(algorithm, 100, 3)).await;
            for (merged, single) in merged.iter().zip(&single) {
                assert_eq!(merged, single, "{algorithm:?} {position}");
            }
        }
    }
}

#[tokio::test]
async fn a_merged_call_admits_as_many_groups_as_fit() {
    for algorithm in Algorithm::ALL {
        for (limit, hits) in [(7, 1), (10, 3), (2, 3), (100, 1), (1, 1)] {
            let layer = gated(0);
            // An earlier hit leaves room for fewer groups than the limit allows.
            let charge = async |hits| {
                layer
                    .inner()
                    .inner
                    .decide(Batch::single(chain(algorithm, limit, hits).into(), None))
                    .await
            };
            charge(1).await;
            let (decided, calls) = together(&layer, 50, || chain(algorithm, limit, hits)).await;
            let passed = decided.iter().filter(|it| it.iter().all(|it| it.allowed)).count();
            let fit = ((u64::from(limit) - 1) / hits).min(50);
            assert_eq!(u64::try_from(passed).unwrap(), fit, "{algorithm:?} {limit} {hits}");
            assert!(calls <= 3, "{algorithm:?} {limit} {hits}: {calls} calls");
            let alone = ask(layer.inner(), chain(algorithm, limit, hits)).await;
            for refused in decided.iter().filter(|it| !it[1].allowed) {
                assert_eq!(*refused, alone, "{algorithm:?} {limit} {hits}");
            }
            assert_eq!(alone[0].remaining + alone[0].charged, 1_000 - 1 - fit * hits);
        }
    }
}

/// Hits that refill between calls let some groups pass, and cause no further calls.
#[tokio::test]
async fn merged_groups_do_not_wait_for_a_refill() {
    let window = Window::from_seconds(1).unwrap();
    for algorithm in Algorithm::ALL {
        let layer = gated(0);
        layer.inner().pace.store(100_000, Ordering::Relaxed);
        let limit = Limit::new(algorithm, 50, window, None).unwrap();
        let group = || vec![check("paced", limit, 0, Charge::IfAllowed(1))];
        let (decided, calls) = together(&layer, 200, group).await;
        assert!(calls <= 3, "{algorithm:?}: {calls} calls");
        let passed = decided.iter().filter(|it| it[0].allowed).count();
        assert!((50..200).contains(&passed), "{algorithm:?}: {passed}");
        let refused = decided.iter().filter(|it| !it[0].allowed);
        assert!(refused.clone().all(|it| it[0].retry_after.is_some_and(|wait| !wait.is_zero())));
    }
}

#[tokio::test]
async fn each_share_of_a_merged_charge_can_be_refunded() {
    for algorithm in Algorithm::ALL {
        let layer = gated(0);
        let (decided, _) = together(&layer, 10, || chain(algorithm, 100, 2)).await;
        // The first five are refunded at once, the others later, when some of their hits have expired.
        for (position, decisions) in decided.iter().enumerate() {
            if position == 5 {
                layer.inner().clock.advance(Duration::from_secs(600));
            }
            let back = chain(algorithm, 100, 2).into_iter().zip(decisions).map(|(check, it)| {
                Check { charge: Charge::Refund { hits: it.charged, receipt: it.receipt }, ..check }
            });
            ask(layer.as_ref(), back.collect()).await;
        }
        let left = ask(layer.as_ref(), chain(algorithm, 100, 0)).await;
        assert_eq!((left[0].remaining, left[1].remaining), (1_000, 100), "{algorithm:?}");
    }
}

/// The decision on a merged group of these would not determine the decision on each.
#[tokio::test]
async fn groups_that_cannot_be_merged_are_sent_separately() {
    let day = |requests| per_day(Algorithm::FixedWindow, requests);
    let simulated = Check { refusal_scope: RefusalScope::None, ..one("s", 5) };
    let quota = Check { refusal_scope: RefusalScope::Quota, ..one("q", 5) };
    let debit = check("d", day(5), 0, Charge::Always { hits: 1, needs: 1 });
    let peek = check("p", day(5), 0, Charge::IfAllowed(0));
    let twice = vec![one("t", 5), Check { descriptor: 1, ..one("t", 5) }];
    for group in [vec![simulated], vec![quota], vec![debit], vec![peek], twice] {
        let layer = gated(0);
        let (decided, calls) = together(&layer, 8, || group.clone()).await;
        assert_eq!(calls, 1, "{group:?}");
        assert_eq!(
            layer.inner().calls.lock().unwrap().last(),
            Some(&(8 * group.len())),
            "{group:?}"
        );
        let alone = Gate::new(100, one_location);
        for decisions in decided {
            assert_eq!(decisions, ask(&alone, group.clone()).await, "{group:?}");
        }
    }
}

#[tokio::test]
async fn a_caller_that_leaves_before_the_call_is_not_charged() {
    let layer = gated(0);
    let first = busy(&layer).await;
    let soon = Some(Instant::now() + Duration::from_millis(20));
    let late = asking(&layer, vec![one("late", 10)], soon);
    let gone = asking(&layer, vec![one("gone", 10)], None);
    let stays = asking(&layer, vec![one("late", 10)], None);
    until_waiting(&layer, 3).await;
    gone.abort();
    assert_eq!(late.await.unwrap().as_slice(), [Err(StoreError::Unavailable)]);
    assert_eq!(layer.hits_unknown(), 0);
    layer.inner().open.add_permits(100);
    assert_eq!(stays.await.unwrap()[0].unwrap().remaining, 9);
    first.await.unwrap();
    assert_eq!(ask(layer.as_ref(), vec![one("gone", 10)]).await[0].remaining, 9);
}

#[tokio::test]
async fn a_caller_that_leaves_during_the_call_may_be_charged() {
    let layer = gated(0);
    let soon = Some(Instant::now() + Duration::from_millis(20));
    let group =
        vec![one("a", 10), check("b", per_day(Algorithm::Gcra, 10), 1, Charge::IfAllowed(0))];
    let late = asking(&layer, group, soon).await.unwrap();
    assert_eq!(late.as_slice(), [Err(StoreError::OutcomeUnknown); 2]);
    layer.inner().open.add_permits(100);
    harness::until("the call to end", || async {
        (ask(layer.as_ref(), vec![one("a", 10)]).await[0].remaining == 8).then_some(())
    })
    .await;
    assert_eq!(layer.hits_unknown(), 0, "the store has answered");
}

/// A store that reports an unknown outcome at the deadline, and answers later.
struct Slow {
    gate: Arc<Gate>,
    /// Whether the late answers are an unknown outcome, too.
    is_silent: AtomicBool,
}

impl Store for Slow {
    async fn decide(&self, batch: Batch) -> Answers {
        self.settle(batch, OnRedirection::Follow).await.answers
    }
}

impl QueuedStore for Slow {
    fn location(&self, key: &CounterKey) -> CounterLocation {
        self.gate.location(key)
    }

    async fn settle(&self, batch: Batch, _: OnRedirection) -> BatchAnswers {
        let checks = batch.groups.iter().map(|group| group.len()).sum();
        let unknown =
            move || (0..checks).map(|_| Err(StoreError::OutcomeUnknown)).collect::<Answers>();
        let (gate, deadline) = (Arc::clone(&self.gate), batch.deadline);
        let mut call = tokio::spawn(async move { gate.decide(batch).await });
        let Some(deadline) = deadline else {
            return BatchAnswers { answers: call.await.unwrap(), late: None };
        };
        if let Ok(answers) = tokio::time::timeout_at(deadline.into(), &mut call).await {
            return BatchAnswers { answers: answers.unwrap(), late: None };
        }
        let is_silent = self.is_silent.load(Ordering::Relaxed);
        let late = async move {
            let answers = call.await.unwrap();
            if is_silent { unknown() } else { answers }
        };
        BatchAnswers { answers: unknown(), late: Some(Box::pin(late)) }
    }
}

fn slow(locations: fn(&CounterKey) -> CounterLocation) -> Arc<Coalesce<Slow>> {
    let gate = Arc::new(Gate::new(0, locations));
    Arc::new(Coalesce::new(Slow { gate, is_silent: AtomicBool::new(false) }, ONE))
}

/// Sends a group from a task of its own, with a deadline that passes. Returns the answers and the late answers.
fn asking_late(
    layer: &Arc<Coalesce<Slow>>,
    group: Vec<Check>,
) -> tokio::task::JoinHandle<(Answers, Option<LateAnswersFuture>)> {
    let layer = Arc::clone(layer);
    let soon = Instant::now() + Duration::from_millis(50);
    tokio::spawn(async move {
        let group: Group = group.into();
        let answers = layer.decide(Batch::single(Arc::clone(&group), Some(soon))).await;
        (answers, layer.late_answers(&group))
    })
}

/// Waits until no late answer is pending or uncollected.
async fn until_settled(layer: &Coalesce<Slow>) {
    harness::until("late answers to be delivered", || async {
        (layer.late_calls() == 0).then_some(())
    })
    .await;
    assert_eq!((layer.late_answers_uncollected(), layer.groups_waiting()), (0, 0));
}

#[tokio::test]
async fn late_answers_are_forwarded() {
    let layer = slow(one_location);
    let (answers, late) = asking_late(&layer, chain(Algorithm::Gcra, 10, 3)).await.unwrap();
    assert_eq!(answers.as_slice(), [Err(StoreError::OutcomeUnknown); 2]);
    layer.inner().gate.open.add_permits(100);
    let late = late.unwrap().await;
    let alone = ask(&Gate::new(1, one_location), chain(Algorithm::Gcra, 10, 3)).await;
    assert_eq!(late.iter().map(|it| it.unwrap()).collect::<Vec<_>>(), alone);
    until_settled(&layer).await;
    assert_eq!(layer.hits_unknown(), 0);
}

#[tokio::test]
async fn late_answers_of_several_slots_are_joined() {
    let layer = slow(by_first_byte);
    let group = || {
        let day = per_day(Algorithm::FixedWindow, 10);
        ["a", "b", "a"].into_iter().enumerate().map(move |(at, name)| {
            check(
                &format!("{name}{at}"),
                day,
                at,
                Charge::IfAllowed(1 + u64::try_from(at).unwrap()),
            )
        })
    };
    let (answers, late) = asking_late(&layer, group().collect()).await.unwrap();
    assert_eq!(answers.as_slice(), [Err(StoreError::OutcomeUnknown); 3]);
    layer.inner().gate.open.add_permits(100);
    let left: Vec<_> = late.unwrap().await.iter().map(|it| it.unwrap().remaining).collect();
    assert_eq!(left, [9, 8, 7]);
    until_settled(&layer).await;
}

/// Each of the merged groups gets as a late answer what it would have got in time, without another call.
#[tokio::test]
async fn late_answers_of_a_merged_call_are_shared() {
    for (limit, used, passed) in [(10, 0, 3), (2, 0, 2), (2, 1, 0)] {
        let layer = slow(one_location);
        let gate = &layer.inner().gate;
        let counter = |hits| {
            vec![check("a", per_day(Algorithm::FixedWindow, limit), 0, Charge::IfAllowed(hits))]
        };
        ask(&gate.inner, counter(used.into())).await;
        let first = {
            let layer = Arc::clone(&layer);
            tokio::spawn(async move { ask(layer.as_ref(), vec![one("first", 10)]).await })
        };
        harness::until("the first call", || async {
            (!gate.calls.lock().unwrap().is_empty()).then_some(())
        })
        .await;
        let asked: Vec<_> = (0..3).map(|_| asking_late(&layer, vec![one("a", limit)])).collect();
        harness::until("groups to wait", || async { (layer.groups_waiting() == 3).then_some(()) })
            .await;
        gate.open.add_permits(1);
        first.await.unwrap();
        let mut late_answers = Vec::new();
        for asked in asked {
            let (answers, late) = asked.await.unwrap();
            assert_eq!(answers.as_slice(), [Err(StoreError::OutcomeUnknown)]);
            late_answers.push(late.unwrap());
        }
        gate.open.add_permits(100);
        let late_answers = join_all(late_answers).await;
        let charged = late_answers.iter().filter(|it| it[0].is_ok_and(|it| it.receipt.is_some()));
        assert_eq!(charged.count(), passed, "{limit} {used}");
        until_settled(&layer).await;
        assert_eq!(*gate.calls.lock().unwrap(), [1, 1], "the merged group, and no further call");
        let left = usize::try_from(ask(&gate.inner, counter(0)).await[0].remaining).unwrap();
        assert_eq!(left, usize::try_from(limit - used).unwrap() - passed);
        assert_eq!(layer.hits_unknown(), 0);
    }
}

#[tokio::test]
async fn hits_without_a_late_answer_are_unknown() {
    let layer = slow(one_location);
    layer.inner().is_silent.store(true, Ordering::Relaxed);
    let peek = check("peek", per_day(Algorithm::Gcra, 10), 2, Charge::IfAllowed(0));
    let asked = asking_late(&layer, [chain(Algorithm::Gcra, 10, 3), vec![peek]].concat());
    let (_, late) = asked.await.unwrap();
    assert_eq!(layer.hits_unknown(), 0, "the late answer may still arrive");
    layer.inner().gate.open.add_permits(1);
    assert_eq!(late.unwrap().await.as_slice(), [Err(StoreError::OutcomeUnknown); 3]);
    until_settled(&layer).await;
    assert_eq!(layer.hits_unknown(), 6);
}

/// Hits of callers that disconnect before their answers are unknown only if no late answer arrives.
#[tokio::test]
async fn unknown_hits_of_disconnected_callers_are_counted() {
    for (is_silent, unknown) in [(false, 0), (true, 2)] {
        let layer = slow(one_location);
        layer.inner().is_silent.store(is_silent, Ordering::Relaxed);
        let check = check("a", per_day(Algorithm::FixedWindow, 10), 0, Charge::IfAllowed(2));
        let asked = asking_late(&layer, vec![check]);
        harness::until("the call", || async {
            (!layer.inner().gate.calls.lock().unwrap().is_empty()).then_some(())
        })
        .await;
        asked.abort();
        harness::until("the deadline", || async { (layer.late_calls() == 1).then_some(()) }).await;
        layer.inner().gate.open.add_permits(1);
        until_settled(&layer).await;
        assert_eq!(layer.hits_unknown(), unknown);
    }
}

#[tokio::test]
async fn refunds_alone_do_not_delay_a_caller() {
    let layer = slow(one_location);
    let gate = &layer.inner().gate;
    let taken = ask(&gate.inner, vec![one("a", 10)]).await;
    let undo = Charge::Refund { hits: 1, receipt: taken[0].receipt };
    let undo = Check { charge: undo, refusal_scope: RefusalScope::None, ..one("a", 10) };
    let patient = Some(Instant::now() + Duration::from_secs(60));
    let given = {
        let layer = Arc::clone(&layer);
        tokio::spawn(async move { layer.decide(Batch::single([undo].into(), patient)).await })
    };
    let calls = async |count| {
        harness::until("calls", || async {
            (gate.calls.lock().unwrap().len() == count).then_some(())
        })
        .await;
    };
    calls(1).await;
    let (_, late) = asking_late(&layer, vec![one("b", 10)]).await.unwrap();
    calls(2).await;
    gate.open.add_permits(2);
    assert!(late.unwrap().await[0].is_ok());
    assert!(given.await.unwrap()[0].is_ok());
    until_settled(&layer).await;
    let left = check("a", per_day(Algorithm::FixedWindow, 10), 0, Charge::IfAllowed(0));
    assert_eq!(ask(&gate.inner, vec![left]).await[0].remaining, 10);
}

/// Location of a counter by the first byte of its name.
fn by_first_byte(key: &CounterKey) -> CounterLocation {
    let name = key.as_bytes().rsplit(|&byte| byte == b'=').next().unwrap();
    CounterLocation { queue: usize::from(name[0]), slot: u16::from(name[0]) }
}

/// A store in which one queue fails.
struct HalfDead(Gate, AtomicU64);

impl Store for HalfDead {
    async fn decide(&self, batch: Batch) -> Answers {
        let dead = |group: &Group| by_first_byte(&group[0].key).queue == usize::from(b'd');
        if batch.groups.iter().any(dead) {
            self.1.fetch_add(1, Ordering::Relaxed);
            return std::future::pending().await;
        }
        self.0.decide(batch).await
    }
}

impl QueuedStore for HalfDead {
    fn location(&self, key: &CounterKey) -> CounterLocation {
        by_first_byte(key)
    }
}

#[tokio::test]
async fn a_hanging_queue_delays_no_other() {
    let store = HalfDead(Gate::new(1_000, by_first_byte), AtomicU64::new(0));
    let layer = Coalesce::new(store, ONE);
    let soon = || Some(Instant::now() + Duration::from_millis(20));
    let limit: Limit = per_day(Algorithm::FixedWindow, 10);
    let group = |names: [&str; 2]| {
        let checks = names.iter().enumerate();
        checks.map(|(at, name)| check(name, limit, at, Charge::IfAllowed(1))).collect::<Group>()
    };
    let answers = layer.decide(Batch::single(group(["dead", "live"]), soon())).await;
    assert_eq!(answers[0], Err(StoreError::OutcomeUnknown));
    assert!(answers[1].unwrap().allowed);
    let answers = layer.decide(Batch::single(group(["dead", "live"]), soon())).await;
    assert_eq!(answers[0], Err(StoreError::Unavailable), "not sent while another hangs");
    assert_eq!(answers[1].unwrap().remaining, 8);
    assert_eq!(layer.inner().1.load(Ordering::Relaxed), 1);
}

/// A store in which one counter has moved, and is found slowly.
struct Moving(Gate, Semaphore);

fn has_moved(group: &Group) -> bool {
    group[0].key.as_bytes().ends_with(b"=moved")
}

impl Store for Moving {
    async fn decide(&self, batch: Batch) -> Answers {
        let _found = self.1.acquire().await;
        self.0.decide(batch).await
    }
}

impl QueuedStore for Moving {
    fn location(&self, key: &CounterKey) -> CounterLocation {
        one_location(key)
    }

    async fn settle(&self, batch: Batch, redirected: OnRedirection) -> BatchAnswers {
        if redirected == OnRedirection::Follow {
            return BatchAnswers { answers: self.decide(batch).await, late: None };
        }
        let mut answers = Answers::new();
        for group in batch.groups {
            if has_moved(&group) {
                answers.extend(group.iter().map(|_| Err(StoreError::Moved)));
            } else {
                answers.extend(self.0.decide(Batch::single(group, batch.deadline)).await);
            }
        }
        BatchAnswers { answers, late: None }
    }
}

#[tokio::test]
async fn a_redirected_counter_delays_no_other() {
    let layer =
        Arc::new(Coalesce::new(Moving(Gate::new(100, one_location), Semaphore::new(0)), ONE));
    let asked = |name: &'static str| {
        let layer = Arc::clone(&layer);
        tokio::spawn(async move { ask(layer.as_ref(), vec![one(name, 10)]).await[0].remaining })
    };
    let moved = [asked("moved"), asked("moved")];
    assert_eq!(asked("stays").await.unwrap(), 9);
    assert!(moved.iter().all(|it| !it.is_finished()));
    layer.inner().1.add_permits(1);
    let mut left = Vec::new();
    for moved in moved {
        left.push(moved.await.unwrap());
    }
    left.sort_unstable();
    assert_eq!(left, [8, 9]);
}

#[tokio::test]
async fn groups_past_their_deadline_are_not_sent() {
    let layer = gated(10);
    let now = Some(Instant::now());
    let answers = asking(&layer, vec![one("late", 10)], now).await.unwrap();
    assert_eq!(answers.as_slice(), [Err(StoreError::Unavailable)]);
    assert_eq!(ask(layer.as_ref(), vec![one("late", 10)]).await[0].remaining, 9);
}

/// A store that panics at the first call.
struct PanickingStore(Gate, AtomicU64);

impl Store for PanickingStore {
    async fn decide(&self, batch: Batch) -> Answers {
        assert!(self.1.fetch_add(1, Ordering::Relaxed) > 0, "the first call panics");
        self.0.decide(batch).await
    }
}

impl QueuedStore for PanickingStore {
    fn location(&self, _: &CounterKey) -> CounterLocation {
        one_location(&one("", 1).key)
    }
}

#[tokio::test]
async fn a_panicking_call_affects_no_other() {
    let layer = Coalesce::new(PanickingStore(Gate::new(10, one_location), AtomicU64::new(0)), ONE);
    let asked = async || layer.decide(Batch::single(vec![one("a", 10)].into(), None)).await;
    assert_eq!(asked().await.as_slice(), [Err(StoreError::OutcomeUnknown)]);
    assert!(asked().await[0].unwrap().allowed);
}
