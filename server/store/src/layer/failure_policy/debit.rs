//! Debits of hits that the local fallback admitted, as soon as the store answers again.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use sluicegate_core::{
    Answers, Batch, Charge, Check, Decision, OnFailure, Store, StoreError,
    store::{Group, LateAnswersFuture, RefusalScope},
};
use tokio::sync::OwnedSemaphorePermit;

use super::{
    fallback_sync::{DEBIT_TIMEOUT, FallbackSync},
    pending_debits::{DueDebit, PendingDebits},
    state::{LocalFallback, PolicyState},
};
use crate::clock;

/// Interval at which the task tests whether the store answers again for counters that were decided locally.
const STORE_PROBE_INTERVAL: Duration = Duration::from_millis(100);

impl<S: Store> PolicyState<S> {
    /// Debits local hits as soon as the store answers, until no counter is listed.
    pub(super) async fn debit_all(self: Arc<Self>) {
        let (Some(local), Some(fallback_sync)) = (&self.local, &self.fallback_sync) else { return };
        while fallback_sync.pending_debits.continue_task() {
            tokio::time::sleep(STORE_PROBE_INTERVAL).await;
            while self.debit_some(local, fallback_sync).await {}
        }
    }

    /// Debits some of the due counters. Returns whether [`debit`](Self::debit) was true for any of them.
    async fn debit_some(
        self: &Arc<Self>,
        local: &LocalFallback,
        fallback_sync: &FallbackSync,
    ) -> bool {
        let due =
            fallback_sync.pending_debits.due(clock::now(), |key| self.inner.is_available(key));
        // Probed first, because a debit without an answer can be neither retried nor dropped.
        let probed = join_all(due.iter().map(|it| self.charge(it, 0, fallback_sync))).await;
        if probed.iter().any(|(_, answer)| answer.is_err()) {
            fallback_sync.pending_debits.note_unanswered(clock::now());
        }
        let answered = due.iter().zip(probed).filter(|(_, (_, answer))| answer.is_ok());
        let debited =
            join_all(answered.map(|(due, _)| self.debit(due, local, fallback_sync))).await;
        debited.contains(&true)
    }

    /// Debits a counter. Returns false if the store did not run the debit; true also if there was nothing to debit, or
    /// if the answer is late.
    async fn debit(
        self: &Arc<Self>,
        due: &DueDebit,
        local: &LocalFallback,
        fallback_sync: &FallbackSync,
    ) -> bool {
        let pending_debits = &fallback_sync.pending_debits;
        let taken = pending_debits.take(due, clock::now());
        if taken == 0 {
            return true;
        }
        // Without those that have expired locally: in the store they would have expired, too.
        let hits = taken.min(self.used_locally(due, local).await);
        if hits == 0 {
            pending_debits.complete(due, taken, 0);
            return true;
        }
        let (group, answer) = self.charge(due, hits, fallback_sync).await;
        let sent = SentDebit { due: due.clone(), taken, hits };
        if answer == Err(StoreError::OutcomeUnknown)
            && let Some(late) = self.inner.late_answers(&group)
            && let Some(permit) = self.refund_tasks.acquire_late_permit()
        {
            tokio::spawn(Arc::clone(self).debit_late(sent, late, permit));
            return true;
        }
        sent.complete(answer, pending_debits)
    }

    /// Records the outcome of a debit by its late answer.
    async fn debit_late(
        self: Arc<Self>,
        sent: SentDebit,
        late: LateAnswersFuture,
        permit: OwnedSemaphorePermit,
    ) {
        let answer = first(&late.await);
        if let Some(fallback_sync) = &self.fallback_sync {
            sent.complete(answer, &fallback_sync.pending_debits);
        }
        drop(permit);
    }

    /// Used hits of the local counter, under this replica's share of the limit.
    async fn used_locally(&self, due: &DueDebit, local: &LocalFallback) -> u64 {
        let limit = due.limit.per_replica(due.replicas);
        let peek = Check { limit, ..charge(due, 0) };
        let answers = local.store.decide(Batch::single(Arc::from([peek]), None)).await;
        let Some(Ok(decision)) = answers.first() else { return 0 };
        (u64::from(limit.capacity()) + decision.excess).saturating_sub(decision.remaining)
    }

    /// Charges hits to a counter in the store even past its limit, or probes it with 0 hits. Also returns the group
    /// that was sent.
    async fn charge(
        &self,
        due: &DueDebit,
        hits: u64,
        fallback_sync: &FallbackSync,
    ) -> (Group, Answer) {
        let sent_at = clock::now();
        let group = Group::from([charge(due, hits)]);
        let batch = Batch::single(Arc::clone(&group), Some(sent_at + DEBIT_TIMEOUT));
        let answers = self.inner.decide(batch).await;
        fallback_sync.record_answers(&group, &answers, sent_at);
        (group, first(&answers))
    }
}

/// The answer to a single check.
type Answer = Result<Decision, StoreError>;

fn first(answers: &Answers) -> Answer {
    answers.first().copied().unwrap_or(Err(StoreError::OutcomeUnknown))
}

/// A debit that was sent to the store.
struct SentDebit {
    due: DueDebit,
    /// Hits that were taken from the list.
    taken: u64,
    /// Hits that were sent: those taken, without expired ones.
    hits: u64,
}

impl SentDebit {
    /// Records the outcome of the debit by the store's answer. Returns false if the store did not run it.
    fn complete(&self, answer: Answer, pending_debits: &PendingDebits) -> bool {
        let &Self { ref due, taken, hits } = self;
        match answer {
            Ok(_) => pending_debits.complete(due, taken, hits),
            Err(StoreError::OutcomeUnknown) => pending_debits.complete_unknown(due, taken, hits),
            Err(StoreError::Full | StoreError::Unavailable | StoreError::Moved) => {
                pending_debits.put_back(due, taken);
                return false;
            }
        }
        true
    }
}

fn charge(due: &DueDebit, hits: u64) -> Check {
    Check {
        key: due.key.clone(),
        limit: due.limit,
        charge: Charge::Always { hits, needs: 0 },
        descriptor: 0,
        refusal_scope: RefusalScope::None,
        on_failure: OnFailure::Local,
    }
}
