//! Bounds of hand-written charges.

use sluicegate_core::{Algorithm, Counting, Limit as CoreLimit, Window};

use super::{
    super::{
        bound::{Bound, Charge, Span},
        usage::Usage,
    },
    SECOND,
};

/// The beginning of windows in hand-written histories.
const AT_ZERO: Span = Span { from: 0, to: 0 };

fn bound_of(algorithm: Algorithm, requests: u32, seconds: u64, counting: Counting) -> Bound {
    let window = Window::from_seconds(seconds).unwrap();
    Bound::new(&CoreLimit::new(algorithm, requests, window, None).unwrap(), counting)
}

fn bound(algorithm: Algorithm, requests: u32, seconds: u64) -> Bound {
    bound_of(algorithm, requests, seconds, Counting::Free)
}

/// Charges of one hit, each requested and answered at these tenths of a second.
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
fn a_fixed_window_is_bounded_in_every_range_of_windows() {
    let bound = bound(Algorithm::FixedWindow, 2, 10);
    let over = |tenths: &[(i64, i64)]| bound.over_admitted(AT_ZERO, &charges(tenths));
    let (first, second) = ([(1, 2), (98, 99)], [(101, 102), (103, 104)]);
    assert_eq!(over(&[first, second].concat()), 0);
    assert_eq!(over(&[&first[..], &[(50, 51)]].concat()), 1);
    // Across the edge: in either of the windows, if one has room.
    assert_eq!(over(&[&first[..], &[(99, 101)]].concat()), 0);
    assert_eq!(over(&[&first[..], &second[..], &[(99, 101)]].concat()), 1);
    assert_eq!(over(&[&first[..], &second[..1], &[(99, 101), (99, 101)]].concat()), 1);
}

#[test]
fn uncertain_window_edges_explain_more_hits() {
    let bound = bound(Algorithm::FixedWindow, 2, 10);
    let charges = charges(&[(95, 96), (95, 96), (105, 106), (105, 106)]);
    let over = |from, to| bound.over_admitted(tenths_of(from, to), &charges);
    assert_eq!((over(0, 0), over(20, 20), over(0, 20)), (0, 2, 0));
    assert_eq!(over(20, 94), 2);
}

#[test]
fn the_reset_of_an_answer_shows_its_window() {
    let mut charges = charges(&[(95, 105); 3]);
    let window_start = tenths_of(0, 9);
    let mut over = |counting, ends| {
        charges.iter_mut().for_each(|charge| charge.window_ends = ends);
        bound_of(Algorithm::FixedWindow, 2, 10, counting).over_admitted(window_start, &charges)
    };
    for counting in [Counting::Free, Counting::Upstream] {
        assert_eq!(over(counting, None), 0);
        // The answer shows the window before the edge.
        assert_eq!(over(counting, Some(tenths_of(95, 106))), 1);
        // A window that ended before the request is ignored.
        assert_eq!(over(counting, Some(tenths_of(50, 60))), 0);
    }
    // The answer shows the window after the edge; upstream may have charged the one before it.
    assert_eq!(over(Counting::Free, Some(tenths_of(195, 206))), 1);
    assert_eq!(over(Counting::Upstream, Some(tenths_of(195, 206))), 0);
}

#[test]
fn bounds_count_hits_not_requests() {
    let bound = bound(Algorithm::FixedWindow, 5, 10);
    let charge = |hits| charge(1, 2, hits);
    assert_eq!(bound.over_admitted(AT_ZERO, &[charge(3), charge(2)]), 0);
    assert_eq!(bound.over_admitted(AT_ZERO, &[charge(3), charge(3)]), 1);
    assert_eq!(bound.over_admitted(AT_ZERO, &[charge(9)]), 4);
}

#[test]
fn a_sliding_log_is_bounded_in_any_window() {
    let bound = bound(Algorithm::SlidingWindowLog, 2, 10);
    let over = |tenths: &[(i64, i64)]| bound.over_admitted(AT_ZERO, &charges(tenths));
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
fn a_sliding_counter_is_bounded_in_windows_and_by_its_estimate() {
    let bound = bound(Algorithm::SlidingWindowCounter, 4, 10);
    let over = |tenths: &[(i64, i64)]| bound.over_admitted(AT_ZERO, &charges(tenths));
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
fn a_bucket_is_bounded_by_burst_and_rate_in_any_span() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::Gcra] {
        let bound = bound(algorithm, 10, 10);
        let mut tenths = vec![(0, 1); 10];
        assert_eq!(bound.over_admitted(AT_ZERO, &charges(&tenths)), 0);
        // An eleventh hit needs a full second.
        tenths.push((5, 9));
        assert_eq!(bound.over_admitted(AT_ZERO, &charges(&tenths)), 1);
        *tenths.last_mut().unwrap() = (5, 10);
        assert_eq!(bound.over_admitted(AT_ZERO, &charges(&tenths)), 0);
        // One hit per second fits, and not one more.
        let steady: Vec<_> = (2..=20).map(|second| (10 * second, 10 * second + 1)).collect();
        assert_eq!(bound.over_admitted(AT_ZERO, &charges(&[&tenths[..], &steady].concat())), 0);
        let more = [&tenths[..], &steady, &[(205, 206)]].concat();
        assert_eq!(bound.over_admitted(AT_ZERO, &charges(&more)), 1);
    }
}

