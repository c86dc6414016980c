//! Random runs.

use proptest::{collection::vec, prelude::*, sample::select};

use super::{
    super::bound::Micros,
    limiter::{Delivery, Run},
};

/// A rule of each kind, by the value of `k`, and one limit that all requests share.
const ALL_KINDS: &str = "
domain: d
descriptors:
  - key: k
    value: '1'
    rate_limit: {window: 2s, requests_per_unit: 7}
  - key: k
    value: '2'
    rate_limit: {window: 2s, requests_per_unit: 7, algorithm: sliding_window_log}
  - key: k
    value: '3'
    rate_limit: {window: 2s, requests_per_unit: 7, algorithm: sliding_window_counter}
  - key: k
    value: '4'
    rate_limit: {window: 2s, requests_per_unit: 7, algorithm: token_bucket, burst: 4}
  - key: k
    value: '5'
    rate_limit: {window: 2s, requests_per_unit: 7, algorithm: gcra}
  - key: k
    value: '6'
    counting: debit
    rate_limit: {window: 2s, requests_per_unit: 7, algorithm: sliding_window_counter}
  - key: k
    value: '7'
    counting: upstream
    rate_limit: {window: 2s, requests_per_unit: 7}
  - key: k
    value: '8'
    counting: debit
    rate_limit: {window: 2s, requests_per_unit: 7, algorithm: token_bucket}
  - key: k
    value: '9'
    limits:
      - {window: 2s, requests_per_unit: 4}
      - {window: 7s, requests_per_unit: 9, algorithm: gcra}
  - key: k
    value: '10'
    quota_mode: true
    rate_limit: {window: 2s, requests_per_unit: 4}
  - key: k
    value: '11'
    counting: upstream
    rate_limit: {window: 2s, requests_per_unit: 5, algorithm: sliding_window_counter}
  - key: k
    value: '12'
    shadow_mode: true
    rate_limit: {window: 2s, requests_per_unit: 3}
  - key: k
    value: '13'
    rate_limit: {unit: second, requests_per_unit: 7}
  - key: shared
    rate_limit: {window: 3s, requests_per_unit: 20, algorithm: sliding_window_counter}
  - key: quota
    quota_mode: true
    rate_limit: {window: 3s, requests_per_unit: 12}
";

const KINDS: u32 = 13;

/// A request: kind, time from the previous charge to its charge, time from sending to the charge, time from the charge
/// to the answer, and delivery of the answer.
fn requests() -> impl Strategy<Value = (u32, Micros, Micros, Micros, Delivery)> {
    let latency = prop_oneof![4 => 0..2_000_i64, 1 => 0..900_000_i64];
    let delivery = prop_oneof![
        12 => Just(Delivery::Complete),
        1 => Just(Delivery::WithoutStatuses),
        1 => Just(Delivery::Lost),
    ];
    (1..=KINDS, 0..300_000_i64, latency.clone(), latency, delivery)
}

proptest! {
    /// An exact limiter verifies as exact, for any order of requests and answers, any clock and any kind of rule.
    #[test]
    fn a_sequential_limiter_verifies_as_exact(
        requests in vec(requests(), 1..250),
        descriptors in select(vec![
            vec!["k={13}"],
            vec!["k={13}", "shared=x"],
            vec!["k={13}", "quota=x", "shared=x"],
            vec!["k={13}", "k={13}"],
        ]),
        hits in select(vec![1_u64, 1, 1, 2, 3, 9, 0]),
        ahead in 0..9_000_000_u64,
        before in prop_oneof![Just(0), 0..30_usize],
    ) {
        let mut run = Run::new(ALL_KINDS, &descriptors);
        run.limiter.ahead = ahead;
        run.hits = hits;
        let mut charged = 1_000_000;
        for (at, (kind, later, earlier, after, delivery)) in requests.into_iter().enumerate() {
            charged += later;
            let delivery = if at < before { Delivery::BeforeRun } else { delivery };
            run.send_with(&[kind], [charged - earlier, charged, charged + after], delivery);
        }
        let verified = run.verified(ALL_KINDS);
        let unexplained: u64 = verified.rows.iter().map(|row| row.unexplained).sum();
        let found = (verified.over(), verified.under(), unexplained);
        prop_assert_eq!(found, (0, 0, 0), "{:#?}", verified.rows);
    }

    /// A limiter that admits one hit more than the files is detected after enough requests.
    #[test]
    fn a_limiter_that_admits_one_hit_more_is_detected(
        kind in select(vec![1_u32, 2, 3, 4, 5, 6, 7, 8, 9, 13]),
        start in 0..2_000_000_i64,
        latency in 0..1_000_i64,
        ahead in 0..9_000_000_u64,
    ) {
        let generous = ALL_KINDS
            .replace("unit: 7", "unit: 8")
            .replace("unit: 4", "unit: 5")
            .replace("unit: 9", "unit: 10")
            .replace("burst: 4", "burst: 5");
        let mut run = Run::new(&generous, &["k={13}"]);
        run.limiter.ahead = ahead;
        for at in 0..800 {
            let charged = start + 1_000_000 + at * 10_000;
            run.send(&[kind], [charged - latency, charged, charged + latency]);
        }
        prop_assert_eq!(run.verified(&generous).over(), 0);
        prop_assert!(run.verified(ALL_KINDS).over() > 0);
    }
}
