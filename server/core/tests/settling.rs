//! Settling the checks of one request: all or none, and without effect if it is refused.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on fails")]

use proptest::{collection::vec, prelude::*, sample::select};
use sluicegate_core::{
    Algorithm, Answers, Charge, Check, Decision, Limit, OnFailure, StoreError, Time, Window,
    algorithm::State, key::KeyBuilder, request::Entry, store::RefusalScope,
};
use sluicegate_core_testkit::{cases, settle_states};

const NOW: Time = Time::from_micros(1_800_000_000_000_000);

/// A limit of `requests` a minute.
fn limit(algorithm: Algorithm, requests: u32) -> Limit {
    Limit::new(algorithm, requests, Window::from_seconds(60).unwrap(), None).unwrap()
}

/// A check. Its state is selected by position, not by its key.
fn check(limit: Limit, descriptor: usize, charge: Charge, scope: RefusalScope) -> Check {
    let name = [Entry { key: b"k", value: b"v" }];
    let key = KeyBuilder::new("d", None, &name, &[]).key_for(&limit);
    Check { key, limit, charge, descriptor, refusal_scope: scope, on_failure: OnFailure::default() }
}

/// Counters, one for each limit, and groups of checks on them.
struct Counters {
    limits: Vec<Limit>,
    states: Vec<State>,
}

impl Counters {
    fn new(limits: &[Limit]) -> Self {
        let states = limits.iter().map(|limit| State::new(limit.algorithm())).collect();
        Self { limits: limits.to_vec(), states }
    }

    fn settle(&mut self, now: Time, asked: &[(usize, usize, Charge, RefusalScope)]) -> Answers {
        let checks: Vec<_> = asked
            .iter()
            .map(|&(counter, descriptor, charge, scope)| {
                check(self.limits[counter], descriptor, charge, scope)
            })
            .collect();
        let state_positions: Vec<_> = asked.iter().map(|&(counter, ..)| Some(counter)).collect();
        settle_states(&checks, &state_positions, &mut self.states, now, StoreError::Full)
    }

    /// The available hits of each counter.
    fn available(&self, now: Time) -> Vec<i64> {
        let of = |(state, limit): (&State, &Limit)| {
            let mut state = state.clone();
            let now = state.advance(limit, now);
            state.available(limit, now)
        };
        self.states.iter().zip(&self.limits).map(of).collect()
    }
}

fn decided(answers: &Answers) -> Vec<Decision> {
    answers.iter().map(|answer| answer.unwrap()).collect()
}

#[test]
fn a_refusal_under_two_limits_of_one_counter_is_free() {
    for algorithm in Algorithm::ALL {
        let (wide, narrow) = (limit(algorithm, 60), limit(algorithm, 10));
        let mut states = [State::new(algorithm)];
        let mut settle = |asked: &[(Limit, Charge)]| {
            let asked = asked.iter().enumerate();
            let checks: Vec<_> = asked
                .map(|(descriptor, &(limit, charge))| {
                    check(limit, descriptor, charge, RefusalScope::Request)
                })
                .collect();
            let state_positions = vec![Some(0); checks.len()];
            decided(&settle_states(&checks, &state_positions, &mut states, NOW, StoreError::Full))
        };
        let remaining = |decisions: &[Decision]| [decisions[0].remaining, decisions[1].remaining];
        let peek = [(narrow, Charge::IfAllowed(0)), (wide, Charge::IfAllowed(0))];
        settle(&[(wide, Charge::IfAllowed(5))]);
        let before = remaining(&settle(&peek));
        let answers = settle(&[(narrow, Charge::IfAllowed(1)), (wide, Charge::IfAllowed(100))]);
        assert_eq!([answers[0].allowed, answers[1].allowed], [true, false], "{algorithm:?}");
        assert_eq!(remaining(&answers), before, "{algorithm:?}");
        assert_eq!(remaining(&settle(&peek)), before, "{algorithm:?}");
        assert_eq!(before[1], 55, "{algorithm:?}");
    }
}

