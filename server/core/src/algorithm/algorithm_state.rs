//! The trait that every algorithm implements, and the receipt of a charge.

use std::time::Duration;

use smallvec::SmallVec;

use super::arithmetic::refill_time;
use crate::{Algorithm, Limit, Time};

/// The most hits of one check. Above any limit, and small enough for arithmetic below 2^53.
pub const HITS_MAX: u64 = 1 << 32;

/// The most usage that a state records, in units of the algorithm: the largest integer that a double holds exactly.
/// Only hits charged past a limit reach it. Further hits are not recorded.
pub(super) const USED_MAX: u64 = (1 << 53) - 1;

/// Identifies a charge, so that a refund reduces the usage of that charge only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// When the charge was made. Windows: number of the window since the Unix epoch. Log: time of the charge. Token
    /// bucket: time up to which refills had been counted. GCRA: the TAT after the charge. Times are in microseconds
    /// since the Unix epoch.
    pub at: u64,
    /// Units used right after the charge, for the token bucket; 0 for other algorithms.
    pub used: u64,
}

impl Receipt {
    /// Splits a charge that was made for several requests: the receipt of the charge without its last `hits`, as if
    /// these had been charged right afterwards.
    #[must_use]
    pub fn without_last_hits(self, limit: &Limit, hits: u64) -> Self {
        let after = hits.saturating_mul(limit.cost());
        match limit.algorithm() {
            Algorithm::TokenBucket => Self { used: self.used.saturating_sub(after), ..self },
            Algorithm::Gcra => Self { at: self.at.saturating_sub(after), ..self },
            Algorithm::FixedWindow
            | Algorithm::SlidingWindowLog
            | Algorithm::SlidingWindowCounter => self,
        }
    }

    /// Time by which the counter would expire earlier if the last `hits` of the charge had not been charged.
    #[must_use]
    pub fn reset_reduction(self, limit: &Limit, hits: u64) -> Duration {
        let before = self.without_last_hits(limit, hits);
        Duration::from_micros(match limit.algorithm() {
            Algorithm::TokenBucket => {
                refill_time(limit, self.used).saturating_sub(refill_time(limit, before.used))
            }
            Algorithm::Gcra => self.at.saturating_sub(before.at),
            // Hits that were charged at one time expire together.
            Algorithm::FixedWindow
            | Algorithm::SlidingWindowLog
            | Algorithm::SlidingWindowCounter => 0,
        })
    }
}

/// The state of a counter as numbers, each below 2^53.
pub type StateNumbers = SmallVec<[u64; 4]>;

/// An algorithm: the functions on the state of one counter.
///
/// In all functions except `advance`, `now` is the time that `advance` returned.
pub(crate) trait AlgorithmState: Sized {
    /// Removes expired usage. Returns the time at which the state is to be read: `now`, or the last time that the state
    /// has recorded if that is later, because the clock was set back.
    fn advance(&mut self, limit: &Limit, now: Time) -> Time;

    /// Hits that may still pass at `now`; negative if more was charged than the limit allows.
    fn available(&self, limit: &Limit, now: Time) -> i64;

    /// Charges hits, whether or not they are available.
    fn charge(&mut self, limit: &Limit, now: Time, hits: u64) -> Receipt;

    /// Refunds up to `hits`. With a receipt, refunds only what that charge still counts; without one, reduces any
    /// usage. Usage never falls below zero.
    fn refund(&mut self, limit: &Limit, now: Time, hits: u64, receipt: Option<Receipt>);

    /// Microseconds until `hits` are available if no other hits are charged meanwhile; 0 if they are available now.
    /// `hits` is at most the limit's capacity.
    fn retry_after(&self, limit: &Limit, now: Time, hits: u64) -> u64;

    /// Microseconds until no charged hit counts any longer, so that the state need not be stored; 0 if it is unused.
    fn expires_after(&self, limit: &Limit, now: Time) -> u64;

    /// Microseconds until the reset that responses report.
    fn reset_after(&self, limit: &Limit, now: Time) -> u64 {
        self.expires_after(limit, now)
    }

    /// The state as numbers.
    fn numbers(&self) -> StateNumbers;

    /// Reads a state from its numbers; `None` if they are not valid.
    fn from_numbers(numbers: &[u64]) -> Option<Self>;
}
