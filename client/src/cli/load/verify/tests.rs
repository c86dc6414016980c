//! Histories made by hand, and those of a sequential limiter.

use std::{collections::HashMap, time::Duration};

use proptest::{collection::vec, prelude::*, sample::select};
use sluicegate_core::{
    Limit as CoreLimit, StoreError, Time, Window, algorithm::State, respond, settle,
};

use super::*;
use crate::{
    CheckError, Code, Limit, Status, Unit, Verdict,
    cli::load::template::{Template, typed_template},
};

const SECOND: Micros = 1_000_000;

/// Where windows begin in histories made by hand.
const AT_ZERO: Span = Span { from: 0, to: 0 };

fn bound_of(algorithm: Algorithm, requests: u32, seconds: u64, counting: Counting) -> Bound {
    let window = Window::from_seconds(seconds).unwrap();
    Bound::new(&CoreLimit::new(algorithm, requests, window, None).unwrap(), counting)
}

fn bound(algorithm: Algorithm, requests: u32, seconds: u64) -> Bound {
    bound_of(algorithm, requests, seconds, Counting::Free)
}

/// Charges of one hit, each asked and answered at these tenths of a second.
fn charges(tenths: &[(i64, i64)]) -> Vec<Charge> {
    let charge = |(from, to): &(i64, i64)| charge(*from, *to, 1);
    tenths.iter().map(charge).collect()
}

fn charge(from: i64, to: i64, hits: i64) -> Charge {
    Charge { span: tenths_of(from, to), hits, window_ends: None }
}

fn tenths_of(from: i64, to: i64) -> Span {
    Span { from: from * SECOND / 10, to: to * SECOND / 10 }
}

// === Over-admitted ===

#[test]
fn a_fixed_window_holds_its_limit_in_every_range_of_windows() {
    let bound = bound(Algorithm::FixedWindow, 2, 10);
    let over = |tenths: &[(i64, i64)]| bound.over(AT_ZERO, &charges(tenths));
    let (first, second) = ([(1, 2), (98, 99)], [(101, 102), (103, 104)]);
    assert_eq!(over(&[first, second].concat()), 0);
    assert_eq!(over(&[&first[..], &[(50, 51)]].concat()), 1);
    // Across the edge: in either of the windows, if one has room.
    assert_eq!(over(&[&first[..], &[(99, 101)]].concat()), 0);
    assert_eq!(over(&[&first[..], &second[..], &[(99, 101)]].concat()), 1);
    assert_eq!(over(&[&first[..], &second[..1], &[(99, 101), (99, 101)]].concat()), 1);
}

#[test]
fn windows_that_may_begin_elsewhere_explain_more() {
    let bound = bound(Algorithm::FixedWindow, 2, 10);
    let charges = charges(&[(95, 96), (95, 96), (105, 106), (105, 106)]);
    let over = |from, to| bound.over(tenths_of(from, to), &charges);
    assert_eq!((over(0, 0), over(20, 20), over(0, 20)), (0, 2, 0));
    assert_eq!(over(20, 94), 2);
}

#[test]
fn an_answer_tells_its_window() {
    let bound = bound(Algorithm::FixedWindow, 2, 10);
    let mut charges = charges(&[(95, 105); 3]);
    let edge = tenths_of(0, 9);
    assert_eq!(bound.over(edge, &charges), 0);
    for charge in &mut charges {
        charge.window_ends = Some(tenths_of(195, 206));
    }
    assert_eq!(bound.over(edge, &charges), 1);
    // One that contradicts the edge tells nothing.
    charges[0].window_ends = Some(tenths_of(150, 160));
    assert_eq!(bound.over(edge, &charges), 0);
}

#[test]
fn hits_count_and_not_requests() {
    let bound = bound(Algorithm::FixedWindow, 5, 10);
    let charge = |hits| charge(1, 2, hits);
    assert_eq!(bound.over(AT_ZERO, &[charge(3), charge(2)]), 0);
    assert_eq!(bound.over(AT_ZERO, &[charge(3), charge(3)]), 1);
    assert_eq!(bound.over(AT_ZERO, &[charge(9)]), 4);
}

