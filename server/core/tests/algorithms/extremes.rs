//! No limit, state or moment is too much for the arithmetic.

use proptest::prelude::*;
use sluicegate_core::{
    Algorithm, Limit, Window,
    algorithm::{HITS_MAX, Receipt},
};
use sluicegate_core_testkit::{
    cases,
    counter::{Counter, SPAN_MAX, TIME_MAX, limits, pairs, signed},
};

/// The most usage that a state records.
const USED_MAX: u64 = (1 << 53) - 1;

/// Asks everything and checks that the answers are in range.
fn look(counter: &mut Counter) {
    let capacity = counter.capacity();
    assert!(counter.available() <= signed(capacity));
    assert!(counter.available() >= -(1 << 53));
    assert!(counter.expires_after() <= SPAN_MAX);
    for hits in [0, 1, capacity / 2, capacity] {
        assert!(counter.retry_after(hits).is_none_or(|wait| wait <= SPAN_MAX));
    }
    assert_eq!(counter.retry_after(capacity + 1), None);
}

fn moments() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..=3_u64,
        0..=TIME_MAX,
        1_700_000_000_000_000..=1_700_000_100_000_000_u64,
        TIME_MAX - 3..=u64::MAX,
    ]
}

#[derive(Clone, Debug)]
enum Act {
    Charge(u64),
    GiveBack(u64),
    GiveBackReceipt(u64),
    GiveBackForged(u64, u64),
    Edit,
    Move(u64),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let hits = || prop_oneof![0..=5_u64, Just(HITS_MAX), Just(u64::MAX), 0..=HITS_MAX];
    let act = prop_oneof![
        4 => hits().prop_map(Act::Charge),
        1 => hits().prop_map(Act::GiveBack),
        1 => hits().prop_map(Act::GiveBackReceipt),
        1 => (moments(), any::<u64>()).prop_map(|(at, used)| Act::GiveBackForged(at, used)),
        1 => Just(Act::Edit),
        3 => moments().prop_map(Act::Move),
    ];
    prop::collection::vec(act, 0..=40)
}

proptest! {
    #![proptest_config(cases::at_least(1500))]

    #[test]
    fn any_sequence_of_calls_is_answered((limit, other) in pairs(), acts in acts()) {
        let mut counter = Counter::new(limit, 0);
        let mut receipt = None;
        let mut limits = [limit, other];
        for act in acts {
            match act {
                Act::Charge(hits) => receipt = Some(counter.charge(hits)),
                Act::GiveBack(hits) => counter.give_back(hits, None),
                Act::GiveBackReceipt(hits) => counter.give_back(hits, receipt),
                Act::GiveBackForged(at, used) => {
                    counter.give_back(HITS_MAX, Some(Receipt { at, used }));
                }
                Act::Edit => {
                    limits.reverse();
                    counter.limit = limits[0];
                }
                Act::Move(micros) => counter.micros = micros,
            }
            look(&mut counter);
        }
    }

    /// However often everything is charged, nothing passes until it has come back.
    #[test]
    fn debts_are_remembered(limit in limits(), start in moments(), times in 1..=8_usize) {
        let mut counter = Counter::new(limit, start);
        for _ in 0..times {
            counter.charge(HITS_MAX);
            look(&mut counter);
            prop_assert!(!counter.admits(1));
        }
        if counter.micros < TIME_MAX / 2 && limit.algorithm() == Algorithm::TokenBucket {
            // As much as two windows or two buckets, whichever is less.
            let charged = u64::try_from(times).unwrap() * HITS_MAX;
            let held = 2 * u64::from(limit.requests().min(limit.capacity()));
            prop_assert!(counter.used() >= signed(held.min(charged)));
        }
    }
}

#[test]
fn named_extremes_are_answered() {
    let longest = Window::MAX;
    let second = Window::from_seconds(1).unwrap();
    for algorithm in Algorithm::ALL {
        for (requests, window) in
            [(u32::MAX, second), (u32::MAX, longest), (1, longest), (1, second), (0, longest)]
        {
            let mut limits = vec![Limit::for_override(algorithm, requests, window)];
            for burst in [1, u32::MAX] {
                limits.extend(Limit::new(algorithm, requests, window, Some(burst)));
            }
            for limit in limits {
                for start in [0, 1_700_000_000_000_000, TIME_MAX] {
                    let mut counter = Counter::new(limit, start);
                    look(&mut counter);
                    for _ in 0..5 {
                        counter.charge(HITS_MAX);
                        look(&mut counter);
                        counter.pass(limit.window().micros());
                        look(&mut counter);
                    }
                }
            }
        }
    }
}

/// Beyond what the arithmetic or the memory takes, hits are no longer counted.
#[test]
fn counts_stop_at_their_bounds() {
    let window = Window::from_seconds(1).unwrap();
    let counts =
        [(Algorithm::SlidingWindowLog, 10_000), (Algorithm::SlidingWindowCounter, 1 << 32)];
    for (algorithm, most) in counts {
        let mut counter = Counter::new(Limit::for_override(algorithm, 10_000, window), 0);
        for _ in 0..3 {
            counter.charge(HITS_MAX);
            counter.pass(1);
            assert_eq!(counter.used(), most);
        }
    }
}

/// Beyond the integers that a double holds exactly, hits are no longer counted.
#[test]
fn counts_stop_where_doubles_do() {
    let window = Window::from_seconds(1).unwrap();
    for algorithm in [Algorithm::FixedWindow, Algorithm::TokenBucket] {
        let mut counter = Counter::new(Limit::for_override(algorithm, 1_000_000, window), 0);
        for _ in 0..=USED_MAX / HITS_MAX {
            counter.charge(HITS_MAX);
        }
        assert_eq!(counter.used(), signed(USED_MAX));
        counter.charge(1);
        assert_eq!(counter.used(), signed(USED_MAX));
    }
}
