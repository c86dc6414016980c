//! The stores that keep Sluicegate's counters, and the layers around a store.
//!
//! [`Memory`] keeps the counters of one process, [`Redis`] those of any number of replicas. A layer is generic over the
//! store that it wraps. [`Stack`] composes store and layers at start-up.

mod backoff;
mod callback;
mod clock;
mod inspect;
mod layer;
mod log_limit;
mod memory;
pub mod redis;
mod replicas;
mod stack;

pub use clock::{Clock, ClockTimes, Clocks, SystemClock};
pub use inspect::{Inspect, InspectError, RESET_MAX, ResetMode, SCAN_STEP_MAX, ScanStep};
pub use layer::{
    coalesce::{
        BATCH_CHECKS_MAX, BatchAnswers, Coalesce, CounterLocation, OnRedirection, QueuedStore,
        WAITING_GROUPS_MAX,
    },
    deny_cache::DenyCache,
    failure_policy::{
        Decisions, Deferred, FINISH_TIMEOUT, FailurePolicy, FallbackStats, LocalFallback,
        REFUND_TIMEOUT,
    },
};
pub use log_limit::LogLimit;
pub use memory::{Memory, MemorySettings};
pub use redis::Redis;
pub use replicas::LiveReplicas;
pub use stack::{Cursor, RedisStackSettings, Stack};
