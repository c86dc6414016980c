//! The real server among its real neighbours.

// `cfg(test)` tells clippy that helpers beside the tests are test code too.
#[cfg(test)]
mod api;
#[cfg(test)]
mod buf;
#[cfg(test)]
mod tools;
#[cfg(test)]
mod wire;
