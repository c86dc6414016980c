//! The one place that reads the time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use parking_lot::RwLock;
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

/// How far the wall clock may drift from the monotonic one before it is read anew.
const DRIFT_MAX: Duration = Duration::from_secs(1);

/// The wall clock at start plus monotonic time, so that small steps of the wall clock are not felt. Where
/// the two differ by more than a second, the wall clock is believed.
#[derive(Debug)]
pub struct SystemClock {
    anchor: RwLock<Anchor>,
}

#[derive(Clone, Copy, Debug)]
struct Anchor {
    wall: Duration,
    monotonic: Instant,
}

impl Anchor {
    fn set() -> Self {
        Self { wall: wall(), monotonic: Instant::now() }
    }
}

impl SystemClock {
    /// A clock that starts at the wall clock's time.
    #[must_use]
    pub fn new() -> Self {
        Self { anchor: RwLock::new(Anchor::set()) }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Time {
        let anchor = *self.anchor.read();
        let steady = anchor.wall + anchor.monotonic.elapsed();
        let wall = wall();
        if steady.abs_diff(wall) <= DRIFT_MAX {
            return time(steady);
        }
        *self.anchor.write() = Anchor::set();
        time(wall)
    }
}

fn wall() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn time(since_epoch: Duration) -> Time {
    Time::from_micros(0).after(since_epoch)
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
