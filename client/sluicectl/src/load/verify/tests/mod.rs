//! Histories made by hand, and those of a sequential limiter.

mod bounds;
mod limiter;
mod properties;
mod runs;

use super::bound::Micros;

const SECOND: Micros = 1_000_000;