#[test]
fn a_log_holds_its_limit_in_any_window() {
    let bound = bound(Algorithm::SlidingWindowLog, 2, 10);
    let over = |tenths: &[(i64, i64)]| bound.over(AT_ZERO, &charges(tenths));
    assert_eq!(over(&[(95, 96), (97, 98), (195, 196), (197, 198)]), 0);
    assert_eq!(over(&[(95, 96), (97, 98), (193, 194)]), 1);
    // The first may have been charged at 9.5 s and the last at 19.5 s.
    assert_eq!(over(&[(95, 110), (97, 98), (180, 195)]), 0);
    // Nine within four windows, though no more than two in any, or four in any two.
    let first = [(0, 15), (0, 95), (50, 145), (100, 195), (150, 245), (200, 295), (250, 345)];
    assert_eq!(over(&[&first[..], &[(300, 395)]].concat()), 0);
    assert_eq!(over(&[&first[..], &[(300, 395), (385, 399)]].concat()), 1);
}

#[test]
fn a_sliding_counter_holds_its_limit_in_windows_and_its_estimate() {
    let bound = bound(Algorithm::SlidingWindowCounter, 4, 10);
    let over = |tenths: &[(i64, i64)]| bound.over(AT_ZERO, &charges(tenths));
    let first = [(10, 11), (20, 21), (30, 31), (40, 41)];
    // At 15 s half of the four hits still count, at 10.2 s all of them, and at 12.6 s three, rounded up.
    assert_eq!(over(&[&first[..], &[(149, 150), (149, 150)]].concat()), 0);
    assert_eq!(over(&[&first[..], &[(149, 150), (149, 150), (149, 150)]].concat()), 1);
    assert_eq!(over(&[&first[..], &[(101, 102)]].concat()), 1);
    assert_eq!(over(&[&first[..], &[(101, 126)]].concat()), 0);
    assert_eq!(over(&[&first[..], &[(101, 126), (101, 126)]].concat()), 1);
    assert_eq!(over(&[&first[..], &[(50, 60)]].concat()), 1);
}

#[test]
fn a_bucket_holds_burst_and_rate_in_every_span() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::Gcra] {
        let bound = bound(algorithm, 10, 10);
        let mut tenths = vec![(0, 1); 10];
        assert_eq!(bound.over(AT_ZERO, &charges(&tenths)), 0);
        // One more fits within the tenth of a second only if the tenth were a whole one.
        tenths.push((5, 9));
        assert_eq!(bound.over(AT_ZERO, &charges(&tenths)), 1);
        *tenths.last_mut().unwrap() = (5, 10);
        assert_eq!(bound.over(AT_ZERO, &charges(&tenths)), 0);
        // A hit a second, and one.
        let steady: Vec<_> = (2..=20).map(|second| (10 * second, 10 * second + 1)).collect();
        assert_eq!(bound.over(AT_ZERO, &charges(&[&tenths[..], &steady].concat())), 0);
        let more = [&tenths[..], &steady, &[(205, 206)]].concat();
        assert_eq!(bound.over(AT_ZERO, &charges(&more)), 1);
    }
}

#[test]
fn a_limit_of_zero_admits_nothing() {
    for algorithm in Algorithm::ALL {
        for counting in Counting::ALL {
            let bound = bound_of(algorithm, 0, 10, counting);
            let charges = charges(&[(0, 5), (1, 300)]);
            assert_eq!(bound.over(AT_ZERO, &charges), 2, "{algorithm:?} {counting:?}");
        }
    }
}

#[test]
fn a_debit_may_find_one_hit_left() {
    for algorithm in Algorithm::ALL {
        let charge = |hits| charge(1, 2, hits);
        let bound = bound_of(algorithm, 5, 10, Counting::Debit);
        assert_eq!(bound.over(AT_ZERO, &[charge(4), charge(4)]), 0, "{algorithm:?}");
        assert_eq!(bound.over(AT_ZERO, &[charge(4), charge(4), charge(4)]), 4, "{algorithm:?}");
    }
}

// === Under-admitted ===

