//! Token bucket: starts full, refills steadily up to its capacity, and each hit takes a token out.
//!
//! Never admits more than the capacity plus the rate's share of the span, in any span. Keeps three
//! numbers. What is kept is what was used, not what is left, so that an edited capacity acts at once.
//! The textbook meter of traffic shaping, as in RFC 2697.
//!
//! The bucket refills by [`Limit::gain`] units every [`Limit::tick`] microseconds; a hit costs
//! [`Limit::cost`] units. Parts of a tick are carried over, so that asking often loses nothing, and the
//! moment the bucket is full is known to the microsecond, so that hits after it are not paid by the
//! tick before it.

use super::{Counter, Numbers, Receipt, USED_MAX, room, share, share_rounded_up};
use crate::{Limit, Time, time::SPAN_MAX};

/// Units used and not yet refilled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenBucket {
    /// Microseconds since the Unix epoch up to which refills have been counted: the present or, while
    /// a tick is under way, its start.
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
        let ticks = elapsed / limit.tick();
        let part = elapsed % limit.tick();
        self.used = self.used.saturating_sub(ticks.saturating_mul(limit.gain()));
        self.last += ticks * limit.tick();
        if self.used <= share(limit.gain(), part, limit.tick()) {
            self.used = 0;
            self.last = now.as_micros();
        }
        now
    }

    fn available(&self, limit: &Limit, _now: Time) -> i64 {
        room(u64::from(limit.capacity()), self.used.div_ceil(limit.cost()))
    }

    fn take(&mut self, limit: &Limit, _now: Time, hits: u64) -> Receipt {
        self.used = self.used.saturating_add(hits.saturating_mul(limit.cost())).min(USED_MAX);
        Receipt { at: self.last, used: self.used }
    }

    fn give_back(&mut self, limit: &Limit, now: Time, hits: u64, receipt: Option<Receipt>) {
        let taken = hits.saturating_mul(limit.cost());
        let left = receipt.map_or(taken, |Receipt { at, used }| {
            let mut then = Self { last: at, used, cost: self.cost };
            then.advance(limit, now);
            then.used_by(limit, now)
        });
        self.used -= taken.min(left).min(self.used);
        self.advance(limit, now);
    }

    fn retry_after(&self, limit: &Limit, now: Time, hits: u64) -> u64 {
        let may_be_used = u64::from(limit.capacity()).saturating_sub(hits) * limit.cost();
        if self.used <= may_be_used {
            return 0;
        }
        let ticks = (self.used - may_be_used).div_ceil(limit.gain());
        let refill = ticks.saturating_mul(limit.tick()).min(SPAN_MAX);
        refill.saturating_sub(self.elapsed(now)).min(self.reset_after(limit, now))
    }

    fn reset_after(&self, limit: &Limit, now: Time) -> u64 {
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
    /// Microseconds since the last refill that was counted; once advanced, of the tick under way.
    const fn elapsed(&self, now: Time) -> u64 {
        now.as_micros().saturating_sub(self.last)
    }

    /// Units used once the tick under way is refilled up to the present, rounded down.
    fn used_by(&self, limit: &Limit, now: Time) -> u64 {
        let refilled = share_rounded_up(limit.gain(), self.elapsed(now), limit.tick());
        self.used.saturating_sub(refilled)
    }
}

/// Microseconds in which so many units are refilled.
pub(super) fn refill(limit: &Limit, used: u64) -> u64 {
    let ticks = used / limit.gain();
    let part = share_rounded_up(limit.tick(), used % limit.gain(), limit.gain());
    ticks.saturating_mul(limit.tick()).saturating_add(part).min(SPAN_MAX)
}

/// The same usage where a hit costs `to` units instead of `from`, rounded up to a unit. Rounding up to
/// whole hits would let two limits that take turns on a counter keep it from ever refilling.
fn rescaled(used: u64, from: u64, to: u64) -> u64 {
    let from = from.max(1);
    let whole = (used / from).saturating_mul(to);
    whole.saturating_add(share_rounded_up(to, used % from, from)).min(USED_MAX)
}
