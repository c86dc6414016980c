//! The functions of every algorithm, and the receipt of a charge.

use std::time::Duration;

use smallvec::SmallVec;

use super::arithmetic::refill;
use crate::{Algorithm, Limit, Time};

/// The most hits of one check: above any limit, and small enough for the arithmetic.
pub const HITS_MAX: u64 = 1 << 32;

/// The most usage a state records, in units of the algorithm: the largest integer that a double holds exactly.
/// Only hits charged past a limit reach it; beyond it they are no longer counted.
pub(super) const USED_MAX: u64 = (1 << 53) - 1;

/// Identifies a charge, so that a refund does not reduce the usage of other charges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// Time or window of the charge, in units of the algorithm.
    pub at: u64,
    /// Usage right after the charge, for algorithms whose usage decreases gradually.
    pub used: u64,
}

impl Receipt {
    /// The receipt of the first part of a charge, as if the other `hits` had been charged right after,
    /// by another request.
    #[must_use]
    pub fn for_first_part(self, limit: &Limit, hits: u64) -> Self {
        let after = hits.saturating_mul(limit.cost());
        match limit.algorithm() {
            Algorithm::TokenBucket => Self { used: self.used.saturating_sub(after), ..self },
            Algorithm::Gcra => Self { at: self.at.saturating_sub(after), ..self },
            Algorithm::FixedWindow
            | Algorithm::SlidingWindowLog
            | Algorithm::SlidingWindowCounter => self,
        }
    }

    /// How much sooner the counter would be unused again without those hits.
    #[must_use]
    pub fn reset_reduction(self, limit: &Limit, hits: u64) -> Duration {
        let before = self.for_first_part(limit, hits);
        Duration::from_micros(match limit.algorithm() {
            Algorithm::TokenBucket => {
                refill(limit, self.used).saturating_sub(refill(limit, before.used))
            }
            Algorithm::Gcra => self.at.saturating_sub(before.at),
            // Hits of one time expire together.
            Algorithm::FixedWindow
            | Algorithm::SlidingWindowLog
            | Algorithm::SlidingWindowCounter => 0,
        })
    }
}

/// The numbers of a state, each below 2^53.
pub type Numbers = SmallVec<[u64; 4]>;

/// The functions of every algorithm on its state.
///
/// `now` in all functions except `advance` is the time that `advance` returned.
pub(crate) trait Counter: Sized {
    /// Removes expired usage. Returns the present of this state: `now`, but never before
    /// the last time of the state.
    fn advance(&mut self, limit: &Limit, now: Time) -> Time;

    /// Hits that may pass now; negative if more was charged than the limit allows.
    fn available(&self, limit: &Limit, now: Time) -> i64;

    /// Charges hits, whether or not they are available.
    fn charge(&mut self, limit: &Limit, now: Time, hits: u64) -> Receipt;

    /// Refunds `hits`, never below zero usage: of the charge with this receipt, as far as it
    /// still counts, or without one of any charge.
    fn refund(&mut self, limit: &Limit, now: Time, hits: u64, receipt: Option<Receipt>);

    /// Microseconds until `hits` would be available without other requests; 0 if they are. `hits` is at most
    /// the limit's capacity.
    fn retry_after(&self, limit: &Limit, now: Time, hits: u64) -> u64;

    /// Microseconds until the state is unused again.
    fn expires_after(&self, limit: &Limit, now: Time) -> u64;

    /// Microseconds until the reset that callers see.
    fn reset_after(&self, limit: &Limit, now: Time) -> u64 {
        self.expires_after(limit, now)
    }

    /// The numbers of the state.
    fn numbers(&self) -> Numbers;

    /// The state of these numbers, if they are valid.
    fn from_numbers(numbers: &[u64]) -> Option<Self>;
}
