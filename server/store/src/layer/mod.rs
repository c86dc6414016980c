//! Layers around a store, one file each.

pub(crate) mod coalesce;
pub(crate) mod deny_cache;
pub(crate) mod failure_policy;
mod late_answers_map;

use std::time::Duration;

use sluicegate_core::{Check, Decision, store::DecisionSource};

/// A decision that allows without counting, with the numbers of an unused counter.
fn uncounted_decision(check: &Check, source: DecisionSource) -> Decision {
    Decision {
        allowed: true,
        charged: 0,
        remaining: u64::from(check.limit.capacity()),
        excess: 0,
        reset_after: Duration::ZERO,
        retry_after: Some(Duration::ZERO),
        receipt: None,
        source,
    }
}
