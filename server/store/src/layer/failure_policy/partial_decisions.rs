//! Decisions on a group: those of the store, and those of failure policies for checks without an answer.

use std::{num::NonZeroU32, time::Duration};

use sluicegate_core::{
    Answers, Charge, Check, Decision, OnFailure, RefusalTally, StoreError,
    store::{DecisionSource, RefusalScope},
};
use smallvec::SmallVec;

use crate::layer::uncounted_decision;

/// A decision for each check of a group, in order.
pub type Decisions = SmallVec<[Decision; 4]>;

/// Retry time of refusals by failure policy: about as long as a store takes to recover.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The decisions, if the store answered every check and allowed all of them.
pub(super) fn decisions_if_all_allowed(group: &[Check], answers: &Answers) -> Option<Decisions> {
    if answers.len() != group.len() {
        return None;
    }
    answers.iter().map(|answer| answer.ok().filter(|decision| decision.allowed)).collect()
}

/// The decisions on a group so far, and the checks that the local fallback must decide.
pub(super) struct PartialDecisions {
    pub(super) decisions: Decisions,
    /// Number of checks without an answer.
    pub(super) unanswered: u64,
    /// Whether one of them has `on_failure: defer`.
    pub(super) deferred: bool,
    /// Checks that the local fallback must decide. Until then their entries in `decisions` are the store's decisions,
    /// which allow, or placeholders that allow.
    pub(super) local_checks: SmallVec<[LocalCheck; 4]>,
    /// Position and local decision of checks that the store allowed and the local fallback refused.
    pub(super) refused_locally: SmallVec<[(usize, Decision); 1]>,
}

/// A check that the local fallback must decide.
pub(super) struct LocalCheck {
    /// Position in the group.
    pub(super) position: usize,
    /// The number of replicas that share the limit.
    pub(super) replicas: NonZeroU32,
    /// The decision of the local fallback.
    pub(super) decision: Option<Decision>,
}

impl LocalCheck {
    const fn new(position: usize) -> Self {
        Self { position, replicas: NonZeroU32::MIN, decision: None }
    }

    /// The check against this replica's share of the limit.
    pub(super) fn share(&self, check: &Check) -> Check {
        let limit = check.limit.per_replica(self.replicas);
        Check { limit, refusal_scope: check.refusal_scope.for_one_slot(), ..check.clone() }
    }
}

impl PartialDecisions {
    /// Combines the answers with failure policies. `requires_local_share` is true for checks that must pass the local
    /// share even if the store allows them.
    pub(super) fn new(
        group: &[Check],
        answers: &Answers,
        has_local: bool,
        requires_local_share: impl Fn(&Check) -> bool,
    ) -> Self {
        let mut partial = Self {
            decisions: Decisions::with_capacity(group.len()),
            unanswered: 0,
            deferred: false,
            local_checks: SmallVec::new(),
            refused_locally: SmallVec::new(),
        };
        for (at, check) in group.iter().enumerate() {
            // If a store returns too few answers, the rest is unknown.
            let answer = answers.get(at).copied().unwrap_or(Err(StoreError::OutcomeUnknown));
            let decision = answer.unwrap_or_else(|error| {
                partial.unanswered += 1;
                partial.by_policy(at, check, error, has_local)
            });
            if decision.source == DecisionSource::Store
                && decision.charged > 0
                && requires_local_share(check)
            {
                partial.local_checks.push(LocalCheck::new(at));
            }
            partial.decisions.push(decision);
        }
        partial
    }

    /// The decision of the failure policy on a check without an answer.
    fn by_policy(
        &mut self,
        at: usize,
        check: &Check,
        error: StoreError,
        has_local: bool,
    ) -> Decision {
        if matches!(check.charge, Charge::Refund { .. }) {
            return uncounted_decision(check, DecisionSource::FailurePolicy);
        }
        match check.on_failure {
            OnFailure::Allow => uncounted_decision(check, DecisionSource::FailurePolicy),
            // A client that sends ever new values fills the store. Local counters would be full, too, and an error
            // would let the client pass through Envoy.
            OnFailure::Local | OnFailure::Defer if error == StoreError::Full => denied_decision(),
            OnFailure::Defer => {
                // A rule in shadow mode does not defer the request.
                self.deferred |= check.refusal_scope != RefusalScope::None;
                uncounted_decision(check, DecisionSource::FailurePolicy)
            }
            OnFailure::Local if has_local => {
                self.local_checks.push(LocalCheck::new(at));
                uncounted_decision(check, DecisionSource::NotAsked)
            }
            OnFailure::Local | OnFailure::Deny => denied_decision(),
        }
    }
}

/// A decision that refuses by failure policy.
pub(super) fn denied_decision() -> Decision {
    Decision {
        allowed: false,
        charged: 0,
        remaining: 0,
        excess: 0,
        reset_after: RETRY_AFTER,
        retry_after: Some(RETRY_AFTER),
        receipt: None,
        source: DecisionSource::FailurePolicy,
    }
}

/// For each descriptor its first check, and whether one of its checks is refused.
fn by_descriptor<'g>(
    group: &'g [Check],
    decisions: &'g [Decision],
) -> impl Iterator<Item = (&'g Check, bool)> {
    let mut decisions = decisions.iter();
    group.chunk_by(|a, b| a.descriptor == b.descriptor).filter_map(move |checks| {
        let over = checks.iter().zip(decisions.by_ref()).filter(|(_, it)| !it.allowed).count() > 0;
        Some((checks.first()?, over))
    })
}

/// Whether these decisions refuse the request.
pub(super) fn refuses(group: &[Check], decisions: &[Decision]) -> bool {
    let mut tally = RefusalTally::default();
    for (check, over) in by_descriptor(group, decisions) {
        tally.add(check.refusal_scope, over);
    }
    tally.refused()
}

/// Positions of checks in their group.
pub(super) type Positions = SmallVec<[usize; 4]>;

/// The checks whose late answers must be awaited. A late charge is refunded in two cases: it was conditional, and its
/// descriptor is refused or the whole request is refused or deferred (`failed`); or the local fallback charged the same
/// hits, which will be debited. Refunds that the store did not run are retried.
pub(super) fn positions_to_await(
    group: &[Check],
    answers: &Answers,
    partial: &PartialDecisions,
    failed: bool,
    requires_local_share: impl Fn(&Check) -> bool,
) -> Positions {
    let mut positions = Positions::new();
    let mut first = 0;
    for checks in group.chunk_by(|a, b| a.descriptor == b.descriptor) {
        let end = first + checks.len();
        let decisions = partial.decisions.get(first..end).unwrap_or_default();
        let over = failed || decisions.iter().any(|decision| !decision.allowed);
        for (position, check) in (first..end).zip(checks) {
            let is_unknown = answers.get(position) == Some(&Err(StoreError::OutcomeUnknown));
            let is_local = || partial.local_checks.iter().any(|it| it.position == position);
            let is_refunded =
                requires_local_share(check) && is_local() || over && check.charge.is_conditional();
            if is_unknown && (is_refunded || is_refund(check)) {
                positions.push(position);
            }
        }
        first = end;
    }
    positions
}

/// Whether a check is a refund.
pub(super) const fn is_refund(check: &Check) -> bool {
    matches!(check.charge, Charge::Refund { .. })
}
