//! The one place that reads the time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use sluicegate_core::Time;

/// Tells the time of a store.
pub trait Clock: std::fmt::Debug + Send + Sync + 'static {
    /// The present.
    fn now(&self) -> Time;
}

/// The clocks of a process's stores.
#[derive(Clone, Debug)]
pub struct Clocks {
    /// What counters in memory go by.
    pub memory: Arc<dyn Clock>,
    /// What counters in Redis go by; `None` for Redis' own clock, which all replicas share.
    pub redis: Option<Arc<dyn Clock>>,
}

impl Clocks {
    /// The system's clock, and Redis' own.
    #[must_use]
    pub fn system() -> Self {
        Self { memory: Arc::new(SystemClock::new()), redis: None }
    }

    /// One clock for all, for tests.
    #[must_use]
    pub fn injected(clock: Arc<dyn Clock>) -> Self {
        Self { memory: Arc::clone(&clock), redis: Some(clock) }
    }
}

/// How far the wall clock may drift from the monotonic one before it is believed, in microseconds.
const DRIFT_MAX: u64 = 1_000_000;

/// Microseconds from one look at the wall clock to the next.
const LOOK_INTERVAL: u64 = 100_000;

/// The wall clock at start plus monotonic time, so that small steps of the wall clock are not felt. Where
/// the two differ by more than a second, the wall clock is believed; it is looked at ten times a second.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
    /// The wall clock at `start`, in microseconds since the Unix epoch: as it was, or as it follows from what is
    /// believed now.
    wall_at_start: AtomicU64,
    /// When the wall clock is looked at, in microseconds after `start`.
    look_at: AtomicU64,
}

impl SystemClock {
    /// A clock that starts at the wall clock's time.
    #[must_use]
    pub fn new() -> Self {
        Self {
            start: Instant::now(),
            wall_at_start: AtomicU64::new(wall()),
            look_at: AtomicU64::new(LOOK_INTERVAL),
        }
    }

    #[cold]
    fn look(&self, passed: u64) {
        self.look_at.store(passed + LOOK_INTERVAL, Ordering::Relaxed);
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
    fn now(&self) -> Time {
        let passed = micros(self.start.elapsed());
        if passed >= self.look_at.load(Ordering::Relaxed) {
            self.look(passed);
        }
        Time::from_micros(self.wall_at_start.load(Ordering::Relaxed) + passed)
    }
}

/// The wall clock, in microseconds since the Unix epoch.
fn wall() -> u64 {
    micros(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// Whole microseconds of a span that this process lives to see.
const fn micros(span: Duration) -> u64 {
    span.as_secs().saturating_mul(1_000_000) + span.subsec_micros() as u64
}

/// A clock that stands still until it is moved, for tests.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// A clock that shows `time`.
    #[must_use]
    pub const fn at(time: Time) -> Self {
        Self(AtomicU64::new(time.as_micros()))
    }

    /// Moves the clock to `time`, forwards or backwards.
    pub fn set(&self, time: Time) {
        self.0.store(time.as_micros(), Ordering::Relaxed);
    }

    /// Moves the clock forwards.
    pub fn advance(&self, by: Duration) {
        self.set(self.now().after(by));
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Time {
        Time::from_micros(self.0.load(Ordering::Relaxed))
    }
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Time {
        C::now(self)
    }
}
