//! Laws of the five algorithms, on a manual clock.

#![expect(clippy::unwrap_used, reason = "tests panic where they fail")]

mod bounds;
mod clock;
mod edits;
mod examples;
mod extremes;
mod limits;
mod refunds;
mod waits;
