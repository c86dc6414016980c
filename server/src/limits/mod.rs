//! Limits files: read, compiled, put in force.

mod files;
mod snapshot;
mod yaml;

pub use files::{ReadBounds, Sources, parse};
pub(crate) use snapshot::{Limits, Rejected, Snapshot};