#[test]
fn a_refusal_anywhere_is_free_everywhere() {
    for algorithm in Algorithm::ALL {
        let mut counters = Counters::new(&[limit(algorithm, 10), limit(algorithm, 2)]);
        let answers = counters.settle(
            NOW,
            &[
                (0, 0, Charge::IfAllowed(3), RefusalScope::Request),
                (1, 1, Charge::IfAllowed(3), RefusalScope::Request),
            ],
        );
        let [first, second] = decided(&answers)[..] else { panic!() };
        assert!(first.allowed && first.charged == 0 && first.remaining == 10, "{first:?}");
        assert!(!second.allowed && second.charged == 0 && second.remaining == 2, "{second:?}");
        assert_eq!(second.retry_after, None, "three hits never fit a limit of two");
        assert_eq!(counters.available(NOW), [10, 2]);
    }
}

#[test]
fn repeated_counter_is_charged_twice_in_order() {
    for algorithm in Algorithm::ALL {
        let mut counters = Counters::new(&[limit(algorithm, 10)]);
        let twice = [
            (0, 0, Charge::IfAllowed(4), RefusalScope::Request),
            (0, 1, Charge::IfAllowed(4), RefusalScope::Request),
        ];
        let remaining: Vec<_> =
            decided(&counters.settle(NOW, &twice)).iter().map(|it| it.remaining).collect();
        assert_eq!(remaining, [6, 2]);
        let refused = decided(&counters.settle(NOW, &twice));
        assert!(!refused[0].allowed && !refused[1].allowed);
        assert_eq!(counters.available(NOW), [2]);
    }
}

#[test]
fn a_descriptor_with_two_limits_is_charged_on_both_or_none() {
    for scope in [RefusalScope::Request, RefusalScope::Quota, RefusalScope::None] {
        let mut counters =
            Counters::new(&[limit(Algorithm::FixedWindow, 10), limit(Algorithm::FixedWindow, 1)]);
        let both = [(0, 0, Charge::IfAllowed(1), scope), (1, 0, Charge::IfAllowed(1), scope)];
        counters.settle(NOW, &both);
        let again = decided(&counters.settle(NOW, &both));
        assert!(again[0].allowed && !again[1].allowed);
        assert_eq!(counters.available(NOW), [9, 0], "{scope:?}");
    }
}

#[test]
fn exceeded_shadow_and_quota_checks_refuse_no_other_check() {
    let mut counters =
        Counters::new(&[limit(Algorithm::FixedWindow, 0), limit(Algorithm::FixedWindow, 5)]);
    for scope in [RefusalScope::None, RefusalScope::Quota] {
        let answers = counters.settle(
            NOW,
            &[(0, 0, Charge::IfAllowed(1), scope), (1, 1, Charge::IfAllowed(1), scope)],
        );
        let [over, room] = decided(&answers)[..] else { panic!() };
        assert!(!over.allowed && room.allowed && room.charged == 1, "{scope:?}");
    }
    assert_eq!(counters.available(NOW), [0, 3]);
    let lone = decided(&counters.settle(
        NOW,
        &[
            (0, 0, Charge::IfAllowed(1), RefusalScope::Quota),
            (1, 1, Charge::IfAllowed(1), RefusalScope::None),
        ],
    ));
    assert_eq!(lone[1].charged, 0, "every quota descriptor is over, so the request is refused");
}

#[test]
fn unconditional_charges_stay_charged_if_the_request_is_refused() {
    let mut counters =
        Counters::new(&[limit(Algorithm::FixedWindow, 10), limit(Algorithm::FixedWindow, 0)]);
    let debit = Charge::Always { hits: 25, needs: 1 };
    let answers = counters.settle(
        NOW,
        &[
            (0, 0, debit, RefusalScope::Request),
            (1, 1, Charge::IfAllowed(1), RefusalScope::Request),
        ],
    );
    let [debited, refused] = decided(&answers)[..] else { panic!() };
    assert!(debited.allowed && debited.charged == 25 && debited.remaining == 0);
    assert!(!refused.allowed);
    assert_eq!(counters.available(NOW), [-15, 0]);
    let next = decided(&counters.settle(NOW, &[(0, 0, debit, RefusalScope::Request)]));
    assert!(
        !next[0].allowed && next[0].charged == 25,
        "nothing was left, and it is charged all the same"
    );
}

#[test]
fn upstream_counting_is_over_when_usage_exceeds_the_limit() {
    let mut counters = Counters::new(&[limit(Algorithm::FixedWindow, 2)]);
    let ask = |counters: &mut Counters, hits| {
        let charge = Charge::Always { hits, needs: hits };
        decided(&counters.settle(NOW, &[(0, 0, charge, RefusalScope::Request)]))[0].allowed
    };
    let answers = [
        ask(&mut counters, 2),
        ask(&mut counters, 0),
        ask(&mut counters, 1),
        ask(&mut counters, 0),
    ];
    assert_eq!(answers, [true, true, false, false]);
}

