//! Builds the verdict on a request from the decisions on its checks.

use std::{cmp::Reverse, time::Duration};

use smallvec::SmallVec;

use crate::{
    Counting, CurrentLimit, Decision, Plan, Rule,
    plan::PlannedDescriptor,
    settle::RefusalTally,
    store::{DecisionSource, RefusalScope},
};

/// The answer to a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict<'r> {
    /// Whether the request passes.
    pub code: Code,
    /// Whether the request passes only because all rules are in shadow mode.
    pub shadowed: bool,
    /// The status of each descriptor, in the order of the request.
    pub statuses: SmallVec<[DescriptorStatus<'r>; 4]>,
}

/// Whether a request or a descriptor is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// Allowed.
    Ok,
    /// Refused, because a limit is exceeded.
    OverLimit,
}

/// The status of one descriptor.
#[derive(Clone, Debug, PartialEq)]
pub struct DescriptorStatus<'r> {
    /// Whether the descriptor alone is allowed. The request may still be refused, or pass although this is refused.
    pub code: Code,
    /// The shown limit: the one with the longest wait if any refuses, else the one with the fewest remaining hits.
    /// `None` if no limit applies, or if its check was not sent ([`DecisionSource::NotAsked`]).
    pub current_limit: Option<CurrentLimit<'r>>,
    /// Remaining hits of the shown limit; 0 if it refuses, and `u32::MAX` if the rule is unlimited.
    pub remaining: u32,
    /// If the limit refuses: time until these hits would pass; if they never can, `None` or, with upstream counting,
    /// the reset. If it does not refuse: the reset, as [`Decision::reset_after`]. `None` without a shown limit.
    pub duration_until_reset: Option<Duration>,
    /// The rule that matched, if any.
    pub rule: Option<&'r Rule>,
    /// Whether the descriptor is allowed only because its rule is in shadow mode.
    pub shadowed: bool,
    /// Source of the decision on the shown limit, if a limit applies.
    pub source: Option<DecisionSource>,
    /// Position of the check of the shown limit in the group, if a limit applies.
    pub check_position: Option<usize>,
}

/// Builds the verdict on a planned request. `decisions` has one decision for each check of the plan's group, in order.
#[must_use]
pub fn respond<'r>(plan: &Plan<'r>, decisions: &[Decision]) -> Verdict<'r> {
    let mut decisions = decisions.iter().enumerate();
    let mut tally = RefusalTally::default();
    // The return value is built in place, because it is large.
    let mut verdict = Verdict { code: Code::Ok, shadowed: false, statuses: SmallVec::new() };
    for planned in &plan.descriptors {
        verdict.statuses.push(match planned {
            PlannedDescriptor::NoLimitApplies => DescriptorStatus::without_limit(None, 0),
            PlannedDescriptor::Unlimited(rule) => {
                DescriptorStatus::without_limit(Some(*rule), u32::MAX)
            }
            PlannedDescriptor::Limited {
                rule,
                limits,
                refusal_scope,
                counting,
                shadow_mode,
                ..
            } => {
                let decided = limits.iter().zip(decisions.by_ref());
                let status = DescriptorStatus::decided(*rule, decided, *counting, *shadow_mode);
                tally.add(*refusal_scope, status.code == Code::OverLimit);
                status
            }
        });
    }
    if plan.quota_never_refuses {
        tally.add(RefusalScope::Quota, false);
    }
    let refused = tally.refused();
    verdict.shadowed = refused && plan.shadow_mode;
    verdict.code = Code::refused(refused && !verdict.shadowed);
    verdict
}

impl Code {
    const fn refused(refused: bool) -> Self {
        if refused { Self::OverLimit } else { Self::Ok }
    }
}

impl<'r> DescriptorStatus<'r> {
    /// The status of a descriptor to which no limit applies.
    const fn without_limit(rule: Option<&'r Rule>, remaining: u32) -> Self {
        Self {
            code: Code::Ok,
            current_limit: None,
            remaining,
            duration_until_reset: None,
            rule,
            shadowed: false,
            source: None,
            check_position: None,
        }
    }

    /// The status of a descriptor by the decisions on its checks, of which it shows one.
    fn decided<'d>(
        rule: Option<&'r Rule>,
        decided: impl Iterator<Item = (&'d CurrentLimit<'r>, (usize, &'d Decision))>,
        counting: Counting,
        shadow_mode: bool,
    ) -> Self
    where
        'r: 'd,
    {
        let Some((limit, (check_position, decision))) = decided.min_by_key(|(_, (_, decision))| {
            // Limits that refuse come first. `None` is the longest wait.
            let wait = (!decision.allowed).then(|| decision.retry_after.unwrap_or(Duration::MAX));
            (Reverse(wait), if decision.allowed { decision.remaining } else { 0 })
        }) else {
            return Self::without_limit(rule, 0);
        };
        if decision.source == DecisionSource::NotAsked {
            let (source, check_position) = (Some(DecisionSource::NotAsked), Some(check_position));
            return Self { source, check_position, ..Self::without_limit(rule, 0) };
        }
        let over = !decision.allowed;
        let until_retry = match counting {
            // envoyproxy/ratelimit reports the end of the window even if the hits can never pass.
            Counting::Upstream => decision.retry_after.or(Some(decision.reset_after)),
            Counting::Free | Counting::Debit => decision.retry_after,
        };
        Self {
            code: Code::refused(over && !shadow_mode),
            current_limit: Some(*limit),
            // Envoy's headers show the status with the fewest remaining hits, which must be one that refuses.
            remaining: if over { 0 } else { u32::try_from(decision.remaining).unwrap_or(u32::MAX) },
            duration_until_reset: if over { until_retry } else { Some(decision.reset_after) },
            rule,
            shadowed: over && shadow_mode,
            source: Some(decision.source),
            check_position: Some(check_position),
        }
    }
}
