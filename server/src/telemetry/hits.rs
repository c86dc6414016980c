//! Hits by outcome, with the arithmetic of envoyproxy/ratelimit.

use sluicegate_core::{
    Charge, Check, Decision, DescriptorStatus, algorithm::HITS_MAX, store::DecisionSource,
};

use super::count::Count;
use crate::values::NearLimitRatio;

/// Hits of one rule.
#[derive(Debug, Default)]
pub(crate) struct HitCounts {
    /// All requested hits.
    pub(crate) total: Count,
    /// Hits that the rule allowed.
    pub(crate) within_limit: Count,
    /// Hits above the near-limit threshold and within the limit.
    pub(crate) near_limit: Count,
    /// Hits beyond the limit.
    pub(crate) over_limit: Count,
    /// Hits beyond the limit that the deny cache refused.
    pub(crate) from_deny_cache: Count,
    /// Hits beyond the limit of a rule in shadow mode.
    pub(crate) shadow_mode: Count,
    /// Refunded hits.
    pub(crate) refunded: Count,
}

impl HitCounts {
    /// Whether any hits were requested or refunded.
    pub(super) fn has_any(&self) -> bool {
        self.total.get() > 0 || self.refunded.get() > 0
    }

    /// Counts the hits of a descriptor, according to the check that determines its status.
    pub(crate) fn count(
        &self,
        near: NearLimitRatio,
        check: &Check,
        decision: &Decision,
        status: &DescriptorStatus<'_>,
    ) {
        let hits = match check.charge {
            Charge::IfAllowed(hits) | Charge::Always { hits, .. } => hits,
            Charge::Refund { hits, .. } => return self.refunded.add(hits.min(HITS_MAX)),
        };
        let hits = hits.min(HITS_MAX);
        self.total.add(hits);
        if decision.source == DecisionSource::NotAsked {
            return;
        }
        let split = HitSplit::new(near, check.limit.capacity(), hits, decision);
        if decision.allowed {
            self.within_limit.add(hits - split.over.min(hits));
        }
        self.near_limit.add(split.near);
        self.over_limit.add(split.over);
        if decision.source == DecisionSource::DenyCache {
            self.from_deny_cache.add(split.over);
        }
        if status.shadowed {
            self.shadow_mode.add(split.over);
        }
    }
}

/// The parts of a descriptor's hits that are near the limit and beyond it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct HitSplit {
    near: u64,
    over: u64,
}

impl HitSplit {
    fn new(near: NearLimitRatio, capacity: u32, hits: u64, decision: &Decision) -> Self {
        if decision.source != DecisionSource::Store {
            // Only the store reports the remaining hits of the limit itself.
            return Self { near: 0, over: if decision.allowed { 0 } else { hits } };
        }
        let limit = u64::from(capacity);
        let near = near.threshold(capacity);
        let after = limit.saturating_sub(decision.remaining) + decision.excess;
        let before = after.saturating_sub(decision.charged);
        if decision.allowed && decision.charged == 0 {
            return Self { near: if after > near { hits } else { 0 }, over: 0 };
        }
        if decision.allowed {
            // A debit may exceed the limit.
            let near = after.min(limit).saturating_sub(near.max(before));
            return Self { near, over: after.saturating_sub(limit) };
        }
        // All hits are beyond the limit if they are refused and not charged, or if the limit was used up before.
        if decision.charged == 0 || before >= limit {
            return Self { near: 0, over: hits };
        }
        Self { near: limit - near.max(before), over: after.saturating_sub(limit) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sluicegate_core::{Decision, store::DecisionSource};

    use super::{HitSplit, NearLimitRatio};

    /// The decision on `hits` after `used` hits, with `counting: upstream`.
    fn decision(limit: u64, used: u64, hits: u64) -> Decision {
        let after = used + hits;
        Decision {
            allowed: after <= limit,
            charged: hits,
            remaining: limit.saturating_sub(after),
            excess: after.saturating_sub(limit),
            reset_after: Duration::ZERO,
            retry_after: None,
            receipt: None,
            source: DecisionSource::Store,
        }
    }

    #[test]
    fn hits_are_split_where_they_cross_a_threshold() {
        let near: NearLimitRatio = "0.8".parse().unwrap();
        for (limit, used, hits, expected) in [
            (10, 4, 1, (0, 0)),
            (15, 10, 1, (0, 0)),
            (15, 12, 1, (1, 0)),
            (15, 15, 1, (0, 1)),
            (8, 5, 2, (1, 0)),
            (20, 16, 3, (3, 0)),
            (10, 27, 3, (0, 3)),
            (5, 2, 5, (1, 2)),
            (10, 0, 0, (0, 0)),
            (10, 11, 0, (0, 0)),
            (0, 0, 1, (0, 1)),
            (u32::MAX, 0, 1, (0, 0)),
        ] {
            let split = HitSplit::new(near, limit, hits, &decision(u64::from(limit), used, hits));
            assert_eq!((split.near, split.over), expected, "{limit} {used} {hits}");
        }
    }

    #[test]
    fn a_debit_is_split_at_the_limit() {
        let near: NearLimitRatio = "0.8".parse().unwrap();
        let debited = Decision { allowed: true, ..decision(10, 9, 100) };
        assert_eq!(HitSplit::new(near, 10, 100, &debited), HitSplit { near: 1, over: 99 });
    }

    #[test]
    fn all_hits_of_an_uncharged_refusal_are_over_the_limit() {
        let near: NearLimitRatio = "0.8".parse().unwrap();
        let refused = Decision { charged: 0, remaining: 3, excess: 0, ..decision(5, 2, 5) };
        assert_eq!(HitSplit::new(near, 5, 5, &refused), HitSplit { near: 0, over: 5 });
    }
}
