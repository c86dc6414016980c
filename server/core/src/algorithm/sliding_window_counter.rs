//! Sliding window counter: estimates the hits of the last window from the counts of two aligned windows, as if the hits
//! of the previous one had arrived evenly.
//!
//! Never admits more than the limit in an aligned window, and always less than twice the limit in any other window. The
//! estimate is exact if hits arrive evenly. Stores three numbers. Source: Cloudflare, "How we built rate limiting
//! capable of scaling to millions of domains", 2017.

use super::{
    algorithm_state::{AlgorithmState, Receipt, StateNumbers},
    arithmetic::{mul_div, mul_div_ceil, remaining_hits},
};
use crate::{Limit, Time};

/// The most hits that a window records. Above any limit, and small enough that `mul_div` in the scripts stays below
/// 2^53 at every step.
const COUNT_MAX: u64 = 1 << 32;

/// State of a sliding window counter: the hits charged in two adjacent aligned windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlidingWindowCounter {
    /// Number of the current window since the Unix epoch.
    window: u64,
    /// Hits charged in the previous window.
    previous: u64,
    /// Hits charged in the current window.
    current: u64,
}

impl AlgorithmState for SlidingWindowCounter {
    fn advance(&mut self, limit: &Limit, now: Time) -> Time {
        let length = limit.window().micros();
        let window = now.as_micros() / length;
        if window > self.window {
            let previous = if window - self.window == 1 { self.current } else { 0 };
            *self = Self { window, previous, current: 0 };
        }
        now.max(Time::from_micros(self.window.saturating_mul(length)))
    }

    fn available(&self, limit: &Limit, now: Time) -> i64 {
        remaining_hits(
            u64::from(limit.requests()),
            self.current + self.weighted_previous(limit, now),
        )
    }

    fn charge(&mut self, _limit: &Limit, _now: Time, hits: u64) -> Receipt {
        self.current = (self.current + hits).min(COUNT_MAX);
        Receipt { at: self.window, used: 0 }
    }

    fn refund(&mut self, _limit: &Limit, _now: Time, hits: u64, receipt: Option<Receipt>) {
        match receipt {
            Some(receipt) if receipt.at == self.window => {
                self.current = self.current.saturating_sub(hits);
            }
            Some(receipt) if receipt.at.saturating_add(1) == self.window => {
                self.previous = self.previous.saturating_sub(hits);
            }
            Some(_) => {}
            None => {
                let rest = hits.saturating_sub(self.previous);
                self.previous = self.previous.saturating_sub(hits);
                self.current = self.current.saturating_sub(rest);
            }
        }
    }

    fn retry_after(&self, limit: &Limit, now: Time, hits: u64) -> u64 {
        let length = limit.window().micros();
        let window_end = self.end(limit);
        let room = u64::from(limit.requests()).saturating_sub(hits);
        let at = if self.current > room {
            window_end.saturating_add(length) - mul_div(length, room, self.current)
        } else if self.current + self.weighted_previous(limit, now) > room {
            window_end - mul_div(length, room - self.current, self.previous)
        } else {
            return 0;
        };
        at.saturating_sub(now.as_micros())
    }

    fn expires_after(&self, limit: &Limit, now: Time) -> u64 {
        let window_end = self.end(limit);
        let at = match (self.previous, self.current) {
            (0, 0) => return 0,
            (_, 0) => window_end,
            _ => window_end.saturating_add(limit.window().micros()),
        };
        at.saturating_sub(now.as_micros())
    }

    fn numbers(&self) -> StateNumbers {
        StateNumbers::from_slice(&[self.window, self.previous, self.current])
    }

    fn from_numbers(numbers: &[u64]) -> Option<Self> {
        let &[window, previous, current] = numbers else { return None };
        (previous.max(current) <= COUNT_MAX).then_some(Self { window, previous, current })
    }
}

impl SlidingWindowCounter {
    /// The end of the current window, in microseconds since the Unix epoch.
    fn end(&self, limit: &Limit) -> u64 {
        (self.window + 1).saturating_mul(limit.window().micros())
    }

    /// Hits of the previous window that still count, rounded up: in proportion to the part of it that is less than one
    /// window ago.
    fn weighted_previous(&self, limit: &Limit, now: Time) -> u64 {
        let remaining = self.end(limit).saturating_sub(now.as_micros());
        mul_div_ceil(self.previous, remaining, limit.window().micros())
    }
}
