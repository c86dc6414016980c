//! A refund undoes a charge, and never more than that charge.

use proptest::prelude::*;
use sluicegate_core::{Algorithm, Limit, Window, algorithm::HITS_MAX};
use sluicegate_core_testkit::{
    cases,
    counter::{Counter, SPAN_MAX, limits, signed, starts, steps},
};

proptest! {
    #![proptest_config(cases::at_least(1500))]

    #[test]
    fn immediate_refund_restores_the_state(
        limit in limits(), start in starts(), warm_up in steps(20), charged in steps(1),
        later in steps(10),
    ) {
        let mut counter = Counter::new(limit, start);
        counter.drive(&warm_up);
        for step in &charged {
            counter.wait(step);
            let mut untouched = counter.clone();
            let hits = counter.hits(step);
            if let Some(receipt) = counter.charge_if_allowed(hits) {
                counter.refund(hits, Some(receipt));
            }
            prop_assert_eq!(counter.future(), untouched.future());
            prop_assert_eq!(counter.drive(&later), untouched.drive(&later));
            prop_assert_eq!(counter.future(), untouched.future());
        }
    }

    /// After the refund, the counter equals one that never had the charge. Exception: if the bucket without the charge
    /// would have been full in the meantime, a part of the refunded charge may stay.
    #[test]
    fn late_refund_does_not_reduce_other_charges(
        limit in limits(), start in starts(), warm_up in steps(10), charged in steps(1),
        others in steps(6), last in steps(1),
    ) {
        let mut counter = Counter::new(limit, start);
        counter.drive(&warm_up);
        for step in &charged {
            counter.wait(step);
            let mut without = counter.clone();
            let hits = counter.hits(step);
            let Some(receipt) = counter.charge_if_allowed(hits) else { continue };
            let empty_at = without.micros + without.expires_after();
            for step in others.iter().chain(&last) {
                counter.wait(step);
                without.micros = counter.micros;
                let hits = counter.hits(step);
                if counter.charge_if_allowed(hits).is_some() {
                    without.charge(hits);
                }
            }
            let before = counter.available();
            counter.refund(hits, Some(receipt));
            let refunded = counter.available() - before;
            prop_assert!(0 <= refunded && refunded <= signed(hits));
            let gradual = limit.algorithm().has_burst();
            if gradual && counter.micros >= empty_at {
                let slack = limit.refill_interval() - 1;
                for ahead in [0, 1, limit.refill_interval(), limit.window().micros() / 5] {
                    let most = without.after(ahead + slack).available();
                    prop_assert!(counter.after(ahead).available() <= most);
                }
                let reset = without.expires_after().min(SPAN_MAX - limit.refill_interval());
                prop_assert!(counter.expires_after() >= reset);
            } else {
                prop_assert_eq!(counter.future(), without.future());
            }
        }
    }

    /// Without other charges, the refund removes all that is left of the charge.
    #[test]
    fn late_refund_without_other_charges_restores_the_state(
        limit in limits(), start in starts(), warm_up in steps(10), charged in steps(2),
    ) {
        let mut counter = Counter::new(limit, start);
        counter.drive(&warm_up);
        if let [first, then] = &*charged {
            counter.wait(first);
            let mut without = counter.clone();
            without.advance();
            let hits = counter.hits(first);
            if let Some(receipt) = counter.charge_if_allowed(hits) {
                counter.wait(then);
                without.micros = counter.micros;
                counter.refund(hits, Some(receipt));
                if limit.refill_interval() == 1 {
                    prop_assert_eq!(counter.future(), without.future());
                } else {
                    // At most one unit stays.
                    let slack = limit.refill_interval().div_ceil(limit.refill_units());
                    prop_assert!(counter.expires_after() >= without.expires_after());
                    prop_assert!(counter.expires_after() <= without.expires_after() + slack);
                }
            }
        }
    }

    #[test]
    fn refunds_without_receipt_reduce_usage_to_zero_at_most(
        limit in limits(), start in starts(), warm_up in steps(20), few in 0..=5_u64,
        share in 0..=20_u64, later in steps(10),
    ) {
        let mut counter = Counter::new(limit, start);
        counter.drive(&warm_up);
        let before = counter.available();
        let hits = few + counter.capacity() * share / 16;
        counter.refund(hits, None);
        let after = counter.available();
        prop_assert!(before <= after && after <= signed(counter.capacity()));
        // A refund after which the current tick would fill the bucket fills it at once.
        let tick = if limit.refill_interval() == 1 { 0 } else { limit.refill_units().div_ceil(limit.cost()) };
        prop_assert!(after - before <= signed(hits + tick));
        if limit.algorithm() != Algorithm::SlidingWindowCounter {
            prop_assert!(after >= signed(counter.capacity()).min(before + signed(hits)));
        }
        // Two windows may have more hits than one refund can remove.
        counter.refund(HITS_MAX, None);
        counter.refund(HITS_MAX, None);
        prop_assert_eq!(counter.expires_after(), 0);
        let mut fresh = Counter::new(limit, counter.micros);
        prop_assert_eq!(counter.drive(&later), fresh.drive(&later));
    }
}

/// If a unit takes half a minute to refill, half a unit is not refunded.
#[test]
fn refund_within_a_tick_rounds_down() {
    let burst = Some(u32::MAX);
    let limit = Limit::new(Algorithm::TokenBucket, 1, Window::MAX, burst).unwrap();
    assert_eq!((limit.refill_units(), limit.refill_interval()), (1, 30_157_471));
    let mut counter = Counter::new(limit, 0);
    let mut without = counter.clone();
    let receipt = counter.charge(1);
    counter.advance_clock(limit.refill_interval() / 2);
    without.advance_clock(limit.refill_interval() / 2);
    counter.charge(1);
    without.charge(1);
    counter.refund(1, Some(receipt));
    let more = counter.expires_after() - without.expires_after();
    assert!(more <= limit.refill_interval(), "{more}");
}
