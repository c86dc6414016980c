//! Decisions on a group from the store's answers, and from failure policies for checks without an answer.

use std::{num::NonZeroU32, time::Duration};

use sluicegate_core::{
    Answers, Charge, Check, Decision, OnFailure, RefusalTally, StoreError,
    store::{RefusalScope, Source},
};
use smallvec::SmallVec;

/// A decision for each check of a group, in order.
pub type Decisions = SmallVec<[Decision; 4]>;

/// When to come again, where it is not known: about how long a store needs to come back.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The decisions, if there is one about every check and all say yes: then nothing is left to do.
pub(super) fn allowed_by_all(group: &[Check], answers: &Answers) -> Option<Decisions> {
    if answers.len() != group.len() {
        return None;
    }
    answers.iter().map(|answer| answer.ok().filter(|decision| decision.allowed)).collect()
}

/// What is known about a group once the store inside has spoken.
pub(super) struct Conclusion {
    pub(super) decisions: Decisions,
    /// Checks without an answer.
    pub(super) failed: u64,
    /// Whether one of them is left to the caller.
    pub(super) deferred: bool,
    /// Those that this process is asked. Until then they hold the store's permission, or a decision that neither refuses nor
    /// says anything.
    pub(super) local: SmallVec<[LocalCheck; 4]>,
    /// Checks that the store permits and this process refuses, with its decisions.
    pub(super) refused_here: SmallVec<[(usize, Decision); 1]>,
}

/// A check that this process is asked.
pub(super) struct LocalCheck {
    /// In the group.
    pub(super) position: usize,
    /// The number of processes that its limit is divided by.
    pub(super) replicas: NonZeroU32,
    /// What this process has decided.
    pub(super) decision: Option<Decision>,
}

impl LocalCheck {
    const fn new(position: usize) -> Self {
        Self { position, replicas: NonZeroU32::MIN, decision: None }
    }

    /// The check against this process's share of the limit.
    pub(super) fn share(&self, check: &Check) -> Check {
        let limit = check.limit.per_replica(self.replicas);
        Check { limit, refusal_scope: check.refusal_scope.for_one_slot(), ..check.clone() }
    }
}

impl Conclusion {
    /// `guards` has the checks that must pass the local share even if the store allows them.
    pub(super) fn new(
        group: &[Check],
        answers: &Answers,
        has_local: bool,
        guards: impl Fn(&Check) -> bool,
    ) -> Self {
        let mut conclusion = Self {
            decisions: Decisions::with_capacity(group.len()),
            failed: 0,
            deferred: false,
            local: SmallVec::new(),
            refused_here: SmallVec::new(),
        };
        for (at, check) in group.iter().enumerate() {
            // A store that answers too few checks has not answered the rest.
            let answer = answers.get(at).copied().unwrap_or(Err(StoreError::Unknown));
            let decision = answer.unwrap_or_else(|error| {
                conclusion.failed += 1;
                conclusion.by_policy(at, check, error, has_local)
            });
            if decision.source == Source::Store && decision.charged > 0 && guards(check) {
                conclusion.local.push(LocalCheck::new(at));
            }
            conclusion.decisions.push(decision);
        }
        conclusion
    }

    fn by_policy(
        &mut self,
        at: usize,
        check: &Check,
        error: StoreError,
        has_local: bool,
    ) -> Decision {
        if matches!(check.charge, Charge::Refund { .. }) {
            return allowed(check, Source::Policy);
        }
        match check.on_failure {
            OnFailure::Allow => allowed(check, Source::Policy),
            // Ever new values fill a store. Local counters would be as full, the caller could do no better, and a client
            // must not be able to make errors, which Envoy lets pass.
            OnFailure::Local | OnFailure::Defer if error == StoreError::Full => denied(),
            OnFailure::Defer => {
                // A rule without enforcement does not fail a request either.
                self.deferred |= check.refusal_scope != RefusalScope::None;
                allowed(check, Source::Policy)
            }
            OnFailure::Local if has_local => {
                self.local.push(LocalCheck::new(at));
                allowed(check, Source::NotAsked)
            }
            OnFailure::Local | OnFailure::Deny => denied(),
        }
    }
}

/// Passes without being counted; says what an unused counter would.
fn allowed(check: &Check, source: Source) -> Decision {
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

pub(super) fn denied() -> Decision {
    Decision {
        allowed: false,
        charged: 0,
        remaining: 0,
        excess: 0,
        reset_after: RETRY_AFTER,
        retry_after: Some(RETRY_AFTER),
        receipt: None,
        source: Source::Policy,
    }
}

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

pub(super) fn refuses(group: &[Check], decisions: &[Decision]) -> bool {
    let mut tally = RefusalTally::default();
    for (check, over) in by_descriptor(group, decisions) {
        tally.add(check.refusal_scope, over);
    }
    tally.refused()
}

/// Positions of checks in their group.
pub(super) type Positions = SmallVec<[usize; 4]>;

/// The checks without an answer whose late answer matters. Hits that the store charged are refunded if the charge was
/// conditional and the descriptor is over or the request failed, or if this process counted them itself and will
/// debit them. Refunds that the store has not run are sent again.
pub(super) fn awaited(
    group: &[Check],
    answers: &Answers,
    conclusion: &Conclusion,
    failed: bool,
    is_listed: impl Fn(&Check) -> bool,
) -> Positions {
    let mut positions = Positions::new();
    let mut first = 0;
    for checks in group.chunk_by(|a, b| a.descriptor == b.descriptor) {
        let end = first + checks.len();
        let decisions = conclusion.decisions.get(first..end).unwrap_or_default();
        let over = failed || decisions.iter().any(|decision| !decision.allowed);
        for (position, check) in (first..end).zip(checks) {
            let is_unknown = answers.get(position) == Some(&Err(StoreError::Unknown));
            let is_local = || conclusion.local.iter().any(|it| it.position == position);
            let is_in_vain =
                is_listed(check) && is_local() || over && check.charge.is_conditional();
            if is_unknown && (is_in_vain || is_refund(check)) {
                positions.push(position);
            }
        }
        first = end;
    }
    positions
}

/// Whether a check refunds hits of other requests.
pub(super) const fn is_refund(check: &Check) -> bool {
    matches!(check.charge, Charge::Refund { .. })
}
