//! Upper bounds of each algorithm, and that it does not refuse more than the bound requires.

use std::collections::HashMap;

use proptest::prelude::*;
use sluicegate_core::{Algorithm, Limit};
use sluicegate_core_testkit::{
    cases,
    counter::{Counter, limits_of_algorithm, signed, starts, steps, whole_interval_gcra_limits},
};

/// Whether at most burst plus the rate's share of the span was admitted between any two moments.
fn within_burst_and_rate(limit: &Limit, admitted: &[(u64, u64)]) -> bool {
    let window = i128::from(limit.window().micros());
    admitted.iter().enumerate().all(|(first, &(from, _))| {
        let mut hits = 0;
        admitted.iter().skip(first).all(|&(to, more)| {
            hits += i128::from(more);
            let span = i128::from(to) - i128::from(from);
            (hits - i128::from(limit.capacity())) * window <= i128::from(limit.requests()) * span
        })
    })
}

/// The most hits admitted within any window.
fn most_in_a_window(limit: &Limit, admitted: &[(u64, u64)]) -> u64 {
    let window = limit.window().micros();
    let from_each = admitted.iter().enumerate().map(|(first, &(from, _))| {
        let within = admitted.iter().skip(first).take_while(|&&(at, _)| at - from < window);
        within.map(|&(_, hits)| hits).sum()
    });
    from_each.max().unwrap_or(0)
}

fn most_in_an_aligned_window(limit: &Limit, admitted: &[(u64, u64)]) -> u64 {
    let mut windows = HashMap::new();
    for (at, hits) in admitted {
        *windows.entry(at / limit.window().micros()).or_insert(0) += hits;
    }
    windows.into_values().max().unwrap_or(0)
}

/// Hits of the previous aligned window that still count when `remaining` microseconds of the current one remain, by the
/// definition.
fn share(previous: u64, remaining: u64, window: u64) -> u64 {
    let share = (u128::from(previous) * u128::from(remaining)).div_ceil(u128::from(window));
    u64::try_from(share).unwrap()
}

