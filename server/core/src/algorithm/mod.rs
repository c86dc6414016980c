//! The algorithms: each a state and six small functions on it, one file each.
//!
//! A state is advanced to the present before it is asked or changed; nothing but `advance` looks at
//! how much time has passed. Which takes are charged, and all-or-nothing, is settled elsewhere, once
//! for all of them ([`crate::settle`]).

mod fixed_window;
mod gcra;
mod sliding_window_counter;
mod sliding_window_log;
mod token_bucket;

use std::time::Duration;

use smallvec::SmallVec;

use crate::{Algorithm, Limit, Time};

pub use fixed_window::FixedWindow;
pub use gcra::Gcra;
pub use sliding_window_counter::SlidingWindowCounter;
pub use sliding_window_log::SlidingWindowLog;
pub use token_bucket::TokenBucket;

/// The most hits that one check can ask: above any limit, and small enough for the arithmetic.
pub const HITS_MAX: u64 = 1 << 32;

/// The most usage a state records, in whatever it counts: the integers that a double holds exactly.
/// Only hits charged past a limit ever get there; beyond it they are no longer counted.
const USED_MAX: u64 = (1 << 53) - 1;

/// What a take leaves behind so that it can be given back without touching anybody else's usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// Time or window of the take, in the algorithm's own measure.
    pub at: u64,
    /// Usage right after the take, where the algorithm forgets usage gradually.
    pub used: u64,
}

impl Receipt {
    /// The receipt that the first part of a take would have left, had the other `hits` of it been taken
    /// right after, by somebody else.
    #[must_use]
    pub fn before(self, limit: &Limit, hits: u64) -> Self {
        let after = hits.saturating_mul(limit.cost());
        match limit.algorithm() {
            Algorithm::TokenBucket => Self { used: self.used.saturating_sub(after), ..self },
            Algorithm::Gcra => Self { at: self.at.saturating_sub(after), ..self },
            Algorithm::FixedWindow
            | Algorithm::SlidingWindowLog
            | Algorithm::SlidingWindowCounter => self,
        }
    }

    /// By how much sooner the counter would have been as if never used, had those hits not been taken.
    #[must_use]
    pub fn reset_sooner(self, limit: &Limit, hits: u64) -> Duration {
        let before = self.before(limit, hits);
        Duration::from_micros(match limit.algorithm() {
            Algorithm::TokenBucket => {
                let refill = |used| token_bucket::refill(limit, used);
                refill(self.used).saturating_sub(refill(before.used))
            }
            Algorithm::Gcra => self.at.saturating_sub(before.at),
            // Hits of one moment expire together.
            Algorithm::FixedWindow
            | Algorithm::SlidingWindowLog
            | Algorithm::SlidingWindowCounter => 0,
        })
    }
}

/// The numbers a state consists of, each below 2^53.
pub type Numbers = SmallVec<[u64; 4]>;

/// What every algorithm can do with its state.
///
/// `now` in all but `advance` is what `advance` returned.
pub(crate) trait Counter: Sized {
    /// Drops what has expired. Returns the time that counts for this state: `now`, but never before
    /// the last time the state has seen.
    fn advance(&mut self, limit: &Limit, now: Time) -> Time;

    /// Hits that may pass now; negative where more was charged than the limit allows.
    fn available(&self, limit: &Limit, now: Time) -> i64;

    /// Charges hits, whether or not they are available.
    fn take(&mut self, limit: &Limit, now: Time, hits: u64) -> Receipt;

    /// Reduces usage by `hits`, never below zero: that of the take that left the receipt, as far as it
    /// still counts, or else whatever counts.
    fn give_back(&mut self, limit: &Limit, now: Time, hits: u64, receipt: Option<Receipt>);

    /// Microseconds until `hits` would be available if nobody else came; 0 if they are. `hits` is at most
    /// the limit's capacity.
    fn retry_after(&self, limit: &Limit, now: Time, hits: u64) -> u64;

    /// Microseconds until the state is as if never used.
    fn reset_after(&self, limit: &Limit, now: Time) -> u64;

    /// Microseconds until the reset that callers are told of.
    fn until_reset(&self, limit: &Limit, now: Time) -> u64 {
        self.reset_after(limit, now)
    }

    /// The numbers the state consists of.
    fn numbers(&self) -> Numbers;

    /// The state that consists of these numbers, if there is one.
    fn from_numbers(numbers: &[u64]) -> Option<Self>;
}

/// The state that one counter holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// State of [`Algorithm::FixedWindow`].
    FixedWindow(FixedWindow),
    /// State of [`Algorithm::SlidingWindowLog`].
    SlidingWindowLog(Box<SlidingWindowLog>),
    /// State of [`Algorithm::SlidingWindowCounter`].
    SlidingWindowCounter(SlidingWindowCounter),
    /// State of [`Algorithm::TokenBucket`].
    TokenBucket(TokenBucket),
    /// State of [`Algorithm::Gcra`].
    Gcra(Gcra),
}

/// Millions of states may be held at once.
const _: () = assert!(size_of::<State>() <= 32);

