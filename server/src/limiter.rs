//! The pipeline: match, plan, decide, respond.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use sluicegate_core::{Plan, Request, respond};
use sluicegate_store::{Deferred, Stack};

use crate::{
    decision::DecisionRecord,
    limits::Snapshot,
    telemetry::{Bound, DecisionLog, RequestSpan, RequestTrace, Telemetry},
};

/// Why a request was not decided.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Undecided {
    /// The caller's own failure mode is to decide.
    Deferred(Deferred),
    /// Matching takes too long.
    TooCostly,
}

impl From<Deferred> for Undecided {
    fn from(deferred: Deferred) -> Self {
        Self::Deferred(deferred)
    }
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

    /// Refuses a request without deciding it, because it exceeds a bound, or because there are too many. Returns
    /// whether it may pass all the same, because whatever is decided is only simulated.
    pub(crate) fn refuse(
        &self,
        bound: Option<Bound>,
        domain: Option<&str>,
        descriptors: usize,
        traced: &mut RequestTrace,
    ) -> bool {
        match bound {
            Some(bound) => self.telemetry.over_bounds.note(bound),
            None => self.telemetry.shed.add(1),
        }
        let snapshot = self.snapshot.load();
        let shadow_mode = snapshot.rules.modes.shadow_mode;
        if shadow_mode {
            self.telemetry.shadowed.add(1);
        }
        traced.note(|span| span.undecided(bound, descriptors, shadow_mode));
        if let Some(log) = &self.log {
            let source = if bound.is_some() { "bound" } else { "shed" };
            let domain = domain.and_then(|domain| snapshot.rules.domain(domain));
            log.note_undecided(source, domain, shadow_mode, traced.trace);
        }
        shadow_mode
    }

    /// The most times that a value may be searched while a request is matched, at one level of the rules in force.
    pub(crate) fn searches_max(&self) -> usize {
        self.snapshot.load().rules.searches_max()
    }

    /// Decides one request, within the time that the caller gives, and hands the answer, which borrows from
    /// the rules, to `encode`.
    ///
    /// # Errors
    /// The store cannot answer and a rule leaves it to the caller, or matching takes too long.
    pub(crate) async fn decide<R>(
        &self,
        request: &Request<'_>,
        within: Option<Duration>,
        traced: &mut RequestTrace,
        encode: impl FnOnce(&DecisionRecord<'_, '_>) -> R,
    ) -> Result<R, Undecided> {
        let started = Instant::now();
        let within = within.map_or(self.decision_timeout, |it| it.min(self.decision_timeout));
        let deadline = started + within;
        let snapshot = self.snapshot.load_full(); // one consistent set of limits per request
        traced.note(RequestSpan::matching);
        let (plan, group) = Plan::new(&snapshot.rules, request); // match + plan, pure
        if plan.is_too_costly {
            return Err(Undecided::TooCostly);
        }
        traced.note(RequestSpan::asking);
        let answers = self.store.decide(Arc::clone(&group), Some(deadline)).await; // the failure policy is inside
        let took = started.elapsed();
        traced.note(|span| span.decided(group.len(), answers.as_deref().ok()));
        self.telemetry.deadlines.note(took.saturating_sub(within));
        let decisions = answers.inspect_err(|_| self.telemetry.deferred.add(1))?;
        let verdict = respond(&plan, &decisions); // pure
        let decided =
            DecisionRecord { plan: &plan, group: &group, decisions: &decisions, verdict: &verdict };
        self.telemetry.record(&snapshot.metrics, &decided, request, took);
        traced.note(|span| span.answered(&decided));
        if let Some(log) = &self.log {
            log.note(request, &decided, traced.trace);
        }
        Ok(encode(&decided))
    }
}
