//! Peeks change nothing, and a clock that is set back admits no more hits.

use proptest::prelude::*;
use sluicegate_core::Algorithm;
use sluicegate_core_testkit::{
    cases,
    counter::{Counter, limits, starts, steps},
};

proptest! {
    #![proptest_config(cases::at_least(1500))]

    /// Peeks between charges, and the waits computed for them, do not change any decision.
    #[test]
    fn a_peek_changes_nothing(
        limit in limits(), start in starts(), steps in steps(30), peeks in 1..=5_u64,
    ) {
        let mut peeked = Counter::new(limit, start);
        let mut alone = peeked.clone();
        for step in &steps {
            let from = peeked.micros;
            alone.wait(step);
            let gap = alone.micros - from;
            for peek in 0..=peeks {
                peeked.micros = from + gap / (peeks + 1) * peek;
                peeked.future();
                peeked.admits(1);
                peeked.expires_after();
            }
            peeked.micros = alone.micros;
            let hits = alone.hits(step);
            prop_assert_eq!(alone.charge_if_allowed(hits).is_some(), peeked.charge_if_allowed(hits).is_some());
            prop_assert_eq!(alone.future(), peeked.future());
        }
    }

    /// Whichever time the clock is set back to, and whether or not the state was advanced to the later time.
    #[test]
    fn clock_set_back_does_not_increase_available_hits(
        limit in limits(), start in starts(), steps in steps(30), back in 0..=200_u64,
        few in 0..=3_u64,
    ) {
        let mut counter = Counter::new(limit, start);
        counter.drive(&steps);
        if let Some(step) = steps.first() {
            counter.wait(step);
        }
        let unseen = counter.clone();
        let room = counter.available();
        let earlier = counter.micros.saturating_sub(limit.window().micros() / 64 * back + few);
        prop_assert!(unseen.at(earlier).available() <= room);
        prop_assert!(counter.at(earlier).available() <= room);
    }

    /// The time at which a state is read is never before its last charge.
    #[test]
    fn advance_never_returns_a_time_before_the_last_charge(
        limit in limits(), start in starts(), steps in steps(30), back in 0..=200_u64,
        few in 0..=3_u64,
    ) {
        let window = limit.window().micros();
        let mut counter = Counter::new(limit, start);
        counter.drive(&steps);
        let hit = counter.charge_if_allowed(1);
        let seen = counter.advance();
        let earlier = counter.micros.saturating_sub(window / 64 * back + few);
        let counts = counter.at(earlier).advance();
        prop_assert!(earlier <= counts && counts <= seen);
        match limit.algorithm() {
            Algorithm::FixedWindow | Algorithm::SlidingWindowCounter => {
                prop_assert_eq!(counts / window, seen / window);
            }
            Algorithm::SlidingWindowLog if hit.is_some() => prop_assert_eq!(counts, seen),
            Algorithm::TokenBucket => prop_assert!(seen - counts < limit.refill_interval()),
            // An empty log has no time, and GCRA needs none.
            Algorithm::SlidingWindowLog | Algorithm::Gcra => {}
        }
    }
}
