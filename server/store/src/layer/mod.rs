//! Layers around a store, one file each.

pub(crate) mod coalesce;
pub(crate) mod deny_cache;
pub(crate) mod failure_policy;
mod late_answers_map;
