//! Generic cell rate algorithm (GCRA): a token bucket stored as a single time, the theoretical arrival time (TAT) of
//! the next hit if hits arrived evenly spaced.
//!
//! Never admits more than burst + rate × d in any time span d, like a token bucket with that burst. Stores one number.
//! Source: ITU-T I.371, which specifies it for ATM cells.

use super::{
    algorithm_state::{AlgorithmState, Receipt, StateNumbers},
    arithmetic::remaining_hits,
};
use crate::{Limit, Time};

/// The most that the TAT can be ahead of the present, in microseconds. Only hits charged past a limit reach it. Further
/// hits are not recorded.
const AHEAD_MAX: u64 = 1 << 52;

/// State of GCRA: the theoretical arrival time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gcra {
    /// Microseconds since the Unix epoch. A TAT in the past means that the counter is unused.
    tat: u64,
}

impl AlgorithmState for Gcra {
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
        let charged = hits.saturating_mul(limit.cost());
        let still_counted = receipt.map_or(charged, |receipt| Self { tat: receipt.at }.ahead(now));
        self.tat -= charged.min(still_counted).min(self.ahead(now));
    }

    fn retry_after(&self, limit: &Limit, now: Time, hits: u64) -> u64 {
        let ahead_max = u64::from(limit.capacity()).saturating_sub(hits) * limit.cost();
        self.ahead(now).saturating_sub(ahead_max)
    }

    fn expires_after(&self, _limit: &Limit, now: Time) -> u64 {
        self.ahead(now)
    }

    fn numbers(&self) -> StateNumbers {
        StateNumbers::from_slice(&[self.tat])
    }

    fn from_numbers(numbers: &[u64]) -> Option<Self> {
        let &[tat] = numbers else { return None };
        Some(Self { tat })
    }
}

impl Gcra {
    /// Microseconds by which the TAT is ahead of `now`; 0 if it is not.
    const fn ahead(&self, now: Time) -> u64 {
        self.tat.saturating_sub(now.as_micros())
    }
}
