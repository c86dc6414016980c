//! Hand-written runs.

use sluicegate_proto::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit, rate_limit::Unit,
};

use super::{
    super::{
        LimitRow,
        bound::{Micros, RunTime},
    },
    SECOND,
    limiter::{Delivery, Run, answer, refusal},
};
use crate::load::{history::History, template::DrawnNumbers};

const LOGIN: &str = "
domain: d
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 3}
";

#[test]
fn more_hits_than_the_files_allow_are_over_admitted() {
    let generous = LOGIN.replace("unit: 3", "unit: 4");
    let mut run = Run::new(&generous, &["user={2}"]);
    for at in 0..10 {
        for user in [1, 2] {
            run.send(&[user], [1_000 * at, 1_000 * at + 200, 1_000 * at + 500]);
        }
    }
    assert_eq!((run.verified(&generous).over(), run.verified(&generous).under()), (0, 0));
    let verified = run.verified(LOGIN);
    let [row] = &verified.rows[..] else { panic!("{verified:?}") };
    // One hit too many for each user. The refusals that follow are correct.
    assert_eq!((row.over, row.under, row.admitted, row.exact()), (2, 0, 8, 6), "{row:?}");
    assert_eq!((row.requests, row.allowed, row.refused), (20, 8, 12));
    assert_eq!(
        (row.rule.as_deref(), row.location.as_deref(), row.limit.as_str()),
        (Some("user"), Some("limits.yaml:4"), "3 per minute, fixed_window")
    );
    let stingy = LOGIN.replace("unit: 3", "unit: 6");
    let verified = run.verified(&stingy);
    let [row] = &verified.rows[..] else { panic!("{verified:?}") };
    // With a limit of six, none of the refusals is explained, and two more hits of each user would have been admitted.
    assert_eq!((row.over, row.under, row.exact(), row.unexplained), (0, 4, 12, 12), "{row:?}");
}

#[test]
fn a_tolerance_longer_than_the_run_does_not_hide_refusals() {
    let limits = LOGIN.replace("unit: 3", "unit: 3, algorithm: sliding_window_log");
    let mut run = Run::new(&limits, &["user=a"]);
    for at in 0..9 {
        run.send(&[], [1_000 * at, 1_000 * at + 200, 1_000 * at + 500]);
    }
    let verified = run.verified_within(&limits.replace("unit: 3", "unit: 5"), SECOND);
    let row = &verified.rows[0];
    assert_eq!((row.under, row.unexplained, row.not_judged), (2, 6, 0), "{row:?}");
}

#[test]
fn hits_used_before_the_run_explain_refusals() {
    let mut run = Run::new(LOGIN, &["user=a"]);
    run.send(&[], [0, 0, 0]);
    run.send(&[], [0, 0, 0]);
    // A new run begins.
    run.history = History::default();
    assert!(run.send(&[], [1_000, 1_100, 1_200]));
    assert!(!run.send(&[], [2_000, 2_100, 2_200]));
    let verified = run.verified(LOGIN);
    assert_eq!((verified.under(), verified.rows[0].used_before), (0, 2));
    // A refusal in the next window is not explained.
    run.history.add(
        DrawnNumbers::from([]),
        [70 * SECOND, 70 * SECOND + 1_000],
        &Ok(refusal(&[Code::OverLimit])),
    );
    assert_eq!(run.verified(LOGIN).under(), 1);
}

/// The first answer belongs to a request that was charged second.
#[test]
fn concurrent_callers_of_a_used_counter_reveal_earlier_hits() {
    let mut run = Run::new(LOGIN, &["user=a"]);
    run.send_with(&[], [0, 0, 0], Delivery::BeforeRun);
    assert!(run.send(&[], [1_000, 1_100, 1_200]));
    assert!(run.send(&[], [1_000, 1_150, 1_300]));
    assert!(!run.send(&[], [2_000, 2_100, 2_200]));
    let verified = run.verified(LOGIN);
    let row = &verified.rows[0];
    assert_eq!((row.under, row.unexplained, row.used_before), (0, 0, 1), "{row:?}");
}

