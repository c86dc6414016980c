//! How often the same thing may be logged.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// One line a second, so that a server that misbehaves with every reply does not fill the log.
const INTERVAL: Duration = Duration::from_secs(1);

/// Lets one line pass in each [`INTERVAL`].
#[derive(Debug)]
pub(super) struct LogLimit {
    began: Instant,
    /// The milliseconds since then from which on another may pass.
    next: AtomicU64,
}

impl Default for LogLimit {
    fn default() -> Self {
        Self { began: Instant::now(), next: AtomicU64::new(0) }
    }
}

impl LogLimit {
    /// Whether a line may pass now.
    pub(super) fn allows(&self) -> bool {
        let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        let now = millis(self.began.elapsed());
        let next = self.next.load(Ordering::Relaxed);
        let (from, order) = (now.saturating_add(millis(INTERVAL)), Ordering::Relaxed);
        now >= next && self.next.compare_exchange(next, from, order, order).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_passes_at_a_time() {
        let limit = LogLimit::default();
        let passed = (0..100).filter(|_| limit.allows()).count();
        assert_eq!(passed, 1);
        limit.next.store(0, Ordering::Relaxed);
        assert!(limit.allows());
    }
}
