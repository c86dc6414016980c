//! The pipeline: match, plan, decide, respond.

use std::{sync::Arc, time::Instant};

use arc_swap::ArcSwap;
use sluicegate_core::{Plan, Request, Store, Verdict, respond};
use sluicegate_store::FailurePolicy;

use crate::{limits::Snapshot, telemetry::Telemetry};

/// Decides requests.
pub(crate) struct Limiter<S> {
    snapshot: Arc<ArcSwap<Snapshot>>,
    store: Arc<FailurePolicy<S>>,
    telemetry: Arc<Telemetry>,
}

impl<S: Store> Limiter<S> {
    pub(crate) fn new(
        snapshot: Arc<ArcSwap<Snapshot>>,
        store: Arc<FailurePolicy<S>>,
        telemetry: Arc<Telemetry>,
    ) -> Self {
        Self { snapshot, store, telemetry }
    }

    /// Decides one request and hands the verdict, which borrows from the rules, to `encode`.
    pub(crate) async fn decide<R>(
        &self,
        request: &Request<'_>,
        encode: impl FnOnce(Verdict<'_>) -> R,
    ) -> R {
        let started = Instant::now();
        let snapshot = self.snapshot.load_full(); // one consistent set of limits per request
        let (plan, batch) = Plan::new(&snapshot.rules, request); // match + plan, pure
        let decisions = self.store.decide(batch).await; // cannot fail: the failure policy is inside
        let verdict = respond(&plan, &decisions); // pure
        self.telemetry.record(&snapshot, &plan, &verdict, started.elapsed());
        encode(verdict)
    }
}
