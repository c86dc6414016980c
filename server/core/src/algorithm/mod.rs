//! The five algorithms, one file each. A file has the state of one counter and implements the trait `AlgorithmState`
//! for it.
//!
//! Before a state is read or changed, `advance` removes the usage that has expired; no other function does.
//! [`crate::settle`] decides for all algorithms which hits are charged, and undoes the conditional charges of a refused
//! group.

mod algorithm_state;
mod arithmetic;
mod fixed_window;
mod gcra;
mod sliding_window_counter;
mod sliding_window_log;
mod state;
mod token_bucket;

pub(crate) use algorithm_state::AlgorithmState;
pub use algorithm_state::{HITS_MAX, Receipt, StateNumbers};
pub use fixed_window::FixedWindow;
pub use gcra::Gcra;
pub use sliding_window_counter::SlidingWindowCounter;
pub use sliding_window_log::SlidingWindowLog;
pub use state::State;
pub(crate) use state::dispatch;
pub use token_bucket::TokenBucket;
