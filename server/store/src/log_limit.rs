//! Rate limit for repeated log lines.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use crate::clock;

/// The default interval.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(1);

/// Admits one line in each interval.
#[derive(Debug)]
pub struct LogLimit {
    start: Instant,
    /// In milliseconds.
    interval: u64,
    /// When the next line is admitted, in milliseconds after `start`.
    next: AtomicU64,
}

impl Default for LogLimit {
    /// One line per second.
    fn default() -> Self {
        Self::every(DEFAULT_INTERVAL)
    }
}

impl LogLimit {
    /// One line in each interval of this length.
    #[must_use]
    pub fn every(interval: Duration) -> Self {
        Self { start: clock::now(), interval: millis(interval), next: AtomicU64::new(0) }
    }

    /// Whether a line is admitted now. If it is, the next one is admitted an interval later.
    pub fn try_acquire(&self) -> bool {
        self.try_acquire_at(millis(clock::now() - self.start))
    }

    fn try_acquire_at(&self, now: u64) -> bool {
        let next = self.next.load(Ordering::Relaxed);
        let (after, order) = (now.saturating_add(self.interval), Ordering::Relaxed);
        now >= next && self.next.compare_exchange(next, after, order, order).is_ok()
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admitted_lines_are_an_interval_apart() {
        let limit = LogLimit::every(Duration::from_secs(60));
        let seconds = [0, 1, 59, 60, 61, 500, 501];
        let admitted = seconds.map(|second| limit.try_acquire_at(second * 1000));
        assert_eq!(admitted, [true, false, false, true, false, true, false]);
    }
}
