//! Examples from the documentation.

use sluicegate_core::{Algorithm, Limit, Window};
use sluicegate_core_testkit::counter::Counter;

const SECOND: u64 = 1_000_000;

/// A Unix time in microseconds at which every window up to a day starts.
const MIDNIGHT: u64 = 1_700_006_400 * SECOND;

fn counter(algorithm: Algorithm, requests: u32, seconds: u64, burst: Option<u32>) -> Counter {
    let window = Window::from_seconds(seconds).unwrap();
    Counter::new(Limit::new(algorithm, requests, window, burst).unwrap(), MIDNIGHT)
}

/// Hits that pass one by one, up to a thousand.
fn passing(counter: &mut Counter) -> usize {
    (0..1000).take_while(|_| counter.charge_if_allowed(1).is_some()).count()
}

/// Hits that pass in the last microsecond of a window and the first of the next.
fn across_a_boundary(algorithm: Algorithm) -> usize {
    let mut counter = counter(algorithm, 10, 60, None);
    counter.advance_clock(60 * SECOND - 1);
    let before = passing(&mut counter);
    counter.advance_clock(1);
    before + passing(&mut counter)
}

#[test]
fn only_a_fixed_window_admits_twice_the_limit_at_a_boundary() {
    assert_eq!(across_a_boundary(Algorithm::FixedWindow), 20);
    assert_eq!(across_a_boundary(Algorithm::SlidingWindowLog), 10);
    assert_eq!(across_a_boundary(Algorithm::SlidingWindowCounter), 10);
}

#[test]
fn hit_in_the_log_counts_for_exactly_one_window() {
    let mut counter = counter(Algorithm::SlidingWindowLog, 2, 60, None);
    assert!(counter.charge_if_allowed(1).is_some());
    counter.advance_clock(20 * SECOND);
    assert!(counter.charge_if_allowed(1).is_some());
    assert_eq!(counter.retry_after(1), Some(40 * SECOND));
    assert_eq!(counter.retry_after(2), Some(60 * SECOND));
    counter.advance_clock(40 * SECOND - 1);
    assert_eq!(passing(&mut counter), 0);
    counter.advance_clock(1);
    assert_eq!(passing(&mut counter), 1);
}

#[test]
fn sliding_counter_weights_the_previous_window() {
    let mut counter = counter(Algorithm::SlidingWindowCounter, 100, 60, None);
    assert!(counter.charge_if_allowed(80).is_some());
    counter.advance_clock(60 * SECOND);
    assert_eq!(counter.available(), 20);
    counter.advance_clock(15 * SECOND);
    assert_eq!(counter.available(), 100 - 60);
    counter.advance_clock(15 * SECOND + 1);
    assert_eq!(counter.available(), 100 - 40);
    assert_eq!(counter.retry_after(61), Some(SECOND * 3 / 4 - 1));
}

#[test]
fn a_token_bucket_of_100_that_refills_60_an_hour() {
    let mut counter = counter(Algorithm::TokenBucket, 60, 3600, Some(100));
    for _ in 0..100 {
        assert!(counter.charge_if_allowed(1).is_some());
    }
    assert!(counter.charge_if_allowed(1).is_none());
    assert_eq!(counter.retry_after(1), Some(60 * SECOND));
    counter.advance_clock(60 * SECOND - 1);
    assert!(counter.charge_if_allowed(1).is_none());
    counter.advance_clock(1);
    assert_eq!(passing(&mut counter), 1);
}

#[test]
fn gcra_spaces_hits_by_the_emission_interval_beyond_its_burst() {
    let mut counter = counter(Algorithm::Gcra, 10, 1, Some(3));
    assert_eq!(passing(&mut counter), 3);
    assert_eq!(counter.retry_after(1), Some(SECOND / 10));
    counter.advance_clock(SECOND / 10);
    assert_eq!(passing(&mut counter), 1);
    counter.advance_clock(SECOND / 4);
    assert_eq!(passing(&mut counter), 2);
    assert_eq!(counter.retry_after(1), Some(SECOND / 20));
}

/// Neither has a whole number of microseconds per hit.
#[test]
fn seven_per_second_and_four_billion_per_year_are_both_exact() {
    for (requests, seconds) in [(7, 1), (4_000_000_000, 31_536_000)] {
        for algorithm in Algorithm::ALL {
            let window = Window::from_seconds(seconds).unwrap();
            let Ok(limit) = Limit::new(algorithm, requests, window, None) else {
                assert!(algorithm == Algorithm::SlidingWindowLog && requests > 10_000);
                continue;
            };
            let mut counter = Counter::new(limit, MIDNIGHT);
            assert!(counter.charge_if_allowed(u64::from(requests)).is_some(), "{limit:?}");
            assert!(counter.charge_if_allowed(1).is_none(), "{limit:?}");
            // Rounding may only delay the refill a little.
            counter.advance_clock(2 * window.micros() + window.micros() / 100_000);
            assert!(counter.charge_if_allowed(u64::from(requests)).is_some(), "{limit:?}");
        }
    }
}

/// The bucket refills in many small ticks; in a long tick a small bucket would overflow.
#[test]
fn small_bucket_with_a_huge_rate_refills_at_its_rate() {
    let limit = Limit::new(Algorithm::TokenBucket, u32::MAX, Window::MAX, Some(1)).unwrap();
    let mut counter = Counter::new(limit, MIDNIGHT);
    let mut admitted = 0;
    for _ in 0..100_000 {
        counter.advance_clock(100);
        admitted += u32::from(counter.charge_if_allowed(1).is_some());
    }
    // The rate is 135.8 a second, for ten seconds.
    assert!((1300..=1359).contains(&admitted), "{admitted}");
}