/// Calls a function of whichever algorithm the state belongs to.
macro_rules! dispatch {
    ($state:expr, $counter:ident => $call:expr) => {
        match $state {
            State::FixedWindow($counter) => $call,
            State::SlidingWindowLog($counter) => $call,
            State::SlidingWindowCounter($counter) => $call,
            State::TokenBucket($counter) => $call,
            State::Gcra($counter) => $call,
        }
    };
}

impl State {
    /// The state of a counter that was never used.
    #[must_use]
    pub fn new(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::FixedWindow => Self::FixedWindow(FixedWindow::default()),
            Algorithm::SlidingWindowLog => Self::SlidingWindowLog(Box::default()),
            Algorithm::SlidingWindowCounter => {
                Self::SlidingWindowCounter(SlidingWindowCounter::default())
            }
            Algorithm::TokenBucket => Self::TokenBucket(TokenBucket::default()),
            Algorithm::Gcra => Self::Gcra(Gcra::default()),
        }
    }

    /// Drops what has expired and returns the time that counts for this state: `now`, but never before
    /// the last time the state has seen.
    pub fn advance(&mut self, limit: &Limit, now: Time) -> Time {
        dispatch!(self, counter => counter.advance(limit, now))
    }

    /// Hits that may pass at `now`; negative where more was charged than the limit allows.
    #[must_use]
    pub fn available(&self, limit: &Limit, now: Time) -> i64 {
        dispatch!(self, counter => counter.available(limit, now))
    }

    /// Charges hits, whether or not they are available.
    pub fn take(&mut self, limit: &Limit, now: Time, hits: u64) -> Receipt {
        dispatch!(self, counter => counter.take(limit, now, hits.min(HITS_MAX)))
    }

    /// Reduces usage by `hits`, never below zero: that of the take that left the receipt, as far as it
    /// still counts, or else whatever counts.
    pub fn give_back(&mut self, limit: &Limit, now: Time, hits: u64, receipt: Option<Receipt>) {
        dispatch!(self, counter => counter.give_back(limit, now, hits.min(HITS_MAX), receipt));
    }

    /// Microseconds until `hits` would be available if nobody else came; `None` if they never will be.
    #[must_use]
    pub fn retry_after(&self, limit: &Limit, now: Time, hits: u64) -> Option<u64> {
        (hits <= u64::from(limit.capacity()))
            .then(|| dispatch!(self, counter => counter.retry_after(limit, now, hits)))
    }

    /// Microseconds until the state is as if never used.
    #[must_use]
    pub fn reset_after(&self, limit: &Limit, now: Time) -> u64 {
        dispatch!(self, counter => counter.reset_after(limit, now))
    }

    /// Microseconds until the reset that callers are told of: as [`Self::reset_after`], but a fixed window's
    /// end also where nothing was used.
    #[must_use]
    pub fn until_reset(&self, limit: &Limit, now: Time) -> u64 {
        dispatch!(self, counter => counter.until_reset(limit, now))
    }

    /// The numbers the state consists of, in the order of its fields; of a log, time and hits of each
    /// entry.
    #[must_use]
    pub fn numbers(&self) -> Numbers {
        dispatch!(self, counter => counter.numbers())
    }

    /// The state that consists of these numbers; `None` if no state does.
    #[must_use]
    pub fn from_numbers(algorithm: Algorithm, numbers: &[u64]) -> Option<Self> {
        if numbers.iter().any(|&number| number > USED_MAX) {
            return None;
        }
        Some(match algorithm {
            Algorithm::FixedWindow => Self::FixedWindow(Counter::from_numbers(numbers)?),
            Algorithm::SlidingWindowLog => {
                Self::SlidingWindowLog(Box::new(Counter::from_numbers(numbers)?))
            }
            Algorithm::SlidingWindowCounter => {
                Self::SlidingWindowCounter(Counter::from_numbers(numbers)?)
            }
            Algorithm::TokenBucket => Self::TokenBucket(Counter::from_numbers(numbers)?),
            Algorithm::Gcra => Self::Gcra(Counter::from_numbers(numbers)?),
        })
    }
}

/// `limit - used` for amounts below 2^53.
#[expect(clippy::cast_possible_wrap, reason = "both are below 2^53")]
const fn room(limit: u64, used: u64) -> i64 {
    limit as i64 - used as i64
}

/// `amount × part ÷ whole`, rounded down, where `part` is at most `whole` and that below 2^45: then
/// long multiplication in steps of seven bits comes to the same with integers below 2^53.
fn share(amount: u64, part: u64, whole: u64) -> u64 {
    saturated(u128::from(amount) * u128::from(part) / u128::from(whole.max(1)))
}

/// `amount × part ÷ whole`, rounded up. As [`share`].
fn share_rounded_up(amount: u64, part: u64, whole: u64) -> u64 {
    saturated((u128::from(amount) * u128::from(part)).div_ceil(u128::from(whole.max(1))))
}

fn saturated(amount: u128) -> u64 {
    u64::try_from(amount).unwrap_or(u64::MAX)
}