#[test]
fn missing_counter_refuses_and_undoes_the_other_charges() {
    let limits = [limit(Algorithm::FixedWindow, 5)];
    let mut counters = Counters::new(&limits);
    let checks = [
        check(limits[0], 0, Charge::IfAllowed(1), RefusalScope::Request),
        check(limits[0], 1, Charge::IfAllowed(1), RefusalScope::Request),
    ];
    let answers =
        settle_states(&checks, &[Some(0), None], &mut counters.states, NOW, StoreError::Full);
    assert_eq!(answers[0].unwrap().charged, 0);
    assert_eq!(answers[1], Err(StoreError::Full));
    assert_eq!(counters.available(NOW), [5]);
}

/// One check on one of three counters, and whether it is of the same descriptor as the check before.
fn asked() -> impl Strategy<Value = (usize, bool, Charge, RefusalScope)> {
    let charge = prop_oneof![
        6 => (0_u64..8).prop_map(Charge::IfAllowed),
        1 => (0_u64..8).prop_map(|hits| Charge::Always { hits, needs: 1 }),
        1 => (0_u64..8).prop_map(|hits| Charge::Refund { hits, receipt: None }),
    ];
    let scope = select(
        [RefusalScope::Request, RefusalScope::Request, RefusalScope::None, RefusalScope::Quota]
            .as_slice(),
    );
    (0..3_usize, any::<bool>(), charge, scope)
}

type Asked = (usize, usize, Charge, RefusalScope);

/// Numbers the descriptors; checks of one descriptor have one scope.
fn group(raw: Vec<(usize, bool, Charge, RefusalScope)>) -> Vec<Asked> {
    let mut group: Vec<Asked> = Vec::new();
    for (counter, joins, charge, scope) in raw {
        match group.last().copied() {
            Some((_, descriptor, _, scope)) if joins => {
                group.push((counter, descriptor, charge, scope));
            }
            Some((_, descriptor, ..)) => group.push((counter, descriptor + 1, charge, scope)),
            None => group.push((counter, 0, charge, scope)),
        }
    }
    group
}

/// Whether the answers refuse the request, as the documentation specifies.
fn refused(group: &[Asked], decisions: &[Decision]) -> bool {
    let over = |descriptor: usize| {
        group.iter().zip(decisions).any(|(it, decision)| it.1 == descriptor && !decision.allowed)
    };
    let alone = group.iter().any(|it| it.3 == RefusalScope::Request && over(it.1));
    let mut quota = group.iter().filter(|it| it.3 == RefusalScope::Quota).peekable();
    alone || (quota.peek().is_some() && quota.all(|it| over(it.1)))
}

proptest! {
    #![proptest_config(cases::at_least(2_000))]

    #[test]
    fn refused_request_has_no_conditional_charges(
        algorithm in select(Algorithm::ALL.as_slice()),
        requests in vec(0_u32..12, 3),
        steps in vec((vec(asked(), 1..5), 0_u64..40_000_000), 1..12),
    ) {
        let limits: Vec<_> = requests.iter().map(|&requests| limit(algorithm, requests)).collect();
        let mut counters = Counters::new(&limits);
        let mut now = NOW;
        for (raw, pause) in steps {
            let group = group(raw);
            let before = counters.states.clone();
            let decisions = decided(&counters.settle(now, &group));
            let conditional = |it: &Asked| matches!(it.2, Charge::IfAllowed(_));
            let over = |descriptor: usize| {
                group.iter().zip(&decisions).any(|(it, decision)| it.1 == descriptor && !decision.allowed)
            };
            for (it, decision) in group.iter().zip(&decisions) {
                if conditional(it) && (refused(&group, &decisions) || over(it.1)) {
                    prop_assert_eq!(decision.charged, 0);
                    prop_assert_eq!(decision.receipt, None);
                }
            }
            if refused(&group, &decisions) && group.iter().all(conditional) {
                let left = counters.available(now);
                counters.states = before;
                prop_assert_eq!(left, counters.available(now));
            }
            now = now.after_micros(pause);
        }
    }
}
