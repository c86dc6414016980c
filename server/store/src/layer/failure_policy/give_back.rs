//! Gives back to the store inside what it has charged in vain. No request waits for it.

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

/// The most requests that are being given back at once.
const GIVE_BACKS_MAX: usize = 4096;

/// The most requests whose late answers are awaited, to give back what they show to be charged.
const LATE_ANSWERS_MAX: usize = 16_384;

/// The shortest and the longest wait between tries.
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(1);

/// The takes that are being given back.
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
    /// Takes that were not given back.
    pub(super) fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// The hits of takes that were not given back, without those of which the store counts itself that it does not know.
    pub(super) fn hits_not_returned(&self) -> u64 {
        self.hits_not_returned.load(Ordering::Relaxed)
    }

    /// Requests that are being given back, or whose late answers are awaited.
    pub(super) fn running(&self) -> usize {
        let late = LATE_ANSWERS_MAX - self.late.available_permits();
        GIVE_BACKS_MAX - self.permits.available_permits() + late
    }

    /// Waits until none is being given back.
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

    /// Counts takes that are not given back.
    pub(super) fn note_failed<'c>(&self, takes: impl IntoIterator<Item = &'c Check>) {
        for check in takes {
            self.failed.fetch_add(1, Ordering::Relaxed);
            self.hits_not_returned.fetch_add(check.take.hits(), Ordering::Relaxed);
        }
    }

    /// Begins to give back.
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

    /// Gives back. What the store did not run is tried again.
    async fn run<S: Store>(&self, inner: &S, takes: Vec<Check>) {
        let deadline = clock::now() + GIVE_BACK_TIMEOUT;
        let mut waits = backoff::waits(RETRY_MIN, RETRY_MAX);
        let mut left = takes;
        loop {
            let group: Group = left.into();
            let answers = inner.decide(Batch::of(Arc::clone(&group), Some(deadline))).await;
            // What may have been run is not tried again. The store counts its hits, if it is not told late.
            drop(inner.late(&group));
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