#[test]
fn a_refusal_needs_hits_that_can_have_been_there() {
    // Two of two hits, of which the second may have come as late as at 8 s.
    let charges = charges(&[(55, 56), (60, 80)]);
    let refuses = |algorithm, from, to| {
        let usage = Usage::new(bound(algorithm, 2, 10), AT_ZERO, &charges);
        usage.may_refuse(tenths_of(from, to), 1)
    };
    for algorithm in Algorithm::ALL {
        assert!(!refuses(algorithm, 40, 54), "{algorithm:?} before");
        assert!(refuses(algorithm, 70, 75), "{algorithm:?}");
        assert!(!refuses(algorithm, 290, 295), "{algorithm:?} long after");
    }
    use Algorithm::{FixedWindow, Gcra, SlidingWindowCounter, SlidingWindowLog, TokenBucket};
    // The next window, unless the refusal began in this one.
    assert!(refuses(FixedWindow, 99, 105) && !refuses(FixedWindow, 101, 105));
    // A window after the first hit.
    assert!(refuses(SlidingWindowLog, 150, 155) && !refuses(SlidingWindowLog, 157, 160));
    // Half of a window after the second they count as one.
    assert!(refuses(SlidingWindowCounter, 149, 160) && !refuses(SlidingWindowCounter, 151, 160));
    for algorithm in [TokenBucket, Gcra] {
        // One has come back after 5 s.
        assert!(refuses(algorithm, 80, 90) && !refuses(algorithm, 140, 145), "{algorithm:?}");
    }
}

#[test]
fn hits_that_do_not_fit_are_refused_at_any_time() {
    for algorithm in Algorithm::ALL {
        let usage = Usage::new(bound(algorithm, 5, 10), AT_ZERO, &[]);
        let span = tenths_of(0, 1);
        assert_eq!((usage.may_refuse(span, 5), usage.may_refuse(span, 6)), (false, true));
    }
}

// === Whole answers ===

/// A limiter that answers one request after the other.
struct Limiter {
    rules: RuleSet,
    states: HashMap<CounterKey, State>,
    /// How far its clock is ahead.
    ahead: u64,
}

impl Limiter {
    fn new(limits: &str, ahead: u64) -> Self {
        Self { rules: rules(limits), states: HashMap::new(), ahead }
    }

    fn answer(&mut self, descriptors: &[Entries], hits: u64, now: Micros) -> Verdict {
        let now = Time::from_micros(self.ahead + u64::try_from(now).unwrap());
        let request = described("d", descriptors, hits).unwrap();
        let (plan, group) = Plan::new(&self.rules, &request);
        let mut keys: Vec<_> = Vec::new();
        let slots: Vec<_> = group
            .iter()
            .map(|check| {
                let slot = keys.iter().position(|key| key == &check.key);
                Some(slot.unwrap_or_else(|| {
                    keys.push(check.key.clone());
                    keys.len() - 1
                }))
            })
            .collect();
        let mut states: Vec<_> = keys
            .iter()
            .map(|key| {
                let check = group.iter().find(|check| check.key == *key).unwrap();
                let state = self.states.remove(key);
                state.unwrap_or_else(|| State::new(check.limit.algorithm()))
            })
            .collect();
        let answers = settle(&group, &slots, &mut states, now, StoreError::Full);
        self.states.extend(keys.into_iter().zip(states));
        let decisions: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
        let verdict = respond(&plan, &decisions);
        let allowed = verdict.code == sluicegate_core::Code::Ok;
        answer(allowed, verdict.statuses.iter().map(status).collect())
    }
}

fn answer(allowed: bool, statuses: Vec<Status>) -> Verdict {
    Verdict {
        allowed,
        statuses,
        response_headers_to_add: Vec::new(),
        request_headers_to_add: Vec::new(),
        raw_body: bytes::Bytes::new(),
    }
}

/// A refusal that names no limit.
fn refusal(codes: &[Code]) -> Verdict {
    let status = |code: &Code| Status { code: *code, limit: None, remaining: 0, until_reset: None };
    answer(false, codes.iter().map(status).collect())
}

