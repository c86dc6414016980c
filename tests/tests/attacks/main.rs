//! Attacks on a running server, with a healthy client beside each: all its calls are decided, memory stays within a
//! stated bound, and resources are free after the attacker has left.

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
