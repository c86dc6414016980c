//! Which limits are valid, and the numbers that are prepared for them.

use proptest::prelude::*;
use sluicegate_core::{
    Algorithm, Limit, Window,
    limit::{LimitError, SLIDING_LOG_HITS_MAX},
};
use sluicegate_core_testkit::{
    cases,
    counter::{algorithms, limits_of_algorithm, sizes, windows},
};

fn new(
    algorithm: Algorithm,
    requests: u32,
    seconds: u64,
    burst: Option<u32>,
) -> Result<Limit, LimitError> {
    Limit::new(algorithm, requests, Window::from_seconds(seconds)?, burst)
}

#[test]
fn names_and_codes_are_distinct() {
    let names = Algorithm::ALL.map(Algorithm::name);
    assert_eq!(
        names,
        ["fixed_window", "sliding_window_log", "sliding_window_counter", "token_bucket", "gcra"]
    );
    assert_eq!(Algorithm::ALL.map(Algorithm::code), ["fw", "sl", "sc", "tb", "gc"]);
}

#[test]
fn only_buckets_have_a_burst() {
    for algorithm in Algorithm::ALL {
        let limit = new(algorithm, 5, 1, Some(9));
        if algorithm.has_burst() {
            assert_eq!(limit.unwrap().capacity(), 9);
        } else {
            assert_eq!(limit, Err(LimitError::BurstUnsupported { algorithm }));
        }
        assert_eq!(new(algorithm, 5, 1, None).unwrap().capacity(), 5);
    }
}

#[test]
fn burst_of_zero_is_an_error_unless_the_limit_is_zero() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::Gcra] {
        assert_eq!(new(algorithm, 5, 1, Some(0)), Err(LimitError::BurstZero));
        assert_eq!(new(algorithm, 0, 1, Some(0)).unwrap().capacity(), 0);
        assert_eq!(new(algorithm, 0, 1, Some(7)).unwrap().capacity(), 0);
    }
}

#[test]
fn sliding_window_log_is_bounded() {
    let log = |requests| new(Algorithm::SlidingWindowLog, requests, 60, None);
    assert!(log(SLIDING_LOG_HITS_MAX).is_ok());
    let error = log(SLIDING_LOG_HITS_MAX + 1).unwrap_err();
    assert_eq!(error, LimitError::LogTooLong { requests: SLIDING_LOG_HITS_MAX + 1 });
    assert!(error.help().contains("sliding_window_counter"));
}

#[test]
fn gcra_accepts_whole_or_long_emission_intervals() {
    let gcra = |requests, seconds| new(Algorithm::Gcra, requests, seconds, None);
    assert_eq!(gcra(1_000_000, 1).unwrap().cost(), 1);
    assert_eq!(gcra(7, 1).unwrap().cost(), 142_858);
    assert_eq!(gcra(10_099, 1).unwrap().cost(), 100);
    let error = gcra(10_103, 1).unwrap_err();
    assert_eq!(error, LimitError::GcraTooFast { requests: 10_103, seconds: 1 });
    assert!(error.help().contains("token_bucket"));
    assert!(gcra(u32::MAX, 1).is_err());
}

#[test]
fn gcra_accepts_bursts_that_refill_within_142_years() {
    let most = u32::try_from(((1_u64 << 52) - 1) / 2_000_000).unwrap();
    let gcra = |burst| new(Algorithm::Gcra, 30, 60, Some(burst));
    assert!(gcra(most).is_ok());
    assert_eq!(gcra(most + 1), Err(LimitError::GcraBurstTooLarge { burst: most + 1 }));
    // An interval of 2^21 microseconds, so that the burst reaches 2^52 exactly.
    assert!(new(Algorithm::Gcra, 15_625, 32_768, Some((1 << 31) - 1)).is_ok());
    assert!(new(Algorithm::Gcra, 15_625, 32_768, Some(1 << 31)).is_err());
    assert!(new(Algorithm::Gcra, 1, 31_622_400, Some(142)).is_ok());
    let error = new(Algorithm::Gcra, 1, 31_622_400, Some(143)).unwrap_err();
    assert_eq!(error, LimitError::GcraBurstTooLarge { burst: 143 });
    assert!(error.help().contains("token_bucket"));
}

proptest! {
    #![proptest_config(cases::at_least(2000))]

    #[test]
    fn an_override_is_always_possible(
        algorithm in algorithms(), requests in prop_oneof![Just(0), sizes()], window in windows(),
    ) {
        let limit = Limit::for_override(algorithm, requests, window);
        prop_assert_eq!((limit.requests(), limit.window()), (requests, window));
        prop_assert_eq!(limit.capacity(), requests);
        match Limit::new(algorithm, requests, window, None) {
            Ok(same) => prop_assert_eq!(limit, same),
            Err(error) => prop_assert!(error.help().contains(limit.algorithm().name())),
        }
    }

    /// The rate is that of the limit or, if that needs too many units, a few millionths less. All numbers are in the
    /// range in which a double computes exactly.
    #[test]
    fn a_bucket_has_the_rate_of_its_limit(limit in limits_of_algorithm(Algorithm::TokenBucket)) {
        let window = u128::from(limit.window().micros());
        let (interval, units, cost) = (limit.refill_interval(), limit.refill_units(), limit.cost());
        prop_assert!(u64::from(limit.capacity()) * cost <= 1 << 52);
        prop_assert!(u128::from(interval - 1) * 1_000_000 < window);
        let rate = u128::from(units) * window;
        let exact = u128::from(limit.requests()) * u128::from(cost) * u128::from(interval);
        prop_assert!(rate <= exact);
        prop_assert!(exact - rate <= exact / 300_000);
        if interval == 1 {
            prop_assert_eq!(rate, exact);
        } else {
            prop_assert!(units <= u64::from(limit.capacity()) * cost / 8);
        }
    }
}
