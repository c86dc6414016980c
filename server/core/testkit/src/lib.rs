//! Shared by the tests of the core and of the stores: counters on a manual clock, random limits and schedules, and
//! settling against given states.

#![expect(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "a test that cannot go on fails"
)]

pub mod cases;
pub mod counter;
mod settle;

pub use settle::settle_states;
