//! The arithmetic stays in range for all limits, states and times.

use proptest::prelude::*;
use sluicegate_core::{
    Algorithm, Limit, Window,
    algorithm::{HITS_MAX, Receipt},
};
use sluicegate_core_testkit::{
    cases,
    counter::{Counter, SPAN_MAX, TIME_MAX, limits, same_counter_limits, signed},
};

/// The most usage that a state records.
const USED_MAX: u64 = (1 << 53) - 1;

/// Reads everything and checks that the results are in range.
fn assert_in_range(counter: &mut Counter) {
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
    Refund(u64),
    RefundReceipt(u64),
    RefundForged(u64, u64),
    Edit,
    SetClock(u64),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let hits = || prop_oneof![0..=5_u64, Just(HITS_MAX), Just(u64::MAX), 0..=HITS_MAX];
    let act = prop_oneof![
        4 => hits().prop_map(Act::Charge),
        1 => hits().prop_map(Act::Refund),
        1 => hits().prop_map(Act::RefundReceipt),
        1 => (moments(), any::<u64>()).prop_map(|(at, used)| Act::RefundForged(at, used)),
        1 => Just(Act::Edit),
        3 => moments().prop_map(Act::SetClock),
    ];
    prop::collection::vec(act, 0..=40)
}

proptest! {
    #![proptest_config(cases::at_least(1500))]

    #[test]
    fn any_sequence_of_calls_stays_in_range((limit, other) in same_counter_limits(), acts in acts()) {
        let mut counter = Counter::new(limit, 0);
        let mut receipt = None;
        let mut limits = [limit, other];
        for act in acts {
            match act {
                Act::Charge(hits) => receipt = Some(counter.charge(hits)),
                Act::Refund(hits) => counter.refund(hits, None),
                Act::RefundReceipt(hits) => counter.refund(hits, receipt),
                Act::RefundForged(at, used) => {
                    counter.refund(HITS_MAX, Some(Receipt { at, used }));
                }
                Act::Edit => {
                    limits.reverse();
                    counter.limit = limits[0];
                }
                Act::SetClock(micros) => counter.micros = micros,
            }
            assert_in_range(&mut counter);
        }
    }

    /// However often hits are charged beyond the limit, nothing passes until they have expired.
    #[test]
    fn usage_beyond_the_limit_is_recorded(limit in limits(), start in moments(), times in 1..=8_usize) {
        let mut counter = Counter::new(limit, start);
        for _ in 0..times {
            counter.charge(HITS_MAX);
            assert_in_range(&mut counter);
            prop_assert!(!counter.admits(1));
        }
        if counter.micros < TIME_MAX / 2 && limit.algorithm() == Algorithm::TokenBucket {
            // At least two windows or two buckets are recorded, whichever is less.
            let charged = u64::try_from(times).unwrap() * HITS_MAX;
            let recorded = 2 * u64::from(limit.requests().min(limit.capacity()));
            prop_assert!(counter.used() >= signed(recorded.min(charged)));
        }
    }
}

#[test]
fn extreme_limits_stay_in_range() {
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
                    assert_in_range(&mut counter);
                    for _ in 0..5 {
                        counter.charge(HITS_MAX);
                        assert_in_range(&mut counter);
                        counter.advance_clock(limit.window().micros());
                        assert_in_range(&mut counter);
                    }
                }
            }
        }
    }
}

/// Hits beyond the bound of the arithmetic or of memory are not recorded.
#[test]
fn recorded_hits_stop_at_their_bounds() {
    let window = Window::from_seconds(1).unwrap();
    let counts =
        [(Algorithm::SlidingWindowLog, 10_000), (Algorithm::SlidingWindowCounter, 1 << 32)];
    for (algorithm, most) in counts {
        let mut counter = Counter::new(Limit::for_override(algorithm, 10_000, window), 0);
        for _ in 0..3 {
            counter.charge(HITS_MAX);
            counter.advance_clock(1);
            assert_eq!(counter.used(), most);
        }
    }
}

/// Hits beyond the integers that a double holds exactly are not recorded.
#[test]
fn usage_stops_at_the_largest_exact_double() {
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
