//! The failure policy layer: applies `on_failure` to checks that the store did not answer, and refunds the charges of
//! requests that are refused or fail afterwards.

mod debit;
mod fallback_sync;
mod last_reports;
mod late_refunds;
mod partial_decisions;
mod pending_debits;
mod refund;
mod refund_tasks;
mod state;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use sluicegate_core::{
    CounterKey, Store, StoreError, defect_fixes::DefectFix, key::TenantKeys, store::Group,
};
use tokio::sync::{Semaphore, oneshot};

use fallback_sync::FallbackSync;
use state::PolicyState;

pub use fallback_sync::FallbackStats;
pub use partial_decisions::Decisions;
pub use refund_tasks::REFUND_TIMEOUT;
pub use state::{Deferred, LocalFallback};

/// How long the shutdown waits for multi-slot requests, refunds and debits.
pub const FINISH_TIMEOUT: Duration = Duration::from_secs(1);

/// Interval at which the shutdown checks whether all hits are debited.
const FINISH_INTERVAL: Duration = Duration::from_millis(10);

/// The most multi-slot requests that are being settled. Failure policies decide further ones.
const MULTI_SLOT_MAX: usize = 16_384;

/// The outermost layer. It is not a [`Store`], because it returns decisions and never a [`StoreError`].
#[derive(Debug)]
pub struct FailurePolicy<S>(Arc<PolicyState<S>>);

impl<S: Store> FailurePolicy<S> {
    /// Wraps `inner`. Without a local fallback, `on_failure: local` denies.
    pub fn new(inner: S, local: Option<LocalFallback>) -> Self {
        Self(Arc::new(PolicyState {
            inner: Arc::new(inner),
            fallback_sync: local.as_ref().and_then(|local| FallbackSync::new(local.counters_max)),
            local,
            unanswered: AtomicU64::new(0),
            requests_unanswered: AtomicU64::new(0),
            refund_tasks: Arc::default(),
            multi_slot_permits: Arc::new(Semaphore::new(MULTI_SLOT_MAX)),
            multi_slot_abandoned: AtomicU64::new(0),
        }))
    }

    /// The wrapped store.
    pub fn inner(&self) -> &S {
        &self.0.inner
    }

    /// The local fallback.
    pub fn local(&self) -> Option<&LocalFallback> {
        self.0.local.as_ref()
    }

    /// Checks so far that the wrapped store has not answered.
    pub fn checks_unanswered(&self) -> u64 {
        self.0.unanswered.load(Ordering::Relaxed)
    }

    /// Groups so far with at least one check that the wrapped store has not answered.
    pub fn requests_unanswered(&self) -> u64 {
        self.0.requests_unanswered.load(Ordering::Relaxed)
    }

    /// Checks so far that could not be refunded. Their charges stay until they expire.
    pub fn refunds_failed(&self) -> u64 {
        self.0.refund_tasks.failed()
    }

    /// Hits so far that could not be refunded, without those that the wrapped store counts as unknown.
    pub fn hits_not_refunded(&self) -> u64 {
        self.0.refund_tasks.hits_not_refunded()
    }

    /// Requests that are being refunded, or whose late answers are awaited.
    pub fn refunds_pending(&self) -> usize {
        self.0.refund_tasks.pending()
    }

    /// Multi-slot requests that are being settled.
    pub fn multi_slot_in_progress(&self) -> usize {
        MULTI_SLOT_MAX - self.0.multi_slot_permits.available_permits()
    }

    /// Multi-slot requests so far that were settled after their callers had disconnected.
    pub fn multi_slot_abandoned(&self) -> u64 {
        self.0.multi_slot_abandoned.load(Ordering::Relaxed)
    }

    /// Statistics of the local fallback.
    pub fn fallback_stats(&self) -> FallbackStats {
        self.0.fallback_sync.as_ref().map(FallbackSync::stats).unwrap_or_default()
    }

