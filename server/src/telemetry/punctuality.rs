//! Whether answers come in time.
//!
//! A process that is not scheduled cannot answer. A pulse measures how late the process is with
//! something that takes no time at all; only what is later than that, and than the granularity of
//! timers, is counted against the service.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use super::metrics::Count;

/// How often the pulse is felt.
const INTERVAL: Duration = Duration::from_millis(20);

/// Timers fire up to a tick late.
const TICK: Duration = Duration::from_millis(2);

/// Pulses for which a delay is remembered: a minute.
const REMEMBERED: u32 = 3_000;

/// Answers that came too late, and why that may be.
#[derive(Debug, Default)]
pub(crate) struct Punctuality {
    pub(crate) late: Count,
    /// The longest delay of late, in microseconds.
    recent: AtomicU64,
    longest: AtomicU64,
}

impl Punctuality {
    /// Notes by how much an answer missed its deadline.
    pub(crate) fn note(&self, overrun: Duration) {
        if overrun > TICK && micros(overrun - TICK) > self.recent.load(Ordering::Relaxed) {
            self.late.add(1);
        }
    }

    /// The longest delay since the start, in seconds.
    pub(crate) fn longest_delay(&self) -> f64 {
        Duration::from_micros(self.longest.load(Ordering::Relaxed)).as_secs_f64()
    }

    /// Feels the pulse, for ever.
    pub(crate) async fn measure(&self) {
        let mut pulses = 0;
        loop {
            let due = Instant::now() + INTERVAL;
            tokio::time::sleep_until(due.into()).await;
            let delay = micros(due.elapsed());
            pulses += 1;
            if pulses > REMEMBERED || delay > self.recent.load(Ordering::Relaxed) {
                self.recent.store(delay, Ordering::Relaxed);
                pulses = 0;
            }
            self.longest.fetch_max(delay, Ordering::Relaxed);
        }
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
