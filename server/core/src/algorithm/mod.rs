//! The algorithms, one file each: a state, and the functions of the trait `Counter` on it.
//!
//! A state is advanced to the present before it is read or changed; only `advance` handles elapsed
//! time. [`crate::settle`] decides which hits are charged, and settles groups all or nothing, for all
//! algorithms.

mod arithmetic;
mod counter;
mod fixed_window;
mod gcra;
mod sliding_window_counter;
mod sliding_window_log;
mod state;
mod token_bucket;

pub(crate) use counter::Counter;
pub use counter::{HITS_MAX, Numbers, Receipt};
pub use fixed_window::FixedWindow;
pub use gcra::Gcra;
pub use sliding_window_counter::SlidingWindowCounter;
pub use sliding_window_log::SlidingWindowLog;
pub use state::State;
pub(crate) use state::dispatch;
pub use token_bucket::TokenBucket;
