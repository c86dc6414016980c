//! A limit keeps its usage when it is edited.

use proptest::prelude::*;
use sluicegate_core::{Algorithm, Limit, Window};
use sluicegate_core_testkit::{
    cases,
    counter::{Counter, limits, same_counter_limits, signed, starts, steps},
};

/// Whether a bucket of the other limit records this usage in full, with room for rounding.
fn fits(used: i64, limit: &Limit) -> bool {
    let units = i128::from(used) * i128::from(limit.cost());
    units < 1 << 53
}

proptest! {
    #![proptest_config(cases::at_least(1500))]

    #[test]
    fn usage_survives_an_edit(
        (before, after) in same_counter_limits(), start in starts(), steps in steps(30),
    ) {
        let mut counter = Counter::new(before, start);
        counter.drive(&steps);
        let (used, reset) = (counter.used(), counter.expires_after());
        let mut edited = Counter { limit: after, ..counter.clone() };
        match before.algorithm() {
            Algorithm::FixedWindow | Algorithm::SlidingWindowLog => {
                prop_assert_eq!(edited.used(), used);
                prop_assert_eq!(edited.expires_after(), reset);
            }
            Algorithm::SlidingWindowCounter => prop_assert_eq!(edited.state, counter.state),
            Algorithm::Gcra => prop_assert_eq!(edited.expires_after(), reset),
            Algorithm::TokenBucket if !fits(used, &after) => prop_assert!(edited.available() < 0),
            Algorithm::TokenBucket => {
                // The current tick is refilled at the new rate.
                let tick = u128::from(before.refill_interval() - 1) * u128::from(after.requests());
                let tick = tick.div_ceil(u128::from(after.window().micros()));
                let kept = edited.used();
                prop_assert!(kept <= used);
                prop_assert!(kept >= used - i64::try_from(tick).unwrap());
            }
        }
    }

    /// Nothing passes a limit of 0, and usage remains when the limit is raised again.
    #[test]
    fn a_limit_of_zero_refuses_all_and_keeps_usage(
        limit in limits(), start in starts(), steps in steps(30),
    ) {
        let zero = Limit::new(limit.algorithm(), 0, limit.window(), None).unwrap();
        let mut counter = Counter::new(limit, start);
        counter.drive(&steps);
        let used = counter.used();
        counter.limit = zero;
        prop_assert!(!counter.admits(0));
        prop_assert_eq!(counter.retry_after(1), None);
        if limit.algorithm() == Algorithm::TokenBucket {
            prop_assert_eq!(counter.used(), used);
        }
        counter.limit = limit;
        prop_assert_eq!(counter.used(), used);
        prop_assert!(!Counter::new(zero, start).admits(0));
    }
}

/// This happens on the replicas of a rolling update, and if requests have different overrides.
#[test]
fn bucket_refills_while_two_limits_alternate() {
    let window = Window::from_seconds(1).unwrap();
    let limit = |requests| Limit::new(Algorithm::TokenBucket, requests, window, None).unwrap();
    let (ten, seven) = (limit(10), limit(7));
    let mut counter = Counter::new(ten, 1_700_000_000_000_000);
    counter.charge(10);
    for turn in 0..1000 {
        counter.advance_clock(1000);
        counter.limit = if turn % 2 == 0 { seven } else { ten };
        counter.advance();
    }
    assert_eq!((counter.limit, counter.available()), (ten, signed(8)));
}
