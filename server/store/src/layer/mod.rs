//! Layers around a store, one file each.

pub(crate) mod failure_policy;
