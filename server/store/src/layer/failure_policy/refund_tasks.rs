//! Tasks that refund charges in the wrapped store. No request waits for them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use sluicegate_core::{Batch, Check, Store, StoreError, store::Group};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{backoff, clock};

/// How long a refund is retried.
pub const REFUND_TIMEOUT: Duration = Duration::from_secs(5);

/// The most requests that are being refunded.
const REFUND_TASKS_MAX: usize = 4096;

/// The most requests whose late answers are awaited, to refund what they charged.
const LATE_ANSWERS_MAX: usize = 16_384;

/// The shortest and the longest wait between attempts.
const REFUND_RETRY_WAIT_MIN: Duration = Duration::from_millis(50);
const REFUND_RETRY_WAIT_MAX: Duration = Duration::from_secs(1);

/// The refunds in progress, and counts of failed ones.
#[derive(Debug)]
pub(super) struct RefundTasks {
    refund_permits: Arc<Semaphore>,
    late_permits: Arc<Semaphore>,
    failed: AtomicU64,
    hits_not_refunded: AtomicU64,
}

impl Default for RefundTasks {
    fn default() -> Self {
        let refund_permits = Arc::new(Semaphore::new(REFUND_TASKS_MAX));
        let late_permits = Arc::new(Semaphore::new(LATE_ANSWERS_MAX));
        Self {
            refund_permits,
            late_permits,
            failed: AtomicU64::new(0),
            hits_not_refunded: AtomicU64::new(0),
        }
    }
}

impl RefundTasks {
    /// Checks so far that could not be refunded.
    pub(super) fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Hits so far that could not be refunded, without those that the wrapped store counts as unknown.
    pub(super) fn hits_not_refunded(&self) -> u64 {
        self.hits_not_refunded.load(Ordering::Relaxed)
    }

    /// Requests that are being refunded, or whose late answers are awaited.
    pub(super) fn pending(&self) -> usize {
        let late = LATE_ANSWERS_MAX - self.late_permits.available_permits();
        REFUND_TASKS_MAX - self.refund_permits.available_permits() + late
    }

    /// Waits until no refund is pending.
    pub(super) async fn finished(&self) {
        let permits = |max| u32::try_from(max).unwrap_or(u32::MAX);
        // First, because late answers may start refunds.
        let _late = self.late_permits.acquire_many(permits(LATE_ANSWERS_MAX)).await;
        let _all = self.refund_permits.acquire_many(permits(REFUND_TASKS_MAX)).await;
    }

    /// A permit to await the late answers of one request; `None` beyond [`LATE_ANSWERS_MAX`].
    pub(super) fn acquire_late_permit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.late_permits).try_acquire_owned().ok()
    }

    /// Counts refunds that failed.
    pub(super) fn note_failed<'c>(&self, refunds: impl IntoIterator<Item = &'c Check>) {
        for check in refunds {
            self.failed.fetch_add(1, Ordering::Relaxed);
            self.hits_not_refunded.fetch_add(check.charge.hits(), Ordering::Relaxed);
        }
    }

    /// Starts a task that sends the refunds of one request.
    pub(super) fn start<S: Store>(self: &Arc<Self>, inner: Arc<S>, refunds: Vec<Check>) {
        let Ok(permit) = Arc::clone(&self.refund_permits).try_acquire_owned() else {
            return self.note_failed(&refunds);
        };
        let this = Arc::clone(self);
        tokio::spawn(async move {
            this.run(&*inner, refunds).await;
            drop(permit);
        });
    }

    /// As [`start`](Self::start), for refunds that callers requested and the store did not run.
    pub(super) fn start_retries<S: Store>(self: &Arc<Self>, inner: Arc<S>, refunds: Vec<Check>) {
        // Half of the tasks are reserved, so that retries to an unavailable server do not displace refunds to the
        // others.
        if self.refund_permits.available_permits() <= REFUND_TASKS_MAX / 2 {
            return self.note_failed(&refunds);
        }
        self.start(inner, refunds);
    }

    /// Sends refunds, and retries those that the store did not run.
    async fn run<S: Store>(&self, inner: &S, refunds: Vec<Check>) {
        let deadline = clock::now() + REFUND_TIMEOUT;
        let mut waits = backoff::waits(REFUND_RETRY_WAIT_MIN, REFUND_RETRY_WAIT_MAX);
        let mut left = refunds;
        loop {
            let group: Group = left.into();
            let mut answers = inner.decide(Batch::single(Arc::clone(&group), Some(deadline))).await;
            if let Some(late) = inner.late_answers(&group) {
                let late = late.await;
                let unknown = answers.iter_mut().zip(late);
                let unknown = unknown.filter(|(it, _)| **it == Err(StoreError::OutcomeUnknown));
                unknown.for_each(|(answer, late)| *answer = late);
            }
            // A refund that may have run is not retried. The store counts its hits as unknown.
            let unknown =
                answers.iter().filter(|it| **it == Err(StoreError::OutcomeUnknown)).count();
            self.failed.fetch_add(u64::try_from(unknown).unwrap_or(0), Ordering::Relaxed);
            let answered = group.iter().zip(&answers);
            let not_run =
                answered.filter(|(_, it)| it.is_err_and(|it| it != StoreError::OutcomeUnknown));
            left = not_run.map(|(check, _)| check.clone()).collect();
            if left.is_empty() {
                return;
            }
            let wait = waits.next().unwrap_or(REFUND_RETRY_WAIT_MAX);
            if clock::now() + wait >= deadline {
                return self.note_failed(&left);
            }
            tokio::time::sleep(wait).await;
        }
    }
}
