//! Where Sluicegate keeps its counters, and the layers around a store.
//!
//! The embedded [`Memory`] store serves one process, [`Redis`] any number of them. Layers are generic over what they wrap and are
//! composed once, at start-up, in [`Stack`].

mod backoff;
mod clock;
mod inspect;
mod layer;
mod log_limit;
mod memory;
mod observed;
pub mod redis;
mod replicas;
mod stack;

pub use clock::{Clock, Clocks, Reading, SystemClock};
pub use inspect::{Inspect, RESET_MAX, Reset, STEP_MAX, Step, Unavailable};
pub use layer::{
    coalesce::{BATCH_MAX, Coalesce, Lanes, Place, Redirected, Settled, WAITING_MAX},
    deny_cache::DenyCache,
    failure_policy::{
        Decisions, Deferred, FINISH_TIMEOUT, FailurePolicy, FallbackStats, GIVE_BACK_TIMEOUT, Local,
    },
};
pub use log_limit::LogLimit;
pub use memory::{Memory, MemorySettings};
pub use redis::Redis;
pub use replicas::LiveReplicas;
pub use stack::{Cursor, RedisStackSettings, Stack};
