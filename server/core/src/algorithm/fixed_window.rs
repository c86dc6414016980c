//! Fixed window: counts hits in windows that are aligned to the Unix epoch.
//!
//! Never admits more than the limit in an aligned window. Around the boundary of two windows it can admit twice the
//! limit within a moment; the sliding algorithms cannot. Stores two numbers. envoyproxy/ratelimit uses this algorithm.

use super::{
    algorithm_state::{AlgorithmState, Receipt, StateNumbers, USED_MAX},
    arithmetic::remaining_hits,
};
use crate::{Limit, Time};

/// State of a fixed window: the hits charged in one aligned window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FixedWindow {
    /// Number of the window since the Unix epoch.
    window: u64,
    /// Hits charged in it.
    used: u64,
}

impl AlgorithmState for FixedWindow {
    fn advance(&mut self, limit: &Limit, now: Time) -> Time {
        let length = limit.window().micros();
        let start = self.window.saturating_mul(length);
        // Most calls are in the same window as the call before, and then need no division.
        if now.as_micros() < start.saturating_add(length) {
            return now.max(Time::from_micros(start));
        }
        *self = Self { window: now.as_micros() / length, used: 0 };
        now
    }

    fn available(&self, limit: &Limit, _now: Time) -> i64 {
        remaining_hits(u64::from(limit.requests()), self.used)
    }

    fn charge(&mut self, _limit: &Limit, _now: Time, hits: u64) -> Receipt {
        self.used = (self.used + hits).min(USED_MAX);
        Receipt { at: self.window, used: 0 }
    }

    fn refund(&mut self, _limit: &Limit, _now: Time, hits: u64, receipt: Option<Receipt>) {
        if receipt.is_none_or(|receipt| receipt.at == self.window) {
            self.used = self.used.saturating_sub(hits);
        }
    }

    fn retry_after(&self, limit: &Limit, now: Time, hits: u64) -> u64 {
        if self.used + hits <= u64::from(limit.requests()) {
            0
        } else {
            self.until_window_end(limit, now)
        }
    }

    fn expires_after(&self, limit: &Limit, now: Time) -> u64 {
        if self.used == 0 { 0 } else { self.until_window_end(limit, now) }
    }

    /// The end of the window, also if no hit was charged in it, because clients expect windows to follow the clock.
    fn reset_after(&self, limit: &Limit, now: Time) -> u64 {
        self.until_window_end(limit, now)
    }

    fn numbers(&self) -> StateNumbers {
        StateNumbers::from_slice(&[self.window, self.used])
    }

    fn from_numbers(numbers: &[u64]) -> Option<Self> {
        let &[window, used] = numbers else { return None };
        Some(Self { window, used })
    }
}

impl FixedWindow {
    /// Moves the hits of a window that begins after `now` into the window of `now`. After the clock was set back, the
    /// hits then count until the current window ends, and not until the clock has passed their old window.
    pub fn move_to_present(&mut self, limit: &Limit, now: Time) {
        let length = limit.window().micros();
        if now.as_micros() < self.window.saturating_mul(length) {
            self.window = now.as_micros() / length;
        }
    }

    /// Microseconds until the window ends.
    fn until_window_end(&self, limit: &Limit, now: Time) -> u64 {
        let end = (self.window + 1).saturating_mul(limit.window().micros());
        end.saturating_sub(now.as_micros())
    }
}
