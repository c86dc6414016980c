//! Tests of `sluicectl` with services that return scripted answers.

// `cfg(test)` tells clippy that helpers beside the tests are test code too.
#[cfg(test)]
mod check;
#[cfg(test)]
mod explain;
