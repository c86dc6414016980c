//! The one place that reads the time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use sluicegate_core::{Algorithm, Time};

/// The present, by two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The wall clock, which may be set forwards and back.
    pub wall: Time,
    /// A clock that only goes forwards, at the pace of time: the wall clock at its start, plus what has passed since.
    pub steady: Time,
}

impl Reading {
    /// The present for a state in memory. Fixed windows are those of the calendar. All other algorithms measure spans,
    /// which a step of the wall clock neither shortens nor lengthens.
    #[must_use]
    pub const fn of(self, algorithm: Algorithm) -> Time {
        match algorithm {
            Algorithm::FixedWindow => self.wall,
            Algorithm::SlidingWindowLog
            | Algorithm::SlidingWindowCounter
            | Algorithm::TokenBucket
            | Algorithm::Gcra => self.steady,
        }
    }
}

/// The present for spans of this process, such as deadlines: tokio's clock, which tests may stop and advance.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Tells the time of a store.
pub trait Clock: std::fmt::Debug + Send + Sync + 'static {
    /// The present.
    fn read(&self) -> Reading;
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

/// Monotonic time, counted from the wall clock at start.
///
/// Small steps of the wall clock are not felt. Where the two differ by more than a second, [`Reading::wall`] follows
/// the wall clock, which is looked at ten times a second; [`Reading::steady`] never does.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
    /// The wall clock at `start`, in microseconds since the Unix epoch.
    steady_at_start: u64,
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
        let wall = wall();
        Self {
            start: now(),
            steady_at_start: wall,
            wall_at_start: AtomicU64::new(wall),
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
    fn read(&self) -> Reading {
        let passed = micros(now() - self.start);
        if passed >= self.look_at.load(Ordering::Relaxed) {
            self.look(passed);
        }
        Reading {
            wall: Time::from_micros(self.wall_at_start.load(Ordering::Relaxed) + passed),
            steady: Time::from_micros(self.steady_at_start + passed),
        }
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

/// A clock that shows the same time until it is moved, for tests.
#[derive(Debug, Default)]
pub struct ManualClock {
    wall: AtomicU64,
    steady: AtomicU64,
}

impl ManualClock {
    /// A clock that shows `time`.
    #[must_use]
    pub const fn at(time: Time) -> Self {
        let micros = time.as_micros();
        Self { wall: AtomicU64::new(micros), steady: AtomicU64::new(micros) }
    }

    /// The wall clock.
    pub fn now(&self) -> Time {
        self.read().wall
    }

    /// Sets the wall clock to `time`, forwards or backwards, while no time passes.
    pub fn set_wall(&self, time: Time) {
        self.wall.store(time.as_micros(), Ordering::Relaxed);
    }

    /// Lets time pass.
    pub fn advance(&self, by: Duration) {
        let Reading { wall, steady } = self.read();
        self.set_wall(wall.after(by));
        self.steady.store(steady.after(by).as_micros(), Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn read(&self) -> Reading {
        let [wall, steady] = [&self.wall, &self.steady]
            .map(|clock| Time::from_micros(clock.load(Ordering::Relaxed)));
        Reading { wall, steady }
    }
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn read(&self) -> Reading {
        C::read(self)
    }
}
