//! Starts the real server and its real neighbours on free ports of the loopback, and stops them by
//! process id. Nothing is mocked: what a test sees is what a caller would.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod process;
mod sluicegate;

pub use process::{Process, until};
pub use sluicegate::{Sluicegate, binary, free_port};
