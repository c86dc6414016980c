//! Hand-written histories, and histories of a sequential limiter.

mod bounds;
mod limiter;
mod properties;
mod runs;

use super::bound::Micros;

const SECOND: Micros = 1_000_000;
