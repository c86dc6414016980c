//! Converts decisions into the verdict.

use std::{cmp::Reverse, time::Duration};

use smallvec::SmallVec;

use crate::{
    Counting, CurrentLimit, Decision, Plan, Rule,
    plan::PlannedDescriptor,
    settle::RefusalTally,
    store::{RefusalScope, Source},
};

/// The result of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict<'r> {
    /// Whether the request passes.
    pub code: Code,
    /// Whether it would be refused without global shadow mode.
    pub shadowed: bool,
    /// One status for each descriptor, in order.
    pub statuses: SmallVec<[Status<'r>; 4]>,
}

/// Allowed or refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// Allowed.
    Ok,
    /// Refused by a limit.
    OverLimit,
}

/// The status of one descriptor.
#[derive(Clone, Debug, PartialEq)]
pub struct Status<'r> {
    /// The result of this descriptor alone.
    pub code: Code,
    /// The limit closest to refusing, if any applies.
    pub current_limit: Option<CurrentLimit<'r>>,
    /// Remaining hits.
    pub remaining: u32,
    /// If refused: time until these hits would pass. Else: time until the counter is unused again,
    /// or the fixed window ends. `None` if no limit applies, or if the hits will never pass.
    pub duration_until_reset: Option<Duration>,
    /// The rule that matched.
    pub rule: Option<&'r Rule>,
    /// Whether the rule would refuse without shadow mode.
    pub shadowed: bool,
    /// Source of the decision, if a limit applies.
    pub source: Option<Source>,
    /// Position of the check whose limit is shown, if a limit applies.
    pub check: Option<usize>,
}

/// Builds the verdict from the decisions on the checks.
///
/// `decisions` has one for each check of the plan's group, in order.
#[must_use]
pub fn respond<'r>(plan: &Plan<'r>, decisions: &[Decision]) -> Verdict<'r> {
    let mut decisions = decisions.iter().enumerate();
    let mut tally = RefusalTally::default();
    // Built in the return slot: it is large.
    let mut verdict = Verdict { code: Code::Ok, shadowed: false, statuses: SmallVec::new() };
    for planned in &plan.descriptors {
        verdict.statuses.push(match planned {
            PlannedDescriptor::Unmatched => Status::passing(None, 0),
            PlannedDescriptor::Unlimited(rule) => Status::passing(Some(*rule), u32::MAX),
            PlannedDescriptor::Limited {
                rule,
                limits,
                refusal_scope,
                counting,
                shadow_mode,
                ..
            } => {
                let decided = limits.iter().zip(decisions.by_ref());
                let status = Status::decided(*rule, decided, *counting, *shadow_mode);
                tally.add(*refusal_scope, status.code == Code::OverLimit);
                status
            }
        });
    }
    if plan.has_quota_left {
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

impl<'r> Status<'r> {
    /// No limit applies.
    const fn passing(rule: Option<&'r Rule>, remaining: u32) -> Self {
        Self {
            code: Code::Ok,
            current_limit: None,
            remaining,
            duration_until_reset: None,
            rule,
            shadowed: false,
            source: None,
            check: None,
        }
    }

    /// Shows the limit with the longest wait, or if none refuses the one with the fewest remaining hits.
    fn decided<'d>(
        rule: Option<&'r Rule>,
        decided: impl Iterator<Item = (&'d CurrentLimit<'r>, (usize, &'d Decision))>,
        counting: Counting,
        shadow_mode: bool,
    ) -> Self
    where
        'r: 'd,
    {
        let Some((limit, (check, decision))) = decided.min_by_key(|(_, (_, decision))| {
            // Refusing limits come first; `None` is the longest wait.
            let wait = (!decision.allowed).then(|| decision.retry_after.unwrap_or(Duration::MAX));
            (Reverse(wait), if decision.allowed { decision.remaining } else { 0 })
        }) else {
            return Self::passing(rule, 0);
        };
        if decision.source == Source::NotAsked {
            let (source, check) = (Some(Source::NotAsked), Some(check));
            return Self { source, check, ..Self::passing(rule, 0) };
        }
        let over = !decision.allowed;
        let until_retry = match counting {
            // envoyproxy/ratelimit reports the end of the window even if the hits never pass.
            Counting::Upstream => decision.retry_after.or(Some(decision.reset_after)),
            Counting::Free | Counting::Debit => decision.retry_after,
        };
        Self {
            code: Code::refused(over && !shadow_mode),
            current_limit: Some(*limit),
            // Envoy's headers show the status with the fewest remaining hits: it must be the refusing one.
            remaining: if over { 0 } else { u32::try_from(decision.remaining).unwrap_or(u32::MAX) },
            duration_until_reset: if over { until_retry } else { Some(decision.reset_after) },
            rule,
            shadowed: over && shadow_mode,
            source: Some(decision.source),
            check: Some(check),
        }
    }
}
