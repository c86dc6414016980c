//! What follows from a store's answers about a group: decisions for every check, by failure policies where there is none.

use std::time::Duration;

use sluicegate_core::{
    Answers, Check, Decision, OnFailure, StoreError, Take, Tally,
    store::{Source, Veto},
};
use smallvec::SmallVec;

use super::Decisions;

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
    /// Positions of those that this process is asked. Until then they hold the store's permission, or a decision that
    /// neither refuses nor says anything.
    pub(super) local: SmallVec<[usize; 4]>,
    /// Checks that the store permits and this process refuses, with its decisions.
    pub(super) refused_here: SmallVec<[(usize, Decision); 1]>,
}

impl Conclusion {
    /// `guards` tells for which checks this process is asked even if the store permits them.
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
            if decision.source == Source::Store && decision.granted > 0 && guards(check) {
                conclusion.local.push(at);
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
        if matches!(check.take, Take::GiveBack { .. }) {
            return allowed(check, Source::Policy);
        }
        match check.on_failure {
            OnFailure::Allow => allowed(check, Source::Policy),
            // Ever new values fill a store. Local counters would be as full, the caller could do no better, and a client
            // must not be able to make errors, which Envoy lets pass.
            OnFailure::Local | OnFailure::Defer if error == StoreError::Full => denied(),
            OnFailure::Defer => {
                // A rule that refuses nobody does not fail a request either.
                self.deferred |= check.veto != Veto::None;
                allowed(check, Source::Policy)
            }
            OnFailure::Local if has_local => {
                self.local.push(at);
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
        granted: 0,
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
        granted: 0,
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
    let mut tally = Tally::default();
    for (check, over) in by_descriptor(group, decisions) {
        tally.add(check.veto, over);
    }
    tally.refused()
}