proptest! {
    #![proptest_config(cases::at_least(1000))]

    #[test]
    fn fixed_window_admits_the_limit_in_an_aligned_window(
        limit in limits_of_algorithm(Algorithm::FixedWindow), start in starts(), steps in steps(50),
    ) {
        let admitted = Counter::new(limit, start).drive(&steps);
        let most = most_in_an_aligned_window(&limit, &admitted);
        prop_assert!(most <= u64::from(limit.requests()));
    }

    #[test]
    fn sliding_window_log_admits_the_limit_in_any_window(
        limit in limits_of_algorithm(Algorithm::SlidingWindowLog), start in starts(), steps in steps(50),
    ) {
        let admitted = Counter::new(limit, start).drive(&steps);
        prop_assert!(most_in_a_window(&limit, &admitted) <= u64::from(limit.requests()));
    }

    /// Refuses exactly what would break the bound.
    #[test]
    fn sliding_window_log_counts_exactly_the_last_window(
        limit in limits_of_algorithm(Algorithm::SlidingWindowLog), start in starts(), steps in steps(50),
    ) {
        let mut counter = Counter::new(limit, start);
        let mut admitted = Vec::new();
        for step in &steps {
            counter.wait(step);
            let live = |&&(at, _): &&(u64, u64)| at + limit.window().micros() > counter.micros;
            let used: u64 = admitted.iter().filter(live).map(|&(_, hits)| hits).sum();
            prop_assert_eq!(counter.used(), signed(used));
            let hits = counter.hits(step);
            if counter.charge_if_allowed(hits).is_some() {
                admitted.push((counter.micros, hits));
            }
        }
    }

    #[test]
    fn sliding_window_counter_admits_less_than_twice_the_limit(
        limit in limits_of_algorithm(Algorithm::SlidingWindowCounter), start in starts(), steps in steps(50),
    ) {
        let admitted = Counter::new(limit, start).drive(&steps);
        let requests = u64::from(limit.requests());
        prop_assert!(most_in_an_aligned_window(&limit, &admitted) <= requests);
        prop_assert!(most_in_a_window(&limit, &admitted) < 2 * requests);
    }

    #[test]
    fn sliding_window_counter_estimate_follows_its_definition(
        limit in limits_of_algorithm(Algorithm::SlidingWindowCounter), start in starts(), steps in steps(50),
    ) {
        let window = limit.window().micros();
        let mut counter = Counter::new(limit, start);
        let mut windows = HashMap::new();
        for step in &steps {
            counter.wait(step);
            let number = counter.micros / window;
            let in_window = |number: u64| windows.get(&number).copied().unwrap_or(0);
            let (current, previous) = (in_window(number), in_window(number.wrapping_sub(1)));
            let remaining = (number + 1) * window - counter.micros;
            let estimate = current + share(previous, remaining, window);
            prop_assert_eq!(counter.used(), signed(estimate));
            let hits = counter.hits(step);
            if counter.charge_if_allowed(hits).is_some() {
                *windows.entry(number).or_insert(0) += hits;
            }
        }
    }

    #[test]
    fn token_bucket_admits_burst_and_rate(
        limit in limits_of_algorithm(Algorithm::TokenBucket), start in starts(), steps in steps(50),
    ) {
        let admitted = Counter::new(limit, start).drive(&steps);
        prop_assert!(within_burst_and_rate(&limit, &admitted));
    }

    /// Usage equals that of an ideal bucket, rounded up. If a tick is longer than a microsecond, the refill lags behind
    /// the ideal one by at most a tick and a few millionths.
    #[test]
    fn token_bucket_refills_by_its_rate(
        limit in limits_of_algorithm(Algorithm::TokenBucket), start in starts(), steps in steps(50),
    ) {
        let window = u128::from(limit.window().micros());
        let requests = u128::from(limit.requests());
        let mut counter = Counter::new(limit, start);
        let mut ideal = 0_u128;
        for step in &steps {
            let before = counter.micros;
            counter.wait(step);
            ideal = ideal.saturating_sub(u128::from(counter.micros - before) * requests);
            let refilled = u128::from(counter.micros - start) * requests;
            let tick = u128::from(limit.refill_interval()) * requests;
            let lag = if limit.refill_interval() == 1 { 0 } else { refilled / 300_000 + tick };
            let used = u128::try_from(counter.used()).unwrap();
            prop_assert!(used >= ideal.div_ceil(window));
            prop_assert!(used <= (ideal + lag).div_ceil(window));
            let hits = counter.hits(step);
            if counter.charge_if_allowed(hits).is_some() {
                ideal += u128::from(hits) * window;
            }
        }
    }

    #[test]
    fn gcra_admits_burst_and_rate(
        limit in limits_of_algorithm(Algorithm::Gcra), start in starts(), steps in steps(50),
    ) {
        let admitted = Counter::new(limit, start).drive(&steps);
        prop_assert!(within_burst_and_rate(&limit, &admitted));
    }

    /// If the emission interval is whole, both answer all callers equally.
    #[test]
    fn gcra_equals_a_token_bucket(
        limit in whole_interval_gcra_limits(), start in starts(), steps in steps(50),
    ) {
        let burst = Some(limit.capacity());
        let window = limit.window();
        let twin = Limit::new(Algorithm::TokenBucket, limit.requests(), window, burst).unwrap();
        let (mut gcra, mut bucket) = (Counter::new(limit, start), Counter::new(twin, start));
        for step in &steps {
            gcra.wait(step);
            bucket.micros = gcra.micros;
            let hits = gcra.hits(step);
            prop_assert_eq!(gcra.future(), bucket.future());
            prop_assert_eq!(gcra.retry_after(hits), bucket.retry_after(hits));
            let admitted = (gcra.charge_if_allowed(hits).is_some(), bucket.charge_if_allowed(hits).is_some());
            prop_assert_eq!(admitted.0, admitted.1);
        }
    }
}