fn status(status: &sluicegate_core::Status<'_>) -> Status {
    let unit = |unit: sluicegate_core::limit::Unit| {
        let units = [
            Unit::Second,
            Unit::Minute,
            Unit::Hour,
            Unit::Day,
            Unit::Week,
            Unit::Month,
            Unit::Year,
        ];
        units.into_iter().find(|it| it.name() == unit.name())
    };
    Status {
        code: match status.code {
            sluicegate_core::Code::Ok => Code::Ok,
            sluicegate_core::Code::OverLimit => Code::OverLimit,
        },
        limit: status.current_limit.map(|current| Limit {
            requests_per_unit: current.shown.requests_per_unit,
            unit: unit(current.shown.unit),
            unit_multiplier: current.shown.unit_multiplier,
            name: current.name.unwrap_or_default().to_owned(),
        }),
        remaining: status.remaining,
        until_reset: status
            .until_reset
            .map(|it| Duration::from_secs(it.as_micros().div_ceil(1_000_000).try_into().unwrap())),
    }
}

fn rules(limits: &str) -> RuleSet {
    sluicegate_limits::parse("limits.yaml", limits).unwrap()
}

fn templates(descriptors: &[&str]) -> Vec<Template> {
    descriptors.iter().map(|text| typed_template((*text).into()).unwrap()).collect()
}

/// One run against a limiter.
struct Run {
    limiter: Limiter,
    requests: Requests,
    hits: u64,
    history: History,
}

impl Run {
    fn new(limits: &str, descriptors: &[&str]) -> Self {
        let requests = Requests::new(&templates(descriptors), 0.0, 1).unwrap();
        Self { limiter: Limiter::new(limits, 0), requests, hits: 1, history: History::default() }
    }

    /// A request that is sent, charged and answered at these times.
    fn ask(&mut self, draw: &[u32], [sent, charged, answered]: [Micros; 3]) -> bool {
        let draw = Draw::from(draw);
        let verdict = self.limiter.answer(&self.requests.descriptors(&draw), self.hits, charged);
        let allowed = verdict.allowed;
        self.history.add(draw, [sent, answered], &Ok(verdict));
        allowed
    }

    /// Held to these limits.
    fn verified(&self, limits: &str) -> Verified {
        let rules = rules(limits);
        let Self { requests, hits, history, .. } = self;
        Verifier { rules: &rules, domain: "d", requests, hits: *hits, tolerance: 0 }.verify(history)
    }
}

const LOGIN: &str = "
domain: d
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 3}
";

#[test]
fn more_than_the_files_say_is_over_admitted() {
    let generous = LOGIN.replace("unit: 3", "unit: 4");
    let mut run = Run::new(&generous, &["user={2}"]);
    for at in 0..10 {
        for user in [1, 2] {
            run.ask(&[user], [1_000 * at, 1_000 * at + 200, 1_000 * at + 500]);
        }
    }
    assert_eq!((run.verified(&generous).over(), run.verified(&generous).under()), (0, 0));
    let verified = run.verified(LOGIN);
    let [row] = &verified.rows[..] else { panic!("{verified:?}") };
    // One hit too many of each user. The refusals that follow are right.
    assert_eq!((row.over, row.under, row.admitted, row.exact()), (2, 0, 8, 6), "{row:?}");
    assert_eq!((row.requests, row.allowed, row.refused), (20, 8, 12));
    assert_eq!(
        (row.rule.as_deref(), row.place.as_deref(), row.limit.as_str()),
        (Some("user"), Some("limits.yaml:4"), "3 per minute, fixed_window")
    );
    let stingy = LOGIN.replace("unit: 3", "unit: 6");
    assert_eq!((run.verified(&stingy).over(), run.verified(&stingy).under()), (0, 12));
}

#[test]
fn what_was_used_before_the_run_explains_refusals() {
    let mut run = Run::new(LOGIN, &["user=a"]);
    run.ask(&[], [0, 0, 0]);
    run.ask(&[], [0, 0, 0]);
    // Another run begins.
    run.history = History::default();
    assert!(run.ask(&[], [1_000, 1_100, 1_200]));
    assert!(!run.ask(&[], [2_000, 2_100, 2_200]));
    let verified = run.verified(LOGIN);
    assert_eq!((verified.under(), verified.rows[0].used_before), (0, 2));
    // But not in the next window.
    run.history.add(
        Draw::from([]),
        [70 * SECOND, 70 * SECOND + 1_000],
        &Ok(refusal(&[Code::OverLimit])),
    );
    assert_eq!(run.verified(LOGIN).under(), 1);
}

