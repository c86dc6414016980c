//! Attacks on a running server, each with a healthy client beside it: all its calls are decided, memory grows within a
//! stated bound, and used resources are free after the attacker has left.

// `cfg(test)` tells clippy that helpers beside the tests are test code too.
#[cfg(test)]
mod calls;
#[cfg(test)]
mod connections;
#[cfg(test)]
mod files;
#[cfg(test)]
mod messages;
#[cfg(test)]
mod pages;
#[cfg(test)]
mod peers;
#[cfg(test)]
mod redis;
#[cfg(test)]
mod streams;
