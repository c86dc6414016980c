//! Laws of the five algorithms, on a manual clock.

#![expect(clippy::unwrap_used, reason = "tests panic where they fail")]

mod bounds;
#[path = "../cases/mod.rs"]
mod cases;
mod clock;
mod edits;
mod examples;
mod extremes;
mod limits;
mod refunds;
mod support;
mod waits;