#[test]
fn requests_with_an_error_may_have_been_charged() {
    let mut run = Run::new(LOGIN, &["user=a"]);
    assert!(run.send(&[], [0, 100, 200]));
    run.send_with(&[], [1_000, 1_100, 1_200], Delivery::Lost);
    assert!(run.send(&[], [2_000, 2_100, 2_200]));
    assert!(!run.send(&[], [3_000, 3_100, 3_200]));
    assert!(!run.send(&[], [4_000, 4_100, 4_200]));
    let verified = run.verified(LOGIN);
    let row = &verified.rows[0];
    assert_eq!((row.over, row.under, row.errors, row.explained_by_errors), (0, 0, 1, 2), "{row:?}");
    // A limit of four was not reached, even if the request with an error was charged.
    let verified = run.verified(&LOGIN.replace("unit: 3", "unit: 4"));
    let row = &verified.rows[0];
    assert_eq!((row.under, row.unexplained, row.explained_by_errors), (1, 2, 0), "{row:?}");
}

/// A request with two limits, one of which refuses, may have been charged temporarily to the other.
#[test]
fn refunded_hits_explain_refusals_for_two_seconds() {
    let limits = "
domain: d
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 2}
  - key: tenant
    rate_limit: {unit: day, requests_per_unit: 2}
";
    let unexplained = |later: Micros| {
        let mut run = Run::new(limits, &["user=a", "tenant=b"]);
        assert!(run.send(&[], [0, 1_000, 2_000]));
        let mut refused = |at, codes| {
            run.history.add(DrawnNumbers::from([]), [at, at + 1_000], &Ok(refusal(codes)));
        };
        refused(SECOND, &[Code::Ok, Code::OverLimit]);
        refused(SECOND + later, &[Code::OverLimit, Code::Ok]);
        run.verified(limits).rows.iter().map(|row| row.unexplained).collect::<Vec<_>>()
    };
    assert_eq!(unexplained(SECOND), [0, 1]);
    assert_eq!(unexplained(3 * SECOND), [1, 1]);
}

#[test]
fn a_refusal_without_statuses_has_no_known_charge() {
    for counting in ["free", "debit", "upstream"] {
        let counting = format!("  - key: user\n    counting: {counting}");
        let limits = LOGIN.replace("  - key: user", &counting);
        let mut run = Run::new(&limits, &["user=a"]);
        for at in 0..3 {
            assert!(run.send(&[], [at, at, at]));
        }
        for at in 3..9 {
            assert!(!run.send_with(&[], [at, at, at], Delivery::WithoutStatuses));
        }
        let verified = run.verified(&limits);
        assert_eq!((verified.over(), verified.under()), (0, 0), "{verified:#?}");
        let row = |limit: &str| verified.rows.iter().find(|row| row.limit.starts_with(limit));
        let (unattributed, limit) =
            (row("refused without a status").unwrap(), row("3 per").unwrap());
        assert_eq!((unattributed.refused, unattributed.unexplained, limit.admitted), (6, 0, 3));
        // Two more would have been admitted. With `upstream` and `debit`, refused hits may be charged too.
        let more = run.verified(&limits.replace("unit: 3", "unit: 5"));
        assert_eq!((more.over(), more.under()), (0, 2), "{more:#?}");
    }
}

/// A quota rule over its limit may still allow the request, which an answer without statuses does not show.
#[test]
fn an_answer_without_statuses_admits_no_hits_of_a_quota_rule() {
    let limits = LOGIN.replace("  - key: user", "  - key: user\n    quota_mode: true")
        + "  - key: tenant\n    quota_mode: true\n    rate_limit: {unit: day, requests_per_unit: 99}\n";
    let mut run = Run::new(&limits, &["user=a", "tenant=b"]);
    for at in 0..9 {
        assert!(run.send_with(&[], [at, at, at], Delivery::WithoutStatuses));
    }
    let verified = run.verified(&limits);
    assert_eq!((verified.over(), verified.under()), (0, 0), "{verified:#?}");
}