#[test]
fn an_error_may_have_been_charged() {
    let mut run = Run::new(LOGIN, &["user=a"]);
    let failed = Err(CheckError::DeadlineExceeded { deadline: Duration::from_millis(1) });
    run.limiter.answer(&run.requests.descriptors(&Draw::from([])), 1, 0);
    run.history.add(Draw::from([]), [0, 1_000], &failed);
    assert!(run.ask(&[], [2_000, 2_100, 2_200]));
    assert!(run.ask(&[], [3_000, 3_100, 3_200]));
    assert!(!run.ask(&[], [4_000, 4_100, 4_200]));
    let verified = run.verified(LOGIN);
    assert_eq!((verified.over(), verified.under(), verified.rows[0].errors), (0, 0, 1));
}

#[test]
fn a_request_that_passes_though_it_is_refused_is_over_admitted() {
    let mut run = Run::new(LOGIN, &["user=a"]);
    for at in 0..5 {
        let mut verdict = run.limiter.answer(&run.requests.descriptors(&Draw::from([])), 1, at);
        verdict.allowed = true;
        run.history.add(Draw::from([]), [at, at], &Ok(verdict));
    }
    assert_eq!(run.verified(LOGIN).over(), 2);
}

#[test]
fn a_refusal_without_a_limit_has_no_reason() {
    let limits = format!("{LOGIN}  - key: free\n    rate_limit: {{unlimited: true}}\n");
    let mut run = Run::new(&limits, &["free=a", "other=b"]);
    for codes in [[Code::OverLimit, Code::Ok], [Code::Ok, Code::OverLimit], [Code::Ok; 2]] {
        run.history.add(Draw::from([]), [0, 1], &Ok(refusal(&codes)));
    }
    let verified = run.verified(&limits);
    let under = |limit: &str| verified.rows.iter().find(|row| row.limit == limit).unwrap().under;
    assert_eq!((under("unlimited"), under("no limit applies"), verified.under()), (1, 1, 3));
}

#[test]
fn what_is_in_shadow_mode_is_said_not_to_be_verified() {
    let limits = LOGIN.replace("  - key: user", "  - key: user\n    shadow_mode: true");
    let mut run = Run::new(&limits, &["user=a"]);
    for at in 0..9 {
        assert!(run.ask(&[], [at, at, at]));
    }
    let verified = run.verified(&limits);
    assert!(verified.rows[0].not_verified.unwrap().starts_with("in shadow mode"));
    assert_eq!((verified.over(), verified.under(), verified.rows[0].requests), (0, 0, 9));
}

/// Rules of each kind, by the value of `k`; and one limit that all share.
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

/// A request: its kind, how long after the one before it is charged, and how long before and after that it is sent and
/// answered.
fn asked() -> impl Strategy<Value = (u32, Micros, Micros, Micros)> {
    let latency = prop_oneof![4 => 0..2_000_i64, 1 => 0..900_000_i64];
    (1..=KINDS, 0..300_000_i64, latency.clone(), latency)
}

proptest! {
    /// Whatever the order of questions and answers, the clock and the kind of rule: an exact limiter is found exact.
    #[test]
    fn a_sequential_limiter_is_exact(
        asked in vec(asked(), 1..250),
        descriptors in select(vec![
            vec!["k={13}"],
            vec!["k={13}", "shared=x"],
            vec!["k={13}", "quota=x", "shared=x"],
            vec!["k={13}", "k={13}"],
        ]),
        hits in select(vec![1_u64, 1, 1, 2, 3, 9, 0]),
        ahead in 0..9_000_000_u64,
    ) {
        let mut run = Run::new(ALL_KINDS, &descriptors);
        run.limiter.ahead = ahead;
        run.hits = hits;
        let mut charged = 1_000_000;
        for (kind, later, before, after) in asked {
            charged += later;
            run.ask(&[kind], [charged - before, charged, charged + after]);
        }
        let verified = run.verified(ALL_KINDS);
        prop_assert_eq!((verified.over(), verified.under()), (0, 0), "{:#?}", verified.rows);
    }

    /// One that admits a hit more than the files say is not, as soon as it is asked enough.
    #[test]
    fn a_limiter_that_admits_one_more_is_caught(
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
            run.ask(&[kind], [charged - latency, charged, charged + latency]);
        }
        prop_assert_eq!(run.verified(&generous).over(), 0);
        prop_assert!(run.verified(ALL_KINDS).over() > 0);
    }
}
