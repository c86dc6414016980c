//! Decisions on groups: the store's answers, failure policies for checks without an answer, and refunds.

use std::{
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use sluicegate_core::{
    Answers, Batch, Charge, Check, Decision, OnFailure, Store, StoreError,
    defect_fixes::DefectFix,
    store::{DecisionSource, Group},
};
use thiserror::Error;
use tokio::sync::Semaphore;

use super::{
    fallback_sync::FallbackSync,
    partial_decisions::{
        Decisions, PartialDecisions, decisions_if_all_allowed, denied_decision, positions_to_await,
        refuses,
    },
    refund::{Refund, take_refunds, undo},
    refund_tasks::RefundTasks,
};
use crate::{Clock, LiveReplicas, Memory, clock};

/// The store did not answer, and a rule defers to the caller's failure mode.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the store is not available and a rule says on_failure: defer")]
pub struct Deferred;

/// What the layer shares with its tasks, which may outlive the caller of a decision.
#[derive(Debug)]
pub(super) struct PolicyState<S> {
    pub(super) inner: Arc<S>,
    pub(super) local: Option<LocalFallback>,
    pub(super) fallback_sync: Option<FallbackSync>,
    pub(super) unanswered: AtomicU64,
    pub(super) requests_unanswered: AtomicU64,
    pub(super) refund_tasks: Arc<RefundTasks>,
    pub(super) multi_slot_permits: Arc<Semaphore>,
    pub(super) multi_slot_abandoned: AtomicU64,
}

/// The local fallback: the counters of `on_failure: local` while the store does not answer.
#[derive(Debug)]
pub struct LocalFallback {
    /// The counters.
    pub store: Memory<Arc<dyn Clock>>,
    /// The number of replicas that share a limit.
    pub replicas: LiveReplicas,
    /// The most counters for which the store's last report is kept, and the most counters with hits to be debited.
    /// Local counters start from these reports. With 0, they start unused, and their hits are not debited.
    pub counters_max: usize,
}

impl<S: Store> PolicyState<S> {
    /// Decides every check of a group, by the deadline.
    ///
    /// # Errors
    /// See [`FailurePolicy::decide`](super::FailurePolicy::decide).
    pub(super) async fn decide(
        self: &Arc<Self>,
        group: Group,
        deadline: Option<Instant>,
    ) -> Result<Decisions, Deferred> {
        // Inlined by hand, because each function call copies the answers.
        let sent_at = clock::now();
        let answers = self.inner.decide(Batch::single(Arc::clone(&group), deadline)).await;
        let suffices = self.fallback_sync.as_ref().is_none_or(|fallback_sync| {
            fallback_sync.record_answers(&group, &answers, sent_at);
            fallback_sync.store_suffices(&group)
        });
        if suffices && let Some(decisions) = decisions_if_all_allowed(&group, &answers) {
            return Ok(decisions);
        }
        // Boxed, because it is rare and would enlarge the future of every request.
        Box::pin(self.complete_decisions(&group, &answers)).await
    }

    /// Decides the checks that the wrapped store did not answer, and refunds the charges of a refused or failed
    /// request.
    pub(super) async fn complete_decisions(
        self: &Arc<Self>,
        group: &Group,
        answers: &Answers,
    ) -> Result<Decisions, Deferred> {
        let is_unknown = answers.contains(&Err(StoreError::OutcomeUnknown));
        // Before the first await, as the trait demands.
        let late = is_unknown.then(|| self.inner.late_answers(group)).flatten();
        let requires_local_share = |check: &Check| {
            self.fallback_sync.as_ref().is_some_and(|it| it.requires_local_share(check))
        };
        let mut partial =
            PartialDecisions::new(group, answers, self.local.is_some(), requires_local_share);
        self.unanswered.fetch_add(partial.unanswered, Ordering::Relaxed);
        self.requests_unanswered.fetch_add(u64::from(partial.unanswered > 0), Ordering::Relaxed);
        if partial.unanswered > 0 {
            self.retry_refunds(group, answers).await;
        }
        if !partial.local_checks.is_empty() {
            self.decide_locally(group, &mut partial).await;
        }
        let refused = refuses(group, &partial.decisions);
        let deferred = partial.deferred && !refused;
        let refunds = take_refunds(group, &mut partial.decisions, refused || deferred);
        if !refunds.is_empty() {
            self.refund(group, &partial, refunds).await;
        }
        if !partial.local_checks.is_empty() {
            self.record_local_decisions(group, &partial);
        }
        if let Some(late) = late
            && DefectFix::RefundLateCharges.is_active()
        {
            // After `record_local_decisions`: a late charge of a counter without hits to be debited is not refunded.
            let failed = refused || deferred;
            let positions =
                positions_to_await(group, answers, &partial, failed, requires_local_share);
            self.refund_late_charges(group, positions, late);
        }
        for (at, refusal) in partial.refused_locally {
            if let Some(decision) = partial.decisions.get_mut(at) {
                let Decision { charged, receipt, .. } = *decision;
                *decision = Decision { charged, receipt, ..refusal };
            }
        }
        if deferred { Err(Deferred) } else { Ok(partial.decisions) }
    }

    /// Decides checks against the local share. Called last, so that no local counter is charged for a request that the
    /// store already refused.
    async fn decide_locally(&self, group: &[Check], partial: &mut PartialDecisions) {
        let Some(local) = &self.local else { return };
        let refused = refuses(group, &partial.decisions);
        partial.local_checks.retain(|it| {
            let is_conditional = |check: &Check| check.charge.is_conditional();
            !(refused && group.get(it.position).is_some_and(is_conditional))
        });
        let replicas = local.replicas.get();
        let mut checks = Vec::with_capacity(partial.local_checks.len());
        for it in &mut partial.local_checks {
            let decided = group.get(it.position).zip(partial.decisions.get(it.position));
            let Some((check, decision)) = decided else { continue };
            // While the counter has hits to be debited, the number of replicas from their admission applies: another
            // number would compare them with another share.
            let recorded =
                self.fallback_sync.as_ref().and_then(|fallback_sync| fallback_sync.replicas(check));
            it.replicas = recorded.unwrap_or(replicas);
            let share = it.share(check);
            if let Some(fallback_sync) = &self.fallback_sync {
                let charged = decision.charged;
                fallback_sync.cap_remaining((check, &share, charged), it.replicas, &local.store);
            }
            checks.push(share);
        }
        let answers = local.store.decide(Batch::single(checks.into(), None)).await;
        for (it, answer) in partial.local_checks.iter_mut().zip(answers) {
            let Some(decision) = partial.decisions.get_mut(it.position) else { continue };
            let by_local = answer.map_or_else(
                |_| denied_decision(),
                |it| Decision { source: DecisionSource::LocalFallback, ..it },
            );
            it.decision = Some(by_local);
            if decision.source != DecisionSource::Store {
                *decision = by_local;
            } else if !by_local.allowed {
                decision.allowed = false;
                partial.refused_locally.push((it.position, by_local));
            }
        }
    }

    /// Records locally admitted hits, which are debited when the store answers again.
    fn record_local_decisions(self: &Arc<Self>, group: &[Check], partial: &PartialDecisions) {
        if self
            .fallback_sync
            .as_ref()
            .is_some_and(|fallback_sync| fallback_sync.record_local_decisions(group, partial))
        {
            tokio::spawn(Arc::clone(self).debit_all());
        }
    }

    /// Refunds charges: local ones at once, those in the wrapped store in a task.
    async fn refund(&self, group: &[Check], partial: &PartialDecisions, refunds: Vec<Refund>) {
        let has_refund = |position| refunds.iter().any(|it| it.position == position);
        let local = partial.local_checks.iter().filter(|it| has_refund(it.position));
        let local = local.filter_map(|it| {
            let share = it.share(group.get(it.position)?);
            undo(&share, it.decision.as_ref()?)
        });
        self.refund_locally(local.collect()).await;
        let in_store = refunds.into_iter().filter(|it| it.source != DecisionSource::LocalFallback);
        let in_store: Vec<Check> = in_store.map(|it| it.check).collect();
        if !in_store.is_empty() {
            self.refund_tasks.start(Arc::clone(&self.inner), in_store);
        }
    }

    async fn refund_locally(&self, refunds: Vec<Check>) {
        if let (Some(local), false) = (&self.local, refunds.is_empty()) {
            // Memory answers every refund.
            let _answers = local.store.decide(Batch::single(refunds.into(), None)).await;
        }
    }

    /// Retries the group's refunds that the store did not run: subtracts them from the hits to be debited, and sends
    /// the rest to the store again in a task.
    async fn retry_refunds(&self, group: &[Check], answers: &Answers) {
        let (mut local, mut in_store) = (Vec::new(), Vec::new());
        for (check, answer) in group.iter().zip(answers) {
            let Charge::Refund { hits, receipt } = check.charge else { continue };
            if answer.is_ok() || *answer == Err(StoreError::OutcomeUnknown) {
                continue;
            }
            let undebited = self.refund_undebited(check, hits);
            let refund = |hits| Charge::Refund { hits, receipt };
            if let Some((hits, replicas)) = undebited {
                let limit = check.limit.per_replica(replicas);
                local.push(Check { charge: refund(hits), limit, ..check.clone() });
            }
            let rest = hits - undebited.map_or(0, |(hits, _)| hits);
            if rest > 0 {
                in_store.push(Check { charge: refund(rest), ..check.clone() });
            }
        }
        self.refund_locally(local).await;
        if !in_store.is_empty() {
            self.refund_tasks.start_retries(Arc::clone(&self.inner), in_store);
        }
    }

    /// Subtracts refunded hits from the hits to be debited of a counter. Returns the number subtracted, and the number
    /// of replicas that share the limit; `None` if the counter has no such hits.
    fn refund_undebited(&self, check: &Check, hits: u64) -> Option<(u64, NonZeroU32)> {
        let fallback_sync =
            self.fallback_sync.as_ref().filter(|_| check.on_failure == OnFailure::Local)?;
        let replicas = fallback_sync.replicas(check)?;
        let refunded = fallback_sync.refund(&check.key, hits);
        (refunded > 0).then_some((refunded, replicas))
    }
}
