//! Runs the conformance cases in `tests/conformance`, which describe envoyproxy/ratelimit's behaviour, with every
//! store.
//!
//! `tests/conformance/README.md` describes the format of a case.

// `cfg(test)` tells clippy that helpers beside the tests are test code too.
#[cfg(test)]
mod case;
#[cfg(test)]
mod lists;
#[cfg(test)]
mod notation;
#[cfg(test)]
mod run;
#[cfg(test)]
mod server;
#[cfg(test)]
mod stats;
#[cfg(test)]
mod step;
#[cfg(test)]
mod stores;
#[cfg(test)]
mod yaml;
