//! Refunds charges in vain to the inner store. No request waits for it.

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

/// How long giving back is tried.
pub const GIVE_BACK_TIMEOUT: Duration = Duration::from_secs(5);

/// The most requests that are being refunded at once.
const GIVE_BACKS_MAX: usize = 4096;

/// The most requests whose late answers are awaited, to refund charges that they show.
const LATE_ANSWERS_MAX: usize = 16_384;

/// The shortest and the longest wait between tries.
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(1);

/// Refunds in progress.
#[derive(Debug)]
pub(super) struct GiveBacks {
    permits: Arc<Semaphore>,
    late: Arc<Semaphore>,
    failed: AtomicU64,
    hits_not_returned: AtomicU64,
}

impl Default for GiveBacks {
    fn default() -> Self {
        let permits = Arc::new(Semaphore::new(GIVE_BACKS_MAX));
        let late = Arc::new(Semaphore::new(LATE_ANSWERS_MAX));
        Self { permits, late, failed: AtomicU64::new(0), hits_not_returned: AtomicU64::new(0) }
    }
}

impl GiveBacks {
    /// Charges that were not refunded.
    pub(super) fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Hits of charges that were not refunded, without those that the store itself counts as unknown.
    pub(super) fn hits_not_returned(&self) -> u64 {
        self.hits_not_returned.load(Ordering::Relaxed)
    }

    /// Requests that are being refunded, or whose late answers are awaited.
    pub(super) fn running(&self) -> usize {
        let late = LATE_ANSWERS_MAX - self.late.available_permits();
        GIVE_BACKS_MAX - self.permits.available_permits() + late
    }

    /// Waits until no refund is in progress.
    pub(super) async fn finished(&self) {
        let all = |max| u32::try_from(max).unwrap_or(u32::MAX);
        // Late answers may begin give-backs.
        let _late = self.late.acquire_many(all(LATE_ANSWERS_MAX)).await;
        let _all = self.permits.acquire_many(all(GIVE_BACKS_MAX)).await;
    }

    /// The right to await late answers for one more request; `None` if there are too many.
    pub(super) fn late(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.late).try_acquire_owned().ok()
    }

    /// Counts charges that are not refunded.
    pub(super) fn note_failed<'c>(&self, takes: impl IntoIterator<Item = &'c Check>) {
        for check in takes {
            self.failed.fetch_add(1, Ordering::Relaxed);
            self.hits_not_returned.fetch_add(check.charge.hits(), Ordering::Relaxed);
        }
    }

    /// Starts a refund.
    pub(super) fn start<S: Store>(self: &Arc<Self>, inner: Arc<S>, takes: Vec<Check>) {
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
            return self.note_failed(&takes);
        };
        let this = Arc::clone(self);
        tokio::spawn(async move {
            this.run(&*inner, takes).await;
            drop(permit);
        });
    }

    /// Starts to send refunds of callers again that the store did not run.
    pub(super) fn start_refunds<S: Store>(self: &Arc<Self>, inner: Arc<S>, refunds: Vec<Check>) {
        // Those of a server that is away leave places to give-backs on others.
        if self.permits.available_permits() <= GIVE_BACKS_MAX / 2 {
            return self.note_failed(&refunds);
        }
        self.start(inner, refunds);
    }

    /// Refunds. Tries again what the store did not run.
    async fn run<S: Store>(&self, inner: &S, takes: Vec<Check>) {
        let deadline = clock::now() + GIVE_BACK_TIMEOUT;
        let mut waits = backoff::waits(RETRY_MIN, RETRY_MAX);
        let mut left = takes;
        loop {
            let group: Group = left.into();
            let mut answers = inner.decide(Batch::single(Arc::clone(&group), Some(deadline))).await;
            if let Some(late) = inner.late_answers(&group) {
                let late = late.await;
                let unheard = answers.iter_mut().zip(late);
                let unheard = unheard.filter(|(it, _)| **it == Err(StoreError::Unknown));
                unheard.for_each(|(answer, late)| *answer = late);
            }
            // What may have been run is not tried again. The store counts its hits.
            let unknown = answers.iter().filter(|it| **it == Err(StoreError::Unknown)).count();
            self.failed.fetch_add(u64::try_from(unknown).unwrap_or(0), Ordering::Relaxed);
            let asked = group.iter().zip(&answers);
            let not_run = asked.filter(|(_, it)| it.is_err_and(|it| it != StoreError::Unknown));
            left = not_run.map(|(check, _)| check.clone()).collect();
            if left.is_empty() {
                return;
            }
            let wait = waits.next().unwrap_or(RETRY_MAX);
            if clock::now() + wait >= deadline {
                return self.note_failed(&left);
            }
            tokio::time::sleep(wait).await;
        }
    }
}
