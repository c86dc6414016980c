//! The state of one counter of any algorithm.

use super::{
    algorithm_state::{AlgorithmState, HITS_MAX, Receipt, StateNumbers, USED_MAX},
    fixed_window::FixedWindow,
    gcra::Gcra,
    sliding_window_counter::SlidingWindowCounter,
    sliding_window_log::SlidingWindowLog,
    token_bucket::TokenBucket,
};
use crate::{Algorithm, Limit, Time};

/// Lets [`State`] box the state of an algorithm that is larger than the others.
impl<A: AlgorithmState> AlgorithmState for Box<A> {
    fn advance(&mut self, limit: &Limit, now: Time) -> Time {
        A::advance(self, limit, now)
    }

    fn available(&self, limit: &Limit, now: Time) -> i64 {
        A::available(self, limit, now)
    }

    fn charge(&mut self, limit: &Limit, now: Time, hits: u64) -> Receipt {
        A::charge(self, limit, now, hits)
    }

    fn refund(&mut self, limit: &Limit, now: Time, hits: u64, receipt: Option<Receipt>) {
        A::refund(self, limit, now, hits, receipt);
    }

    fn retry_after(&self, limit: &Limit, now: Time, hits: u64) -> u64 {
        A::retry_after(self, limit, now, hits)
    }

    fn expires_after(&self, limit: &Limit, now: Time) -> u64 {
        A::expires_after(self, limit, now)
    }

    fn reset_after(&self, limit: &Limit, now: Time) -> u64 {
        A::reset_after(self, limit, now)
    }

    fn numbers(&self) -> StateNumbers {
        A::numbers(self)
    }

    fn from_numbers(numbers: &[u64]) -> Option<Self> {
        A::from_numbers(numbers).map(Self::new)
    }
}

/// Defines [`State`] and `dispatch!` from a table of each algorithm's state. `$dollar` passes a `$` to the inner macro.
macro_rules! states {
    ($dollar:tt $($variant:ident($state:ty),)*) => {
        /// The state of one counter: what its limit has counted.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum State {
            $(
                #[doc = concat!("State of [`Algorithm::", stringify!($variant), "`].")]
                $variant($state),
            )*
        }

        impl State {
            /// The state of an unused counter.
            #[must_use]
            pub fn new(algorithm: Algorithm) -> Self {
                match algorithm {
                    $(Algorithm::$variant => Self::$variant(Default::default()),)*
                }
            }

            /// Reads a state from its numbers; `None` if they are not valid.
            #[must_use]
            pub fn from_numbers(algorithm: Algorithm, numbers: &[u64]) -> Option<Self> {
                if numbers.iter().any(|&number| number > USED_MAX) {
                    return None;
                }
                Some(match algorithm {
                    $(Algorithm::$variant => Self::$variant(AlgorithmState::from_numbers(numbers)?),)*
                })
            }
        }

        /// Calls a function of the trait `AlgorithmState` on the state, whichever its algorithm.
        macro_rules! dispatch {
            ($dollar value:expr, $dollar state:ident => $dollar call:expr) => {
                match $dollar value {
                    $($dollar crate::algorithm::State::$variant($dollar state) => $dollar call,)*
                }
            };
        }
        pub(crate) use dispatch;
    };
}

states! {
    $
    FixedWindow(FixedWindow),
    SlidingWindowLog(Box<SlidingWindowLog>),
    SlidingWindowCounter(SlidingWindowCounter),
    TokenBucket(TokenBucket),
    Gcra(Gcra),
}

// Millions of states may be in memory.
const _: () = assert!(size_of::<State>() <= 32);

impl State {
    /// Removes expired usage. Returns the time at which the state is to be read, which the other functions expect as
    /// their `now`: `now`, or the last time that the state has recorded if that is later, because the clock was set
    /// back.
    pub fn advance(&mut self, limit: &Limit, now: Time) -> Time {
        dispatch!(self, state => state.advance(limit, now))
    }

    /// Hits that may still pass at `now`; negative if more was charged than the limit allows.
    #[must_use]
    pub fn available(&self, limit: &Limit, now: Time) -> i64 {
        dispatch!(self, state => state.available(limit, now))
    }

    /// Charges at most [`HITS_MAX`] hits, whether or not they are available.
    pub fn charge(&mut self, limit: &Limit, now: Time, hits: u64) -> Receipt {
        dispatch!(self, state => state.charge(limit, now, hits.min(HITS_MAX)))
    }

    /// Refunds up to `hits`. With a receipt, refunds only what that charge still counts; without one, reduces any
    /// usage. Usage never falls below zero.
    pub fn refund(&mut self, limit: &Limit, now: Time, hits: u64, receipt: Option<Receipt>) {
        dispatch!(self, state => state.refund(limit, now, hits.min(HITS_MAX), receipt));
    }

    /// Microseconds until `hits` are available if no other hits are charged meanwhile; `None` if they exceed the
    /// capacity and so never are.
    #[must_use]
    pub fn retry_after(&self, limit: &Limit, now: Time, hits: u64) -> Option<u64> {
        (hits <= u64::from(limit.capacity()))
            .then(|| dispatch!(self, state => state.retry_after(limit, now, hits)))
    }

    /// Microseconds until no charged hit counts any longer, so that the state need not be stored; 0 if it is unused.
    #[must_use]
    pub fn expires_after(&self, limit: &Limit, now: Time) -> u64 {
        dispatch!(self, state => state.expires_after(limit, now))
    }

    /// Microseconds until the reset that responses report. For a fixed window, until it ends, also if it is unused;
    /// else as [`Self::expires_after`].
    #[must_use]
    pub fn reset_after(&self, limit: &Limit, now: Time) -> u64 {
        dispatch!(self, state => state.reset_after(limit, now))
    }

    /// The state as numbers, in the order of its fields; for a log, time and hits of each entry.
    #[must_use]
    pub fn numbers(&self) -> StateNumbers {
        dispatch!(self, state => state.numbers())
    }
}
