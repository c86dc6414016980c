//! Retry times and expiry are exact to the microsecond.

use proptest::prelude::*;
use sluicegate_core::{Algorithm, algorithm::State};
use sluicegate_core_testkit::{
    cases,
    counter::{Counter, SPAN_MAX, TIME_MAX, limits, signed, starts, steps},
};

proptest! {
    #![proptest_config(cases::at_least(1500))]

    #[test]
    fn retry_after_is_the_first_time_that_admits(
        limit in limits(), start in starts(), steps in steps(30), excess in 0..=3_u64,
        hits in (1..=5_u64, 0..=16_u64, any::<bool>()),
    ) {
        let mut counter = Counter::new(limit, start);
        counter.drive(&steps);
        counter.charge(excess * counter.capacity() / 2);
        let (few, share, all) = hits;
        let hits = if all { counter.capacity() * share / 16 } else { few }.max(1);
        match counter.retry_after(hits) {
            None => prop_assert!(hits > counter.capacity()),
            Some(0) => prop_assert!(counter.admits(hits)),
            // Beyond the range of times.
            Some(wait) if counter.micros + wait > TIME_MAX => {}
            Some(wait) => {
                prop_assert!(!counter.admits(hits));
                prop_assert!(!counter.after(wait - 1).admits(hits));
                prop_assert!(counter.after(wait).admits(hits));
                prop_assert_eq!(counter.after(wait / 2).retry_after(hits), Some(wait - wait / 2));
            }
        }
    }

    /// After that time, and not before, the state behaves as one that was never used.
    #[test]
    fn expires_after_is_the_first_time_as_if_unused(
        limit in limits(), start in starts(), steps in steps(30), excess in 0..=3_u64,
        later in steps(10),
    ) {
        let mut counter = Counter::new(limit, start);
        counter.drive(&steps);
        counter.charge(excess * counter.capacity() / 2);
        let wait = counter.expires_after();
        if counter.micros + wait > TIME_MAX {
            return Ok(());
        }
        if wait > 0 {
            prop_assert!(counter.after(wait - 1).available() < signed(counter.capacity()));
        }
        let mut used = counter.after(wait);
        let mut fresh = Counter { state: State::new(limit.algorithm()), ..used.clone() };
        prop_assert_eq!(used.expires_after(), 0);
        prop_assert_eq!(used.future(), fresh.future());
        prop_assert_eq!(used.drive(&later), fresh.drive(&later));
        prop_assert_eq!(used.future(), fresh.future());
    }

    /// A bucket refills at its rate: not faster, and hardly slower.
    #[test]
    fn capacity_passes_at_once_and_refills_in_time(limit in limits(), start in starts()) {
        let mut counter = Counter::new(limit, start);
        prop_assert!(!counter.admits(counter.capacity() + 1));
        prop_assert!(counter.charge_if_allowed(counter.capacity()).is_some());
        prop_assert!(!counter.admits(1));
        let window = u128::from(limit.window().micros());
        let reset = u128::from(counter.expires_after());
        let whole = (u128::from(limit.capacity()) * window).div_ceil(u128::from(limit.requests()));
        match limit.algorithm() {
            Algorithm::FixedWindow => prop_assert!(reset <= window),
            Algorithm::SlidingWindowLog => prop_assert_eq!(reset, window),
            Algorithm::SlidingWindowCounter => prop_assert!(window < reset && reset <= 2 * window),
            Algorithm::TokenBucket if reset == u128::from(SPAN_MAX) => {
                prop_assert!(whole + whole / 300_000 >= reset);
            }
            Algorithm::TokenBucket => {
                prop_assert!(whole <= reset);
                prop_assert!(reset <= whole + whole / 300_000 + u128::from(limit.refill_interval()));
            }
            Algorithm::Gcra => prop_assert!(whole <= reset && reset <= whole + whole / 100 + 1),
        }
    }
}
