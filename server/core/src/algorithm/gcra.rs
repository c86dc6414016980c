//! Generic cell rate algorithm: a token bucket kept as a single time, the theoretical arrival time
//! (TAT) of the next hit if hits came evenly spaced.
//!
//! Never admits more than burst + rate × d in any time span d: the same
//! admissions as a token bucket of that capacity. Stores one number. From ITU-T I.371, where it polices
//! ATM cells.

use super::{
    arithmetic::remaining_hits,
    counter::{Counter, Numbers, Receipt},
};
use crate::{Limit, Time};

/// The most that the TAT can be ahead of the present, in microseconds. Only hits charged past a limit reach
/// it.
const AHEAD_MAX: u64 = 1 << 52;

/// The theoretical arrival time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gcra {
    /// Microseconds since the Unix epoch. A time in the past counts as the present.
    tat: u64,
}

impl Counter for Gcra {
    fn advance(&mut self, _limit: &Limit, now: Time) -> Time {
        now
    }

    fn available(&self, limit: &Limit, now: Time) -> i64 {
        remaining_hits(u64::from(limit.capacity()), self.ahead(now).div_ceil(limit.cost()))
    }

    fn charge(&mut self, limit: &Limit, now: Time, hits: u64) -> Receipt {
        let ahead = self.ahead(now).saturating_add(hits.saturating_mul(limit.cost()));
        self.tat = now.as_micros() + ahead.min(AHEAD_MAX);
        Receipt { at: self.tat, used: 0 }
    }

    fn refund(&mut self, limit: &Limit, now: Time, hits: u64, receipt: Option<Receipt>) {
        let taken = hits.saturating_mul(limit.cost());
        let left = receipt.map_or(taken, |receipt| Self { tat: receipt.at }.ahead(now));
        self.tat -= taken.min(left).min(self.ahead(now));
    }

    fn retry_after(&self, limit: &Limit, now: Time, hits: u64) -> u64 {
        let may_be_ahead = u64::from(limit.capacity()).saturating_sub(hits) * limit.cost();
        self.ahead(now).saturating_sub(may_be_ahead)
    }

    fn expires_after(&self, _limit: &Limit, now: Time) -> u64 {
        self.ahead(now)
    }

    fn numbers(&self) -> Numbers {
        Numbers::from_slice(&[self.tat])
    }

    fn from_numbers(numbers: &[u64]) -> Option<Self> {
        let &[tat] = numbers else { return None };
        Some(Self { tat })
    }
}

impl Gcra {
    /// Microseconds from the present to the TAT.
    const fn ahead(&self, now: Time) -> u64 {
        self.tat.saturating_sub(now.as_micros())
    }
}
