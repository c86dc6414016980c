//! envoyproxy/ratelimit's behaviour as data: the cases in `tests/conformance`, against every store.
//!
//! `tests/conformance/README.md` describes the form of a case.

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
