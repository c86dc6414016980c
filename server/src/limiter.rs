//! The pipeline: match, plan, decide, respond.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use sluicegate_core::{Check, Decision, Plan, Request, Verdict, respond};
use sluicegate_store::{Deferred, Stack};

use crate::{
    limits::Snapshot,
    telemetry::{DecisionLog, RequestSpan, Telemetry, Traced},
};

/// A request's decision, and what led there.
pub(crate) struct Answered<'a, 'r> {
    /// What each descriptor met.
    pub(crate) plan: &'a Plan<'r>,
    /// What was asked.
    pub(crate) group: &'a [Check],
    /// The answers, one for each check.
    pub(crate) decisions: &'a [Decision],
    /// The result.
    pub(crate) verdict: &'a Verdict<'r>,
}

/// Decides requests.
pub(crate) struct Limiter {
    snapshot: Arc<ArcSwap<Snapshot>>,
    store: Arc<Stack>,
    telemetry: Arc<Telemetry>,
    decision_timeout: Duration,
    log: Option<Arc<DecisionLog>>,
}

impl Limiter {
    pub(crate) fn new(
        snapshot: Arc<ArcSwap<Snapshot>>,
        store: Arc<Stack>,
        telemetry: Arc<Telemetry>,
        decision_timeout: Duration,
        log: Option<Arc<DecisionLog>>,
    ) -> Self {
        Self { snapshot, store, telemetry, decision_timeout, log }
    }

    /// Refuses a request without looking at it. Returns whether it may pass all the same, because whatever is decided
    /// is only simulated.
    pub(crate) fn shed(&self, request: &Request<'_>, traced: &mut Traced) -> bool {
        self.telemetry.shed.add(1);
        let snapshot = self.snapshot.load();
        let shadow_mode = snapshot.rules.modes.shadow_mode;
        if shadow_mode {
            self.telemetry.shadowed.add(1);
        }
        traced.note(|span| span.shed(request.descriptors().len(), shadow_mode));
        if let Some(log) = &self.log {
            log.note_shed(snapshot.rules.domain(request.domain()), shadow_mode, traced.trace);
        }
        shadow_mode
    }

    /// Decides one request, within the time that the caller gives, and hands the answer, which borrows from
    /// the rules, to `encode`.
    ///
    /// # Errors
    /// The store cannot answer and a rule leaves it to the caller.
    pub(crate) async fn decide<R>(
        &self,
        request: &Request<'_>,
        within: Option<Duration>,
        traced: &mut Traced,
        encode: impl FnOnce(Answered<'_, '_>) -> R,
    ) -> Result<R, Deferred> {
        let started = Instant::now();
        let within = within.map_or(self.decision_timeout, |it| it.min(self.decision_timeout));
        let deadline = started + within;
        let snapshot = self.snapshot.load_full(); // one consistent set of limits per request
        traced.note(RequestSpan::matching);
        let (plan, group) = Plan::new(&snapshot.rules, request); // match + plan, pure
        traced.note(RequestSpan::asking);
        let decided = self.store.decide(Arc::clone(&group), Some(deadline)).await; // the failure policy is inside
        let took = started.elapsed();
        traced.note(|span| span.decided(group.len(), decided.as_deref().ok()));
        self.telemetry.punctuality.note(took.saturating_sub(within));
        let decisions = decided.inspect_err(|_| self.telemetry.deferred.add(1))?;
        let verdict = respond(&plan, &decisions); // pure
        let answered =
            Answered { plan: &plan, group: &group, decisions: &decisions, verdict: &verdict };
        self.telemetry.record(&snapshot, &answered, request, took);
        traced.note(|span| span.answered(&answered));
        if let Some(log) = &self.log {
            log.note(request, &answered, traced.trace);
        }
        Ok(encode(answered))
    }
}
