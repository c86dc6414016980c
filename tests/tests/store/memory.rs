//! Tests of the store in memory.

use std::{sync::Arc, time::Duration};

use futures::FutureExt;
use proptest::{collection::vec, prelude::*, sample::select};
use sluicegate_core::{
    Algorithm, Batch, Charge, Check, Limit, Store, StoreError, Time, Window, limit::Unit,
    store::RefusalScope,
};
use sluicegate_core_testkit::cases;
use sluicegate_store::{FailurePolicy, Memory, MemorySettings, SystemClock};
use sluicegate_tests::ManualClock;

use crate::{
    conformance::{self, ask, check, per_day},
    model::Model,
};

const START: Time = Time::from_micros(1_800_000_000_000_000);
const DAY: Duration = Duration::from_secs(86_400);

fn memory(counters_max: usize) -> (Memory<Arc<ManualClock>>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::at(START));
    (Memory::new(MemorySettings { counters_max }, Arc::clone(&clock)), clock)
}

#[tokio::test(flavor = "multi_thread")]
async fn conforms() {
    conformance::suite(async || memory(10_000).0).await;
    let settings = MemorySettings { counters_max: 10_000 };
    conformance::suite(async || Memory::new(settings, SystemClock::new())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_store_refuses_new_counters_and_keeps_the_old() {
    let (store, clock) = memory(3);
    let limit = per_day(Algorithm::FixedWindow, 10);
    let one = |name: &str| vec![check(name, limit, 0, Charge::IfAllowed(1))];
    for name in ["a", "b", "c"] {
        assert!(ask(&store, one(name)).await[0].allowed);
    }
    assert_eq!(
        store.decide(Batch::single(one("d").into(), None)).await[..],
        [Err(StoreError::Full)]
    );
    let both = vec![
        check("a", limit, 0, Charge::IfAllowed(1)),
        check("d", limit, 1, Charge::IfAllowed(1)),
    ];
    let answers = store.decide(Batch::single(both.into(), None)).await;
    assert_eq!((answers[0].unwrap().charged, answers[1]), (0, Err(StoreError::Full)));
    assert_eq!(ask(&store, one("a")).await[0].remaining, 8, "existing counters still count");
    for take in [Charge::IfAllowed(0), Charge::Refund { hits: 1, receipt: None }] {
        assert!(
            ask(&store, vec![check("d", limit, 0, take)]).await[0].allowed,
            "peeks and refunds create no counter"
        );
    }
    let peek_first = vec![
        check("d", limit, 0, Charge::IfAllowed(0)),
        check("d", limit, 1, Charge::IfAllowed(1)),
    ];
    assert_eq!(
        store.decide(Batch::single(peek_first.into(), None)).await[1],
        Err(StoreError::Full)
    );
    assert_eq!(store.len(), 3);

    let policy = FailurePolicy::new(store, None);
    let decisions = policy.decide(one("d").into(), None).await.unwrap();
    assert!(!decisions[0].allowed);
    assert_eq!(policy.checks_unanswered(), 1);

    clock.advance(DAY);
    assert!(
        policy.decide(one("d").into(), None).await.unwrap()[0].allowed,
        "expired counters make room"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_and_peeks_create_no_counter() {
    let (store, _) = memory(100);
    let limit = per_day(Algorithm::FixedWindow, 1);
    ask(&store, vec![check("peek", limit, 0, Charge::IfAllowed(0))]).await;
    ask(&store, vec![check("much", limit, 0, Charge::IfAllowed(2))]).await;
    ask(&store, vec![check("back", limit, 0, Charge::Refund { hits: 1, receipt: None })]).await;
    let scope = per_day(Algorithm::FixedWindow, 0);
    let both = vec![
        check("a", limit, 0, Charge::IfAllowed(1)),
        check("b", scope, 1, Charge::IfAllowed(1)),
    ];
    ask(&store, both).await;
    assert!(store.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_counters_are_swept_under_traffic_and_when_idle() {
    let (store, clock) = memory(100_000);
    let limit = per_day(Algorithm::FixedWindow, 1);
    let fill = async |names: std::ops::Range<usize>| {
        for name in names {
            ask(&store, vec![check(&name.to_string(), limit, 0, Charge::IfAllowed(1))]).await;
        }
    };
    fill(0..2_000).await;
    assert_eq!(store.len(), 2_000);
    clock.advance(DAY);
    fill(2_000..6_000).await;
    assert!(store.len() < 5_000, "{} counters, and 2,000 of them had expired", store.len());
    clock.advance(DAY);
    while !store.is_empty() {
        let before = store.len();
        store.sweep(10);
        assert!(store.len() < before);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn counters_are_found_after_the_store_grows_and_shrinks() {
    // So few counters have one shard only.
    let (store, clock) = memory(2_040);
    let limit = per_day(Algorithm::Gcra, 86_400);
    let take = async |name: usize, hits| {
        let check = check(&name.to_string(), limit, 0, Charge::IfAllowed(hits));
        ask(&store, vec![check]).await[0].remaining
    };
    // Most counters expire within a few seconds.
    let hits = |name: usize| if name.is_multiple_of(100) { 10 } else { 1 };
    for name in 0..2_000 {
        take(name, hits(name)).await;
    }
    for name in 0..2_000 {
        assert_eq!(take(name, 0).await, 86_400 - hits(name));
    }
    clock.advance(Duration::from_secs(3));
    store.sweep(usize::MAX);
    assert_eq!(store.len(), 20);
    for name in (0..2_000).step_by(100) {
        assert_eq!(take(name, 0).await, 86_400 - 7);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_steps_back_admits_no_more() {
    for algorithm in Algorithm::ALL {
        let (store, clock) = memory(100);
        let limit = per_day(algorithm, 2);
        let one =
            async || ask(&store, vec![check("k", limit, 0, Charge::IfAllowed(1))]).await[0].allowed;
        assert!(one().await && one().await && !one().await);
        clock.set_wall(Time::from_micros(START.as_micros() - 2 * 86_400_000_000));
        assert!(!one().await, "{algorithm:?}");
    }
}

const YEAR: u64 = 365 * 86_400 * 1_000_000;

/// The wall clock is set forwards by a year, counters are used up, and the clock is set back.
#[tokio::test(flavor = "multi_thread")]
async fn a_clock_jump_refuses_for_at_most_one_window() {
    for algorithm in Algorithm::ALL {
        let (store, clock) = memory(100);
        let limit = per_day(algorithm, 2);
        let one = async || ask(&store, vec![check("k", limit, 0, Charge::IfAllowed(1))]).await[0];
        assert!(one().await.allowed && one().await.allowed && !one().await.allowed);
        clock.set_wall(Time::from_micros(START.as_micros() + YEAR));
        // Fixed windows follow the wall clock, all other algorithms the elapsed time.
        let begins_anew = algorithm == Algorithm::FixedWindow;
        assert_eq!(one().await.allowed, begins_anew, "{algorithm:?}");
        assert_eq!(one().await.allowed, begins_anew, "{algorithm:?}");
        let refused = one().await;
        assert!(!refused.allowed, "{algorithm:?}");
        clock.set_wall(START);
        let back = one().await;
        assert!(!back.allowed, "{algorithm:?}: hits used during the jump count");
        assert!(back.retry_after.unwrap() <= DAY * 2, "{algorithm:?}: {back:?}");
        assert!(back.reset_after <= DAY * 2, "{algorithm:?}: {back:?}");
        clock.advance(DAY * 2);
        assert!(one().await.allowed, "{algorithm:?}");
    }
}

/// Jumps of the wall clock affect fixed windows only.
#[tokio::test(flavor = "multi_thread")]
async fn sweeps_follow_elapsed_time_not_the_wall_clock() {
    for algorithm in Algorithm::ALL {
        let (store, clock) = memory(100);
        let limit = per_day(algorithm, 2);
        let take = async |name: &str| {
            ask(&store, vec![check(name, limit, 0, Charge::IfAllowed(1))]).await[0]
        };
        take("before").await;
        clock.set_wall(Time::from_micros(START.as_micros() + YEAR));
        take("ahead").await;
        store.sweep(usize::MAX);
        assert_eq!(store.len(), 2, "{algorithm:?}: no time has passed");
        clock.set_wall(Time::from_micros(START.as_micros() - YEAR));
        take("behind").await;
        store.sweep(usize::MAX);
        assert_eq!(store.len(), 3, "{algorithm:?}: no time has passed");
        clock.advance(DAY * 2);
        store.sweep(usize::MAX);
        assert!(store.is_empty(), "{algorithm:?}");
    }
}

/// A time span, and then a group of checks on a few counters. Most groups check one counter twice.
fn steps() -> impl Strategy<Value = (u64, Vec<Check>)> {
    let hits = || prop_oneof![6 => 0..=3_u64, 1 => Just(u64::MAX)];
    let take = prop_oneof![
        6 => hits().prop_map(Charge::IfAllowed),
        2 => (hits(), hits()).prop_map(|(hits, needs)| Charge::Always { hits, needs }),
        1 => hits().prop_map(|hits| Charge::Refund { hits, receipt: None }),
    ];
    let scope = select(vec![
        RefusalScope::Request,
        RefusalScope::Request,
        RefusalScope::None,
        RefusalScope::Quota,
    ]);
    let counter = select(vec![("a", 0_u32), ("b", 2), ("c", 3), ("d", 7)]);
    let checks = vec((counter, select(Algorithm::ALL.to_vec()), take, scope, 0..=1_usize), 1..6);
    let pass = prop_oneof![4 => Just(0), 4 => 0..=400_000_u64, 2 => 0..=5_000_000_u64];
    (pass, checks).prop_map(|(pass, asked)| {
        let mut descriptor = 0;
        let checks = asked.into_iter().map(|((name, requests), algorithm, take, scope, next)| {
            descriptor += next;
            let second = Window::from_unit(Unit::Second, 1).unwrap();
            let limit = Limit::new(algorithm, requests, second, None).unwrap();
            Check { refusal_scope: scope, ..check(name, limit, descriptor, take) }
        });
        (pass, checks.collect())
    })
}

proptest! {
    #![proptest_config(cases::at_least(300))]

    /// Steps of the wall clock change nothing for algorithms that measure spans, and let a fixed window refuse for at
    /// most its length.
    #[test]
    fn steps_of_the_wall_clock_are_bounded(
        steps in vec((steps(), prop_oneof![Just(None), (0..2 * YEAR).prop_map(Some)]), 1..40)
    ) {
        let (steady, unmoved) = memory(100_000);
        let (stepped, clock) = memory(100_000);
        for ((pass, group), wall) in steps {
            unmoved.advance(Duration::from_micros(pass));
            clock.advance(Duration::from_micros(pass));
            if let Some(offset) = wall {
                clock.set_wall(Time::from_micros(START.as_micros() - YEAR + offset));
            }
            let (fixed, spans): (Vec<_>, Vec<_>) =
                group.into_iter().partition(|it| it.limit.algorithm() == Algorithm::FixedWindow);
            let decide = |store: &Memory<_>, group: Vec<Check>| {
                store.decide(Batch::single(group.into(), None)).now_or_never().unwrap()
            };
            prop_assert_eq!(decide(&stepped, spans.clone()), decide(&steady, spans));
            for decision in decide(&stepped, fixed).into_iter().flatten() {
                prop_assert!(decision.reset_after <= Duration::from_secs(1), "{:?}", decision);
            }
        }
    }

    #[test]
    fn decides_as_core_does(steps in vec(steps(), 1..60)) {
        let (store, clock) = memory(100_000);
        let mut model = Model::default();
        for (pass, group) in steps {
            clock.advance(Duration::from_micros(pass));
            let expected = model.settle(std::slice::from_ref(&group), clock.now());
            let answers = store.decide(Batch::single(group.into(), None)).now_or_never().unwrap();
            prop_assert_eq!(answers, expected);
        }
    }
}
