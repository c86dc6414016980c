//! The clocks of the stores. Nothing else in this crate reads the time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use sluicegate_core::{Algorithm, Time};

/// The time by the wall clock and by the steady clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockTimes {
    /// The wall clock, which may be set forwards and backwards.
    pub wall: Time,
    /// A monotonic clock: the wall clock at its start, plus the time elapsed since.
    pub steady: Time,
}

impl ClockTimes {
    /// The time that a counter of this algorithm uses in memory. Fixed windows follow the wall clock. All other
    /// algorithms measure durations, which a step of the wall clock must not change.
    #[must_use]
    pub const fn for_algorithm(self, algorithm: Algorithm) -> Time {
        match algorithm {
            Algorithm::FixedWindow => self.wall,
            Algorithm::SlidingWindowLog
            | Algorithm::SlidingWindowCounter
            | Algorithm::TokenBucket
            | Algorithm::Gcra => self.steady,
        }
    }
}

/// The time for deadlines and intervals: tokio's clock, which tests can pause and advance.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// The clock of a store.
pub trait Clock: std::fmt::Debug + Send + Sync + 'static {
    /// Reads both clocks.
    fn read(&self) -> ClockTimes;
}

/// The clocks of a process's stores.
#[derive(Clone, Debug)]
pub struct Clocks {
    /// Clock of counters in memory.
    pub memory: Arc<dyn Clock>,
    /// Clock of counters in Redis; `None` for Redis' own clock, which all replicas share.
    pub redis: Option<Arc<dyn Clock>>,
}

impl Clocks {
    /// The system's clock for memory, and Redis' own.
    #[must_use]
    pub fn system() -> Self {
        Self { memory: Arc::new(SystemClock::new()), redis: None }
    }
}

/// Difference between the two clocks above which [`ClockTimes::wall`] is corrected, in microseconds.
const DRIFT_MAX: u64 = 1_000_000;

/// Interval between readings of the wall clock, in microseconds.
const WALL_INTERVAL: u64 = 100_000;

/// The system's clock: monotonic time, counted from the wall clock at start.
///
/// The wall clock is read ten times per second. If it differs by more than a second, [`ClockTimes::wall`] is set to it;
/// smaller steps are ignored. [`ClockTimes::steady`] ignores all steps.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
    /// The wall clock at `start`, in microseconds since the Unix epoch.
    steady_at_start: u64,
    /// The same, corrected by later steps of the wall clock.
    wall_at_start: AtomicU64,
    /// Time of the next reading of the wall clock, in microseconds after `start`.
    next_wall: AtomicU64,
}

impl SystemClock {
    /// A clock that starts at the wall clock's time.
    #[must_use]
    pub fn new() -> Self {
        let wall = wall();
        Self {
            start: now(),
            steady_at_start: wall,
            wall_at_start: AtomicU64::new(wall),
            next_wall: AtomicU64::new(WALL_INTERVAL),
        }
    }

    /// Reads the wall clock, `passed` microseconds after `start`.
    #[cold]
    fn read_wall(&self, passed: u64) {
        self.next_wall.store(passed + WALL_INTERVAL, Ordering::Relaxed);
        let wall_at_start = wall().saturating_sub(passed);
        if wall_at_start.abs_diff(self.wall_at_start.load(Ordering::Relaxed)) > DRIFT_MAX {
            self.wall_at_start.store(wall_at_start, Ordering::Relaxed);
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn read(&self) -> ClockTimes {
        let passed = micros(now() - self.start);
        if passed >= self.next_wall.load(Ordering::Relaxed) {
            self.read_wall(passed);
        }
        ClockTimes {
            wall: Time::from_micros(self.wall_at_start.load(Ordering::Relaxed) + passed),
            steady: Time::from_micros(self.steady_at_start + passed),
        }
    }
}

/// The wall clock, in microseconds since the Unix epoch.
fn wall() -> u64 {
    micros(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// Whole microseconds of a duration.
const fn micros(span: Duration) -> u64 {
    span.as_secs().saturating_mul(1_000_000) + span.subsec_micros() as u64
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn read(&self) -> ClockTimes {
        C::read(self)
    }
}
