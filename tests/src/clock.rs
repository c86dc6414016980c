//! A clock that tests set and advance.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use sluicegate_core::Time;
use sluicegate_store::{Clock, ClockTimes};

/// A clock that tests set and advance.
#[derive(Debug, Default)]
pub struct ManualClock {
    wall: AtomicU64,
    steady: AtomicU64,
}

impl ManualClock {
    /// Creates a clock that shows `time`.
    #[must_use]
    pub const fn at(time: Time) -> Self {
        let micros = time.as_micros();
        Self { wall: AtomicU64::new(micros), steady: AtomicU64::new(micros) }
    }

    /// The time of the wall clock.
    pub fn now(&self) -> Time {
        self.read().wall
    }

    /// Sets the wall clock to `time`, forwards or backwards, without elapsed time.
    pub fn set_wall(&self, time: Time) {
        self.wall.store(time.as_micros(), Ordering::Relaxed);
    }

    /// Advances both clocks.
    pub fn advance(&self, by: Duration) {
        let ClockTimes { wall, steady } = self.read();
        self.set_wall(wall.after(by));
        self.steady.store(steady.after(by).as_micros(), Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn read(&self) -> ClockTimes {
        let [wall, steady] = [&self.wall, &self.steady]
            .map(|clock| Time::from_micros(clock.load(Ordering::Relaxed)));
        ClockTimes { wall, steady }
    }
}
