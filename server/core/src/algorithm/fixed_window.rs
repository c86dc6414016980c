//! Fixed window: counts hits in windows aligned to the Unix epoch, whatever their length.
//!
//! Never admits more than the limit in an aligned window. Across the boundary of two windows it can
//! admit twice the limit within a moment, which is what the sliding algorithms are for. Keeps two
//! numbers. The counter that every rate limiter starts with, Envoy's reference service among them.

use super::{Counter, Numbers, Receipt, USED_MAX, room};
use crate::{Limit, Time};

/// Hits used in one aligned window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FixedWindow {
    /// Number of the window since the Unix epoch.
    window: u64,
    /// Hits charged in it.
    used: u64,
}

impl Counter for FixedWindow {
    fn advance(&mut self, limit: &Limit, now: Time) -> Time {
        let length = limit.window().micros();
        let start = self.window.saturating_mul(length);
        // Most often this is the window of the last time: without a division.
        if now.as_micros() < start.saturating_add(length) {
            return now.max(Time::from_micros(start));
        }
        *self = Self { window: now.as_micros() / length, used: 0 };
        now
    }

    fn available(&self, limit: &Limit, _now: Time) -> i64 {
        room(u64::from(limit.requests()), self.used)
    }

    fn take(&mut self, _limit: &Limit, _now: Time, hits: u64) -> Receipt {
        self.used = (self.used + hits).min(USED_MAX);
        Receipt { at: self.window, used: 0 }
    }

    fn give_back(&mut self, _limit: &Limit, _now: Time, hits: u64, receipt: Option<Receipt>) {
        if receipt.is_none_or(|receipt| receipt.at == self.window) {
            self.used = self.used.saturating_sub(hits);
        }
    }

    fn retry_after(&self, limit: &Limit, now: Time, hits: u64) -> u64 {
        if self.used + hits <= u64::from(limit.requests()) { 0 } else { self.remaining(limit, now) }
    }

    fn reset_after(&self, limit: &Limit, now: Time) -> u64 {
        if self.used == 0 { 0 } else { self.remaining(limit, now) }
    }

    /// The end of the window, used or not: callers think of windows by the clock.
    fn until_reset(&self, limit: &Limit, now: Time) -> u64 {
        self.remaining(limit, now)
    }

    fn numbers(&self) -> Numbers {
        Numbers::from_slice(&[self.window, self.used])
    }

    fn from_numbers(numbers: &[u64]) -> Option<Self> {
        let &[window, used] = numbers else { return None };
        Some(Self { window, used })
    }
}

impl FixedWindow {
    /// Moves the hits of a window that begins after `now` into the window of `now`. For a clock that was set back:
    /// the hits count until the present window ends, and not until the clock has caught up.
    pub fn bring_back(&mut self, limit: &Limit, now: Time) {
        let length = limit.window().micros();
        if now.as_micros() < self.window.saturating_mul(length) {
            self.window = now.as_micros() / length;
        }
    }

    /// Microseconds until the window ends.
    fn remaining(&self, limit: &Limit, now: Time) -> u64 {
        let end = (self.window + 1).saturating_mul(limit.window().micros());
        end.saturating_sub(now.as_micros())
    }
}