/// envoyproxy/ratelimit chooses the window, calls Redis, and then calculates the time until the reset.
#[test]
fn a_late_reset_time_of_upstream_is_not_over_admitted() {
    let mut run = Run::new(LOGIN, &["user=a"]);
    let mut answered = |sent, answered, remaining, until_reset| {
        let status = DescriptorStatus {
            code: Code::Ok.into(),
            current_limit: Some(RateLimit {
                requests_per_unit: 3,
                unit: Unit::Minute.into(),
                ..Default::default()
            }),
            limit_remaining: remaining,
            duration_until_reset: Some(prost_types::Duration { seconds: until_reset, nanos: 0 }),
            ..Default::default()
        };
        let times: [RunTime; 2] = [sent, answered];
        run.history.add(DrawnNumbers::from([]), times, &Ok(answer(true, vec![status])));
    };
    let window_start = 60 * SECOND;
    for remaining in [2, 1, 0] {
        answered(window_start - 1_000, window_start + 1_000, remaining, 60);
    }
    for remaining in [2, 1, 0] {
        answered(window_start + 2_000, window_start + 3_000, remaining, 60);
    }
    let upstream = LOGIN.replace("  - key: user", "  - key: user\n    counting: upstream");
    assert_eq!((run.verified(&upstream).over(), run.verified(LOGIN).over()), (0, 3));
}

#[test]
fn refusals_of_an_unknown_counter_are_not_judged() {
    let mut run = Run::new(LOGIN, &["user=a"]);
    for at in 0..4 {
        run.history.add(DrawnNumbers::from([]), [at, at], &Ok(refusal(&[Code::OverLimit])));
    }
    let verified = run.verified(LOGIN);
    let row: &LimitRow = &verified.rows[0];
    assert_eq!((row.refused, row.not_judged, row.unexplained, row.under), (4, 4, 0, 0), "{row:?}");
}

#[test]
fn a_wrong_refusal_beside_a_correct_one_is_not_counted() {
    let limits =
        format!("{LOGIN}  - key: tenant\n    rate_limit: {{unit: day, requests_per_unit: 9}}\n");
    let mut run = Run::new(&limits, &["user=a", "tenant=b"]);
    for at in 0..3 {
        assert!(run.send(&[], [at, at, at]));
    }
    // The server reports that both limits refuse; only the first can have been reached.
    run.history.add(DrawnNumbers::from([]), [3, 3], &Ok(refusal(&[Code::OverLimit; 2])));
    let verified = run.verified(&limits);
    assert!(verified.rows.iter().all(|row| row.unexplained == 0), "{verified:#?}");
    assert_eq!(verified.under(), 0);
}

#[test]
fn an_allowed_request_that_is_over_its_limit_is_over_admitted() {
    let mut run = Run::new(LOGIN, &["user=a"]);
    for at in 0..5 {
        let mut verdict =
            run.limiter.answer(&run.requests.descriptors(&DrawnNumbers::from([])), 1, at);
        verdict.allowed = true;
        run.history.add(DrawnNumbers::from([]), [at, at], &Ok(verdict));
    }
    assert_eq!(run.verified(LOGIN).over(), 2);
}

#[test]
fn a_refusal_without_a_limit_is_under_admitted() {
    let limits = format!("{LOGIN}  - key: free\n    rate_limit: {{unlimited: true}}\n");
    let mut run = Run::new(&limits, &["free=a", "other=b"]);
    for codes in [[Code::OverLimit, Code::Ok], [Code::Ok, Code::OverLimit], [Code::Ok; 2]] {
        run.history.add(DrawnNumbers::from([]), [0, 1], &Ok(refusal(&codes)));
    }
    let verified = run.verified(&limits);
    let under = |limit: &str| verified.rows.iter().find(|row| row.limit == limit).unwrap().under;
    assert_eq!((under("unlimited"), under("no limit applies"), verified.under()), (1, 1, 3));
}

#[test]
fn rules_in_shadow_mode_are_reported_as_not_verified() {
    let limits = LOGIN.replace("  - key: user", "  - key: user\n    shadow_mode: true");
    let mut run = Run::new(&limits, &["user=a"]);
    for at in 0..9 {
        assert!(run.send(&[], [at, at, at]));
    }
    let verified = run.verified(&limits);
    assert!(verified.rows[0].not_verified.unwrap().starts_with("in shadow mode"));
    assert_eq!((verified.over(), verified.under(), verified.rows[0].requests), (0, 0, 9));
}
