//! Reads limits files and compiles them to rules. For the server, and for `sluicectl load`, which holds a server to them.
//!
//! What puts rules in force, and swaps them when the files change, is the server's.

#[cfg(feature = "arguments")]
pub mod arguments;
mod files;
mod yaml;

pub use files::{ReadBounds, Sources, parse};
