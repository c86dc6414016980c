//! The pipeline of a request: match, plan, decide, respond.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use sluicegate_core::{Plan, Request, ResponseBody, respond};
use sluicegate_store::{Deferred, Stack};

use crate::{
    decision::DecisionRecord,
    limits::Snapshot,
    telemetry::{DecisionLog, Metrics, RefusalReason, RequestSpan, RequestTrace},
};

/// Why a request was not decided.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Undecided {
    /// The store did not answer, and a rule defers to the caller's failure mode.
    Deferred(Deferred),
    /// Matching searches too many bytes for patterns.
    TooCostly,
}

impl From<Deferred> for Undecided {
    fn from(deferred: Deferred) -> Self {
        Self::Deferred(deferred)
    }
}

/// A request that is refused without a decision.
#[derive(Clone, Debug)]
pub(crate) struct UndecidedRefusal {
    /// Whether `--shadow-mode` allows the request all the same.
    pub(crate) shadowed: bool,
    /// Response body of the domain, if the domain is known and has one.
    pub(crate) response_body: Option<Arc<ResponseBody>>,
}

/// Decides requests.
pub(crate) struct Limiter {
    snapshot: Arc<ArcSwap<Snapshot>>,
    store: Arc<Stack>,
    metrics: Arc<Metrics>,
    decision_timeout: Duration,
    log: Option<Arc<DecisionLog>>,
}

impl Limiter {
    pub(crate) fn new(
        snapshot: Arc<ArcSwap<Snapshot>>,
        store: Arc<Stack>,
        metrics: Arc<Metrics>,
        decision_timeout: Duration,
        log: Option<Arc<DecisionLog>>,
    ) -> Self {
        Self { snapshot, store, metrics, decision_timeout, log }
    }

    /// Records that a request is refused (OVER_LIMIT) without a decision.
    pub(crate) fn record_refusal(
        &self,
        reason: RefusalReason,
        domain: Option<&str>,
        descriptors: usize,
        trace: &mut RequestTrace,
    ) -> UndecidedRefusal {
        match reason {
            RefusalReason::OverBound(bound) => self.metrics.over_bounds.count(bound),
            RefusalReason::Shed => self.metrics.shed.add(1),
        }
        let snapshot = self.snapshot.load();
        let shadowed = snapshot.rules.modes.shadow_mode;
        if shadowed {
            self.metrics.shadowed.add(1);
        }
        trace.with_span(|span| span.set_refused_undecided(reason, descriptors, shadowed));
        let domain = domain.and_then(|domain| snapshot.rules.domain(domain));
        if let Some(log) = &self.log {
            log.log_undecided(reason, domain, shadowed, trace.trace_id);
        }
        let response_body = domain.and_then(|domain| domain.response_body.clone());
        UndecidedRefusal { shadowed, response_body }
    }

    /// The most times that one value is searched for patterns while a request is matched: the maximum over the levels
    /// of the rules in force.
    pub(crate) fn substring_patterns_max(&self) -> usize {
        self.snapshot.load().rules.substring_patterns_max()
    }

    /// Decides one request, and returns what `encode` makes of the decision, which borrows from the rules. `within` is
    /// the time until the caller's deadline, if it has one.
    ///
    /// # Errors
    /// The request was not decided.
    pub(crate) async fn decide<R>(
        &self,
        request: &Request<'_>,
        within: Option<Duration>,
        trace: &mut RequestTrace,
        encode: impl FnOnce(&DecisionRecord<'_, '_>) -> R,
    ) -> Result<R, Undecided> {
        let started = Instant::now();
        let within = within.map_or(self.decision_timeout, |it| it.min(self.decision_timeout));
        let deadline = started + within;
        let snapshot = self.snapshot.load_full(); // one consistent set of limits per request
        trace.with_span(RequestSpan::begin_match);
        let (plan, group) = Plan::new(&snapshot.rules, request); // match + plan, pure
        if plan.is_search_budget_exceeded {
            return Err(Undecided::TooCostly);
        }
        trace.with_span(RequestSpan::end_match);
        let answers = self.store.decide(Arc::clone(&group), Some(deadline)).await; // the failure policy is inside
        let took = started.elapsed();
        trace.with_span(|span| span.end_decide(group.len(), answers.as_deref().ok()));
        self.metrics.deadlines.record_overrun(took.saturating_sub(within));
        let decisions = answers.inspect_err(|_| self.metrics.deferred.add(1))?;
        let verdict = respond(&plan, &decisions); // pure
        let record =
            DecisionRecord { plan: &plan, group: &group, decisions: &decisions, verdict: &verdict };
        self.metrics.record(&snapshot.rule_set_metrics, &record, request, took);
        trace.with_span(|span| span.set_verdict(&record));
        if let Some(log) = &self.log {
            log.log(request, &record, trace.trace_id);
        }
        Ok(encode(&record))
    }
}
