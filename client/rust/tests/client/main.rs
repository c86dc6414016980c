//! The client against a service with scripted answers.

// `cfg(test)` tells clippy that helpers beside the tests are test code too.
#[cfg(test)]
mod admin;
#[cfg(test)]
mod calls;
#[cfg(test)]
mod conformance;
#[cfg(test)]
mod connections;
#[cfg(test)]
mod middleware;
#[cfg(test)]
mod pacing;
#[cfg(test)]
mod wire;
