//! Finds and reads limits files and compiles them to rules, for the server and for `sluicectl`.
//!
//! Reloading them, and putting the rules in force, is up to the server.

#[cfg(feature = "arguments")]
pub mod arguments;
mod files;
mod yaml;

pub use files::{FileContents, ReadBounds, compile_text};
pub use yaml::{FlatEntry, FlatMistake, FlatValue, json_schema, read_flat_map};