#[test]
fn a_limit_of_zero_admits_nothing() {
    for algorithm in Algorithm::ALL {
        for counting in Counting::ALL {
            let bound = bound_of(algorithm, 0, 10, counting);
            let charges = charges(&[(0, 5), (1, 300)]);
            assert_eq!(bound.over_admitted(AT_ZERO, &charges), 2, "{algorithm:?} {counting:?}");
        }
    }
}

#[test]
fn a_debit_needs_one_remaining_hit() {
    for algorithm in Algorithm::ALL {
        let charge = |hits| charge(1, 2, hits);
        let bound = bound_of(algorithm, 5, 10, Counting::Debit);
        assert_eq!(bound.over_admitted(AT_ZERO, &[charge(4), charge(4)]), 0, "{algorithm:?}");
        assert_eq!(
            bound.over_admitted(AT_ZERO, &[charge(4), charge(4), charge(4)]),
            4,
            "{algorithm:?}"
        );
    }
}

// === Under-admitted ===

#[test]
fn a_refusal_needs_hits_that_may_have_been_charged() {
    // Both hits of the limit, the second charged at 8 s at the latest.
    let charges = charges(&[(55, 56), (60, 80)]);
    let refuses = |algorithm, from, to| {
        let usage = Usage::new(bound(algorithm, 2, 10), AT_ZERO, &charges, &[]);
        usage.may_refuse(tenths_of(from, to), 1)
    };
    for algorithm in Algorithm::ALL {
        assert!(!refuses(algorithm, 40, 54), "{algorithm:?} before");
        assert!(refuses(algorithm, 70, 75), "{algorithm:?}");
        assert!(!refuses(algorithm, 290, 295), "{algorithm:?} long after");
    }
    use Algorithm::{FixedWindow, Gcra, SlidingWindowCounter, SlidingWindowLog, TokenBucket};
    // Not in the next window, unless the span begins in this one.
    assert!(refuses(FixedWindow, 99, 105) && !refuses(FixedWindow, 101, 105));
    // One window after the first hit.
    assert!(refuses(SlidingWindowLog, 150, 155) && !refuses(SlidingWindowLog, 157, 160));
    // Half a window after the second hit they count as one.
    assert!(refuses(SlidingWindowCounter, 149, 160) && !refuses(SlidingWindowCounter, 151, 160));
    for algorithm in [TokenBucket, Gcra] {
        // One hit is refilled after 5 s.
        assert!(refuses(algorithm, 80, 90) && !refuses(algorithm, 140, 145), "{algorithm:?}");
    }
}

#[test]
fn requests_larger_than_the_limit_are_refused_at_any_time() {
    for algorithm in Algorithm::ALL {
        let usage = Usage::new(bound(algorithm, 5, 10), AT_ZERO, &[], &[]);
        let span = tenths_of(0, 1);
        assert_eq!((usage.may_refuse(span, 5), usage.may_refuse(span, 6)), (false, true));
    }
}

#[test]
fn temporary_charges_refuse_only_until_their_refund() {
    for algorithm in Algorithm::ALL {
        let usage = Usage::new(bound(algorithm, 2, 1_000), AT_ZERO, &[], &[charge(50, 60, 2)]);
        let refuses = |from, to| usage.may_refuse(tenths_of(from, to), 1);
        assert!(refuses(45, 50) && refuses(60, 65), "{algorithm:?}");
        assert!(!refuses(45, 49) && !refuses(61, 65), "{algorithm:?}");
    }
}

#[test]
fn refused_hits_are_under_admitted_only_if_they_fit() {
    for algorithm in Algorithm::ALL {
        let bound = bound(algorithm, 5, 10);
        let under_admitted =
            |others: &[Charge], refused: Vec<_>| bound.under_admitted(AT_ZERO, others, &refused);
        assert_eq!(
            under_admitted(&charges(&[(1, 2); 3]), charges(&[(3, 4); 4])),
            2,
            "{algorithm:?}"
        );
        assert_eq!(under_admitted(&charges(&[(1, 2); 3]), charges(&[(3, 4)])), 1, "{algorithm:?}");
        // None fits if the limit is already exceeded.
        assert_eq!(
            under_admitted(&charges(&[(1, 2); 7]), charges(&[(3, 4); 4])),
            0,
            "{algorithm:?}"
        );
    }
    // Debits of 3 exceed the limit by at most 2, whatever was charged before at once.
    let bound = bound_of(Algorithm::FixedWindow, 10, 10, Counting::Debit);
    assert_eq!(
        bound.under_admitted(AT_ZERO, &[charge(1, 2, 9)], &[charge(3, 4, 3), charge(3, 4, 3)]),
        3
    );
}
