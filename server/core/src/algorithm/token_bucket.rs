//! Token bucket: starts full, refills steadily up to its capacity, and each hit takes a token out.
//!
//! Never admits more than capacity + rate × d in any time span d. Stores three
//! numbers. It stores used tokens, not remaining ones, so that an edited capacity applies at once.
//! The textbook meter of traffic shaping, as in RFC 2697.
//!
//! The bucket refills by [`Limit::refill_units`] units every [`Limit::refill_interval`] microseconds; a hit costs
//! [`Limit::cost`] units. Parts of a tick are carried over, so that frequent checks lose nothing. The
//! time at which the bucket is full is exact to the microsecond, so that the tick before it does not
//! refill later hits.

use super::{
    arithmetic::{mul_div, mul_div_ceil, refill, remaining_hits},
    counter::{Counter, Numbers, Receipt, USED_MAX},
};
use crate::{Limit, Time, time::SPAN_MAX};

/// Units used and not yet refilled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenBucket {
    /// Microseconds since the Unix epoch up to which refills have been counted: the present, or the start of
    /// the current tick.
    last: u64,
    /// Units used.
    used: u64,
    /// Units per hit in which `used` is measured.
    cost: u64,
}

impl Counter for TokenBucket {
    fn advance(&mut self, limit: &Limit, now: Time) -> Time {
        if self.cost != limit.cost() {
            self.used = rescaled(self.used, self.cost, limit.cost());
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
        let taken = hits.saturating_mul(limit.cost());
        let left = receipt.map_or(taken, |Receipt { at, used }| {
            let mut then = Self { last: at, used, cost: self.cost };
            then.advance(limit, now);
            then.used_at(limit, now)
        });
        self.used -= taken.min(left).min(self.used);
        self.advance(limit, now);
    }

    fn retry_after(&self, limit: &Limit, now: Time, hits: u64) -> u64 {
        let may_be_used = u64::from(limit.capacity()).saturating_sub(hits) * limit.cost();
        if self.used <= may_be_used {
            return 0;
        }
        let ticks = (self.used - may_be_used).div_ceil(limit.refill_units());
        let refill = ticks.saturating_mul(limit.refill_interval()).min(SPAN_MAX);
        refill.saturating_sub(self.elapsed(now)).min(self.expires_after(limit, now))
    }

    fn expires_after(&self, limit: &Limit, now: Time) -> u64 {
        refill(limit, self.used).saturating_sub(self.elapsed(now))
    }

    fn numbers(&self) -> Numbers {
        Numbers::from_slice(&[self.last, self.used, self.cost])
    }

    fn from_numbers(numbers: &[u64]) -> Option<Self> {
        let &[last, used, cost] = numbers else { return None };
        Some(Self { last, used, cost })
    }
}

impl TokenBucket {
    /// Microseconds since the last refill that was counted; once advanced, within the current tick.
    const fn elapsed(&self, now: Time) -> u64 {
        now.as_micros().saturating_sub(self.last)
    }

    /// Units used once the current tick is refilled up to the present, rounded down.
    fn used_at(&self, limit: &Limit, now: Time) -> u64 {
        let refilled =
            mul_div_ceil(limit.refill_units(), self.elapsed(now), limit.refill_interval());
        self.used.saturating_sub(refilled)
    }
}

/// The same usage where a hit costs `to` units instead of `from`, rounded up to a unit. Rounding up to
/// whole hits would let two limits that take turns on a counter keep it from ever refilling.
fn rescaled(used: u64, from: u64, to: u64) -> u64 {
    let from = from.max(1);
    let whole = (used / from).saturating_mul(to);
    whole.saturating_add(mul_div_ceil(to, used % from, from)).min(USED_MAX)
}
