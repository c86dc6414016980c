//! Turns decisions into what the caller is told.

use std::{cmp::Reverse, time::Duration};

use smallvec::SmallVec;

use crate::{
    Counting, Decision, Plan, Rule,
    plan::Planned,
    rule::Shown,
    settle::Tally,
    store::{Source, Veto},
};

/// The whole request's result.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict<'r> {
    /// Whether the request may pass.
    pub code: Code,
    /// Whether it would have been refused, were it not in global shadow mode.
    pub shadowed: bool,
    /// One for each descriptor, in order.
    pub statuses: SmallVec<[Status<'r>; 4]>,
}

/// May pass, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// May pass.
    Ok,
    /// A limit refuses.
    OverLimit,
}

/// What the caller is told about one descriptor.
#[derive(Clone, Debug, PartialEq)]
pub struct Status<'r> {
    /// What the descriptor alone would say.
    pub code: Code,
    /// The limit closest to refusing, if any applies.
    pub current_limit: Option<CurrentLimit<'r>>,
    /// Hits left.
    pub remaining: u32,
    /// Where refused: time until these hits would pass. Else: time until the counter is as if never
    /// used, or the fixed window ends. `None` where no limit applies, or no waiting helps.
    pub until_reset: Option<Duration>,
    /// The rule that matched.
    pub rule: Option<&'r Rule>,
    /// Whether the rule would have refused, were it not in shadow mode.
    pub shadowed: bool,
    /// Who decided, where a limit applies.
    pub source: Option<Source>,
    /// Position of the check that speaks for the descriptor, where a limit applies.
    pub check: Option<usize>,
}

/// A limit, as the caller sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CurrentLimit<'r> {
    /// The numbers, as configured.
    pub shown: Shown,
    /// The name, if it has one.
    pub name: Option<&'r str>,
}

/// Answers each descriptor from the decisions about its checks.
///
/// `decisions` holds one for each check of the plan's batch, in order.
#[must_use]
pub fn respond<'r>(plan: &Plan<'r>, decisions: &[Decision]) -> Verdict<'r> {
    let mut decisions = decisions.iter().enumerate();
    let mut tally = Tally::default();
    // Filled where it is returned: it is large.
    let mut verdict = Verdict { code: Code::Ok, shadowed: false, statuses: SmallVec::new() };
    for planned in &plan.descriptors {
        verdict.statuses.push(match planned {
            Planned::Unmatched => Status::passing(None, 0),
            Planned::Unlimited(rule) => Status::passing(Some(*rule), u32::MAX),
            Planned::Limited { rule, limits, veto, counting, shadow_mode, .. } => {
                let decided = limits.iter().zip(decisions.by_ref());
                let status = Status::decided(*rule, decided, *counting, *shadow_mode);
                tally.add(*veto, status.code == Code::OverLimit);
                status
            }
        });
    }
    if plan.has_quota_left {
        tally.add(Veto::Quota, false);
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
            until_reset: None,
            rule,
            shadowed: false,
            source: None,
            check: None,
        }
    }

    /// Of several limits the one that refuses longest speaks, else the one with the least left.
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
            // Allowed limits come after refusing ones; `None` is the longest wait.
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
            // Upstream's window ends whether or not that helps.
            Counting::Upstream => decision.retry_after.or(Some(decision.reset_after)),
            Counting::Free | Counting::Debit => decision.retry_after,
        };
        Self {
            code: Code::refused(over && !shadow_mode),
            current_limit: Some(*limit),
            // Envoy's headers show the status with the least remaining: it must be the one that refuses.
            remaining: if over { 0 } else { u32::try_from(decision.remaining).unwrap_or(u32::MAX) },
            until_reset: if over { until_retry } else { Some(decision.reset_after) },
            rule,
            shadowed: over && shadow_mode,
            source: Some(decision.source),
            check: Some(check),
        }
    }
}
