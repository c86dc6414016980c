//! Whether answers come in time.
//!
//! A process that is not scheduled cannot answer. A pulse measures how late the process is with
//! something that takes no time at all. What misses its deadline by more than that is counted against
//! the service: by more than twice that, because one thread may wait longer than the one that has the
//! pulse, and only when the next pulse was felt, because the delay that made both late is known then.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use super::count::Count;

/// How often the pulse is felt.
const INTERVAL: Duration = Duration::from_millis(20);

/// Timers fire up to a tick late.
const TICK: Duration = Duration::from_millis(2);

/// Pulses for which a delay is remembered: a second.
const REMEMBERED: u32 = 50;

/// Answers that came too late, and why that may be. Times are in microseconds.
#[derive(Debug, Default)]
pub(crate) struct DeadlineMonitor {
    pub(crate) late: Count,
    /// Answers since the last pulse that missed their deadline, and by how much at most.
    missed: AtomicU64,
    missed_by: AtomicU64,
    longest: AtomicU64,
}

impl DeadlineMonitor {
    /// Notes by how much an answer missed its deadline.
    pub(crate) fn note(&self, overrun: Duration) {
        if overrun > TICK {
            self.missed_by.fetch_max(micros(overrun - TICK), Ordering::Relaxed);
            self.missed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The longest delay since the start, in seconds.
    pub(crate) fn longest_delay(&self) -> f64 {
        Duration::from_micros(self.longest.load(Ordering::Relaxed)).as_secs_f64()
    }

    /// Runs the scheduling-delay probe until cancelled.
    pub(crate) async fn measure(&self) {
        let (mut recent, mut age) = (0, 0);
        loop {
            let due = Instant::now() + INTERVAL;
            tokio::time::sleep_until(due.into()).await;
            let delay = micros(due.elapsed());
            age += 1;
            if age > REMEMBERED || delay > recent {
                (recent, age) = (delay, 0);
            }
            self.longest.fetch_max(delay, Ordering::Relaxed);
            let missed_by = self.missed_by.swap(0, Ordering::Relaxed);
            let missed = self.missed.swap(0, Ordering::Relaxed);
            if missed_by > 2 * recent {
                self.late.add(missed);
            }
        }
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
