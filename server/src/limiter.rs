//! The pipeline: match, plan, decide, respond.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use sluicegate_core::{Check, Decision, Plan, Request, Verdict, respond};
use sluicegate_store::{Deferred, Stack};

use crate::{limits::Snapshot, telemetry::Telemetry};

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
}

impl Limiter {
    pub(crate) fn new(
        snapshot: Arc<ArcSwap<Snapshot>>,
        store: Arc<Stack>,
        telemetry: Arc<Telemetry>,
        decision_timeout: Duration,
    ) -> Self {
        Self { snapshot, store, telemetry, decision_timeout }
    }

    /// Whether every request may pass, whatever is decided.
    pub(crate) fn shadow_mode(&self) -> bool {
        self.snapshot.load().rules.modes.shadow_mode
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
        encode: impl FnOnce(Answered<'_, '_>) -> R,
    ) -> Result<R, Deferred> {
        let started = Instant::now();
        let within = within.map_or(self.decision_timeout, |it| it.min(self.decision_timeout));
        let deadline = started + within;
        let snapshot = self.snapshot.load_full(); // one consistent set of limits per request
        let (plan, group) = Plan::new(&snapshot.rules, request); // match + plan, pure
        let decided = self.store.decide(Arc::clone(&group), Some(deadline)).await; // the failure policy is inside
        let took = started.elapsed();
        self.telemetry.punctuality.note(took.saturating_sub(within));
        let decisions = decided.inspect_err(|_| self.telemetry.deferred.add(1))?;
        let verdict = respond(&plan, &decisions); // pure
        let answered =
            Answered { plan: &plan, group: &group, decisions: &decisions, verdict: &verdict };
        self.telemetry.record(&snapshot, &answered, request, took);
        Ok(encode(answered))
    }
}
