//! Every store and every layer, held to what a store must do.

#[cfg(test)]
mod conformance;
#[cfg(test)]
mod layers;
#[cfg(test)]
mod memory;
#[cfg(test)]
mod redis;
