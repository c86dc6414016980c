//! `sluicectl` against services that answer as they are told.

// `cfg(test)` tells clippy that helpers beside the tests are test code too.
#[cfg(test)]
mod check;
#[cfg(test)]
mod explain;
