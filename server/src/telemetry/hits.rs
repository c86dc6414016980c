//! Hits by what became of them, with envoyproxy/ratelimit's arithmetic.

use sluicegate_core::{Charge, Check, Decision, Status, algorithm::HITS_MAX, store::Source};

use super::count::Count;
use crate::values::NearLimitRatio;

/// Hits of one rule.
#[derive(Debug, Default)]
pub(crate) struct Hits {
    /// All that were asked for.
    pub(crate) total: Count,
    /// Of requests that the rule let pass.
    pub(crate) within_limit: Count,
    /// Of these, and of those that were refused in part, the ones close to the limit.
    pub(crate) near_limit: Count,
    /// Beyond the limit.
    pub(crate) over_limit: Count,
    /// Of these, the ones that the deny cache refused.
    pub(crate) from_deny_cache: Count,
    /// Beyond the limit of a rule that only simulates.
    pub(crate) shadow_mode: Count,
    /// Refunded.
    pub(crate) given_back: Count,
}

impl Hits {
    /// Counts the hits of a descriptor, by the check that speaks for it.
    pub(crate) fn count(
        &self,
        near: NearLimitRatio,
        check: &Check,
        decision: &Decision,
        status: &Status<'_>,
    ) {
        let hits = match check.charge {
            Charge::Exactly(hits) | Charge::Always { hits, .. } => hits,
            Charge::Refund { hits, .. } => return self.given_back.add(hits.min(HITS_MAX)),
        };
        let hits = hits.min(HITS_MAX);
        self.total.add(hits);
        if decision.source == Source::NotAsked {
            return;
        }
        let split = Split::new(near, check.limit.capacity(), hits, decision);
        if decision.allowed {
            self.within_limit.add(hits - split.over.min(hits));
        }
        self.near_limit.add(split.near);
        self.over_limit.add(split.over);
        if decision.source == Source::DenyCache {
            self.from_deny_cache.add(split.over);
        }
        if status.shadowed {
            self.shadow_mode.add(split.over);
        }
    }
}

/// How many of a descriptor's hits were near the limit and how many beyond it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Split {
    near: u64,
    over: u64,
}

impl Split {
    fn new(near: NearLimitRatio, capacity: u32, hits: u64, decision: &Decision) -> Self {
        if decision.source != Source::Store {
            // What is left there is not left of this limit.
            return Self { near: 0, over: if decision.allowed { 0 } else { hits } };
        }
        let limit = u64::from(capacity);
        let near = near.of(capacity);
        let after = limit.saturating_sub(decision.remaining) + decision.excess;
        let before = after.saturating_sub(decision.charged);
        if decision.allowed && decision.charged == 0 {
            return Self { near: if after > near { hits } else { 0 }, over: 0 };
        }
        if decision.allowed {
            // A debit may pass the limit.
            let near = after.min(limit).saturating_sub(near.max(before));
            return Self { near, over: after.saturating_sub(limit) };
        }
        // Refused hits that are not charged, or that come on top, are beyond the limit as a whole.
        if decision.charged == 0 || before >= limit {
            return Self { near: 0, over: hits };
        }
        Self { near: limit - near.max(before), over: after.saturating_sub(limit) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sluicegate_core::{Decision, store::Source};

    use super::{NearLimitRatio, Split};

    /// What upstream's counting decides of `hits` at `used`.
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
            source: Source::Store,
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
            let split = Split::new(near, limit, hits, &decision(u64::from(limit), used, hits));
            assert_eq!((split.near, split.over), expected, "{limit} {used} {hits}");
        }
    }

    #[test]
    fn a_debit_beyond_the_limit_is_near_up_to_it_and_over_from_there() {
        let near: NearLimitRatio = "0.8".parse().unwrap();
        let debited = Decision { allowed: true, ..decision(10, 9, 100) };
        assert_eq!(Split::new(near, 10, 100, &debited), Split { near: 1, over: 99 });
    }

    #[test]
    fn a_refusal_that_is_not_charged_is_over_as_a_whole() {
        let near: NearLimitRatio = "0.8".parse().unwrap();
        let refused = Decision { charged: 0, remaining: 3, excess: 0, ..decision(5, 2, 5) };
        assert_eq!(Split::new(near, 5, 5, &refused), Split { near: 0, over: 5 });
    }
}
