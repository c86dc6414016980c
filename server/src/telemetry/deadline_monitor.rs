//! Counts decisions that miss their deadline for other reasons than scheduling.
//!
//! A process that the system does not schedule cannot answer in time. A probe, a timer that does no work, measures this
//! scheduling delay. At each probe, the decisions that have missed their deadlines since the last probe count as late
//! if the longest of their overruns is more than twice the delay of the recent probes: twice, because another thread
//! may wait longer than the probe's. Decisions are counted at the probe, not when they end, because the delay that
//! makes a decision late delays the probe too.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use super::count::Count;

/// The interval of the probe.
const INTERVAL: Duration = Duration::from_millis(20);

/// The inaccuracy of timers: they fire up to this much late.
const TICK: Duration = Duration::from_millis(2);

/// The number of probes during which a delay counts as recent: one second.
const RECENT_PROBES: u32 = 50;

/// Counts late decisions. Times are in microseconds.
#[derive(Debug, Default)]
pub(crate) struct DeadlineMonitor {
    pub(crate) late: Count,
    /// Decisions since the last probe that missed their deadline.
    missed: AtomicU64,
    /// The longest time by which one of these missed its deadline.
    missed_by: AtomicU64,
    longest_delay: AtomicU64,
}

impl DeadlineMonitor {
    /// Records the time by which a decision missed its deadline, or 0.
    pub(crate) fn record_overrun(&self, overrun: Duration) {
        if overrun > TICK {
            self.missed_by.fetch_max(micros(overrun - TICK), Ordering::Relaxed);
            self.missed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The longest scheduling delay since the start, in seconds.
    pub(crate) fn longest_delay(&self) -> f64 {
        Duration::from_micros(self.longest_delay.load(Ordering::Relaxed)).as_secs_f64()
    }

    /// Runs the probe until cancelled.
    pub(crate) async fn run_probe(&self) {
        let (mut recent, mut age) = (0, 0);
        loop {
            let due = Instant::now() + INTERVAL;
            tokio::time::sleep_until(due.into()).await;
            let delay = micros(due.elapsed());
            age += 1;
            if age > RECENT_PROBES || delay > recent {
                (recent, age) = (delay, 0);
            }
            self.longest_delay.fetch_max(delay, Ordering::Relaxed);
            let missed_by = self.missed_by.swap(0, Ordering::Relaxed);
            let missed = self.missed.swap(0, Ordering::Relaxed);
            if missed_by > 2 * recent {
                self.late.add(missed);
            }
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
