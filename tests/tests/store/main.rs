//! Tests of every store and layer with one suite, and the proof that the scripts in Redis equal the algorithms in Rust.

// `cfg(test)` tells clippy that helpers beside the tests are test code too.
#[cfg(test)]
mod coalesce;
#[cfg(test)]
mod conformance;
#[cfg(test)]
mod equivalence;
#[cfg(test)]
mod fallback;
#[cfg(test)]
mod foreign;
#[cfg(test)]
mod layers;
#[cfg(test)]
mod memory;
#[cfg(test)]
mod model;
#[cfg(test)]
mod redis;
#[cfg(test)]
mod scripts;
#[cfg(test)]
mod server;
#[cfg(test)]
mod stored;
