//! Where Sluicegate keeps its counters, and the layers around a store.
//!
//! The embedded [`Memory`] store serves one process. Layers are generic over what they wrap and are
//! composed once, at start-up: `FailurePolicy → Memory`.

mod clock;
mod layer;
mod memory;

pub use clock::{Clock, ManualClock, SystemClock};
pub use layer::failure_policy::{Decisions, FailurePolicy};
pub use memory::{Memory, MemorySettings};
