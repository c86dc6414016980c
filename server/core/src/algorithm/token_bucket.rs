//! Token bucket: starts full and refills at a steady rate up to its capacity; each hit removes a token.
//!
//! Never admits more than capacity + rate × d in any time span d. Stores three numbers: used tokens and not remaining
//! ones, so that a changed capacity applies at once. Source: the textbook meter of traffic shaping, as in RFC 2697.
//!
//! The bucket refills by [`Limit::refill_units`] units every [`Limit::refill_interval`] microseconds; that interval is
//! one tick. A hit costs [`Limit::cost`] units. The elapsed part of a tick carries over, so that frequent checks do not
//! slow the refill. The time at which the bucket is full is exact to the microsecond, so that the rest of that tick
//! does not refill hits that are charged later.

use super::{
    algorithm_state::{AlgorithmState, Receipt, StateNumbers, USED_MAX},
    arithmetic::{mul_div, mul_div_ceil, refill_time, remaining_hits},
};
use crate::{Limit, Time, time::SPAN_MAX};

/// State of a token bucket: the units that are used and not yet refilled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenBucket {
    /// Time up to which refills have been counted, in microseconds since the Unix epoch: the start of the current tick,
    /// or the time at which the bucket was last full.
    last: u64,
    /// Units used.
    used: u64,
    /// Units per hit that `used` is measured in: [`Limit::cost`] of the limit that last used the state.
    cost: u64,
}

impl AlgorithmState for TokenBucket {
    fn advance(&mut self, limit: &Limit, now: Time) -> Time {
        if self.cost != limit.cost() {
            self.used = rescale(self.used, self.cost, limit.cost());
            self.cost = limit.cost();
        }
        let now = now.max(Time::from_micros(self.last));
        let elapsed = self.elapsed(now);
        let ticks = elapsed / limit.refill_interval();
        let part = elapsed % limit.refill_interval();
        self.used = self.used.saturating_sub(ticks.saturating_mul(limit.refill_units()));
        self.last += ticks * limit.refill_interval();
        if self.used <= mul_div(limit.refill_units(), part, limit.refill_interval()) {
            self.used = 0;
            self.last = now.as_micros();
        }
        now
    }

    fn available(&self, limit: &Limit, _now: Time) -> i64 {
        remaining_hits(u64::from(limit.capacity()), self.used.div_ceil(limit.cost()))
    }

    fn charge(&mut self, limit: &Limit, _now: Time, hits: u64) -> Receipt {
        self.used = self.used.saturating_add(hits.saturating_mul(limit.cost())).min(USED_MAX);
        Receipt { at: self.last, used: self.used }
    }

    fn refund(&mut self, limit: &Limit, now: Time, hits: u64, receipt: Option<Receipt>) {
        let charged = hits.saturating_mul(limit.cost());
        let still_counted = receipt.map_or(charged, |Receipt { at, used }| {
            let mut at_charge = Self { last: at, used, cost: self.cost };
            at_charge.advance(limit, now);
            at_charge.used_at(limit, now)
        });
        self.used -= charged.min(still_counted).min(self.used);
        self.advance(limit, now);
    }

    fn retry_after(&self, limit: &Limit, now: Time, hits: u64) -> u64 {
        let used_max = u64::from(limit.capacity()).saturating_sub(hits) * limit.cost();
        if self.used <= used_max {
            return 0;
        }
        let ticks = (self.used - used_max).div_ceil(limit.refill_units());
        let refill = ticks.saturating_mul(limit.refill_interval()).min(SPAN_MAX);
        refill.saturating_sub(self.elapsed(now)).min(self.expires_after(limit, now))
    }

    fn expires_after(&self, limit: &Limit, now: Time) -> u64 {
        refill_time(limit, self.used).saturating_sub(self.elapsed(now))
    }

    fn numbers(&self) -> StateNumbers {
        StateNumbers::from_slice(&[self.last, self.used, self.cost])
    }

    fn from_numbers(numbers: &[u64]) -> Option<Self> {
        let &[last, used, cost] = numbers else { return None };
        Some(Self { last, used, cost })
    }
}

impl TokenBucket {
    /// Microseconds since the last refill that was counted. Less than a tick after `advance`.
    const fn elapsed(&self, now: Time) -> u64 {
        now.as_micros().saturating_sub(self.last)
    }

    /// Units used if the elapsed part of the current tick is refilled too, rounded down.
    fn used_at(&self, limit: &Limit, now: Time) -> u64 {
        let refilled =
            mul_div_ceil(limit.refill_units(), self.elapsed(now), limit.refill_interval());
        self.used.saturating_sub(refilled)
    }
}

/// Converts usage from `from` units per hit to `to` units per hit, rounded up to a unit. With rounding up to whole
/// hits, a counter that two limits use alternately would never refill.
fn rescale(used: u64, from: u64, to: u64) -> u64 {
    let from = from.max(1);
    let whole = (used / from).saturating_mul(to);
    whole.saturating_add(mul_div_ceil(to, used % from, from)).min(USED_MAX)
}
