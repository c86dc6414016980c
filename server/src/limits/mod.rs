//! Limits files: read, compiled, put in force.

mod files;
mod snapshot;
mod yaml;

pub use files::{Loaded, Sources, load, parse};
pub(crate) use snapshot::{Limits, Snapshot};
