//! Reads limits files and compiles them to rules, for the server and for `sluicectl load`, which verifies a server
//! against them.
//!
//! The server itself puts rules in force and reloads them.

#[cfg(feature = "arguments")]
pub mod arguments;
mod files;
mod yaml;

pub use files::{ReadBounds, Sources, parse};
pub use yaml::{FlatEntry, FlatMistake, FlatValue, read_flat, schema};