    /// Whether no counter is listed for debits. A counter is listed while it has hits to be debited, and for some time
    /// after the debit, in which its checks must also pass the local share.
    pub fn is_debit_list_empty(&self) -> bool {
        self.0.fallback_sync.as_ref().is_none_or(FallbackSync::is_debit_list_empty)
    }

    /// Suspends debits of counters that are about to be reset, until [`forget`](Self::forget) or
    /// [`resume_debits`](Self::resume_debits). Waits for the debits in progress, for a bounded time.
    pub async fn suspend_debits(&self, keys: &[CounterKey]) {
        if let Some(fallback_sync) = &self.0.fallback_sync {
            fallback_sync.suspend_debits(keys).await;
        }
    }

    /// Resumes debits of counters that were not reset.
    pub fn resume_debits(&self, keys: &[CounterKey]) {
        if let Some(fallback_sync) = &self.0.fallback_sync {
            fallback_sync.resume_debits(keys);
        }
    }

    /// Removes the last reports and the hits to be debited of counters that were reset.
    pub fn forget(&self, keys: &[CounterKey]) {
        if let Some(fallback_sync) = &self.0.fallback_sync {
            keys.iter().for_each(|key| fallback_sync.forget(key));
        }
    }

    /// Removes the hits to be debited of a tenant that was reset, and the last reports of all counters.
    pub fn forget_tenant(&self, tenant: &TenantKeys) {
        if let Some(fallback_sync) = &self.0.fallback_sync {
            fallback_sync.forget_tenant(tenant);
        }
    }

    /// Waits for multi-slot requests, refunds and debits, at most [`FINISH_TIMEOUT`].
    pub async fn finish(&self) {
        let permits = |max| u32::try_from(max).unwrap_or(u32::MAX);
        let finished = async {
            // First, because multi-slot requests may start refunds.
            let _done = self.0.multi_slot_permits.acquire_many(permits(MULTI_SLOT_MAX)).await;
            self.0.refund_tasks.finished().await;
            while self
                .0
                .fallback_sync
                .as_ref()
                .is_some_and(|fallback_sync| fallback_sync.undebited() > 0)
            {
                tokio::time::sleep(FINISH_INTERVAL).await;
            }
        };
        let _late = tokio::time::timeout(FINISH_TIMEOUT, finished).await;
    }

    /// Decides every check of the group, by the deadline.
    ///
    /// # Errors
    /// The store did not answer a check whose rule has `on_failure: defer`.
    pub async fn decide(
        &self,
        group: Group,
        deadline: Option<Instant>,
    ) -> Result<Decisions, Deferred> {
        if group.is_empty() {
            return Ok(Decisions::new());
        }
        if group.len() > 1
            && !self.0.inner.settles_atomically(&group)
            && DefectFix::SettleAfterDisconnect.is_active()
        {
            // Boxed, because it is rare and would enlarge the future of every request.
            return Box::pin(self.decide_multi_slot(group, deadline)).await;
        }
        self.0.decide(group, deadline).await
    }

    /// Decides a multi-slot request in a task of its own: if one slot refuses, the charges of the others are refunded
    /// even if the caller disconnects.
    async fn decide_multi_slot(
        &self,
        group: Group,
        deadline: Option<Instant>,
    ) -> Result<Decisions, Deferred> {
        let error_for_all = |error| group.iter().map(|_| Err(error)).collect();
        let Ok(permit) = Arc::clone(&self.0.multi_slot_permits).try_acquire_owned() else {
            return self
                .0
                .complete_decisions(&group, &error_for_all(StoreError::Unavailable))
                .await;
        };
        let (state, checks) = (Arc::clone(&self.0), Arc::clone(&group));
        let (sender, decided) = oneshot::channel();
        tokio::spawn(async move {
            let decided = state.decide(checks, deadline).await;
            if sender.send(decided).is_err() {
                state.multi_slot_abandoned.fetch_add(1, Ordering::Relaxed);
            }
            drop(permit);
        });
        match decided.await {
            Ok(decided) => decided,
            Err(_panicked) => {
                self.0.complete_decisions(&group, &error_for_all(StoreError::OutcomeUnknown)).await
            }
        }
    }
}
