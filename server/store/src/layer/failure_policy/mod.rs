//! Decides checks that a store did not answer, by each rule's failure policy, and refunds the charges of
//! requests that are refused or fail afterwards.

mod conclusion;
mod debit;
mod debts;
mod give_back;
mod known;
mod late;
mod ledger;
mod leftovers;
mod shared;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use sluicegate_core::{CounterKey, Store, StoreError, fixes::Fix, key::TenantKeys, store::Group};
use tokio::sync::{Semaphore, oneshot};

use ledger::Ledger;
use shared::Shared;

pub use conclusion::Decisions;
pub use give_back::GIVE_BACK_TIMEOUT;
pub use ledger::FallbackStats;
pub use shared::{Deferred, Local};

/// How long the end of the process waits until requests are settled and refunded.
pub const FINISH_TIMEOUT: Duration = Duration::from_secs(1);

/// How often the end of the process looks whether everything is debited.
const FINISH_INTERVAL: Duration = Duration::from_millis(10);

/// The most requests that are being settled in several parts at once. What comes beyond is decided by failure policies.
const SPLIT_MAX: usize = 16_384;

/// The outermost layer. It is no [`Store`], because it has no errors to hand on: its callers get
/// decisions.
#[derive(Debug)]
pub struct FailurePolicy<S>(Arc<Shared<S>>);

impl<S: Store> FailurePolicy<S> {
    /// Answers for `inner` where it cannot. Without a `local` store, the policy of that name denies.
    pub fn new(inner: S, local: Option<Local>) -> Self {
        Self(Arc::new(Shared {
            inner: Arc::new(inner),
            ledger: local.as_ref().and_then(|local| Ledger::new(local.known_max)),
            local,
            answered: AtomicU64::new(0),
            concerned: AtomicU64::new(0),
            give_backs: Arc::default(),
            split: Arc::new(Semaphore::new(SPLIT_MAX)),
            abandoned: AtomicU64::new(0),
        }))
    }

    /// The store inside.
    pub fn inner(&self) -> &S {
        &self.0.inner
    }

    /// The store that counts while the one inside cannot.
    pub fn local(&self) -> Option<&Local> {
        self.0.local.as_ref()
    }

    /// Checks that the store inside has not answered so far.
    pub fn answered(&self) -> u64 {
        self.0.answered.load(Ordering::Relaxed)
    }

    /// Groups of which the store inside has not answered every check so far.
    pub fn concerned(&self) -> u64 {
        self.0.concerned.load(Ordering::Relaxed)
    }

    /// Failed refunds so far. Each charge stays until it expires.
    pub fn give_backs_failed(&self) -> u64 {
        self.0.give_backs.failed()
    }

    /// Hits that are or may be charged in vain, and were not refunded so far.
    pub fn hits_not_returned(&self) -> u64 {
        self.0.give_backs.hits_not_returned()
    }

    /// Requests that are being refunded, or will be if a late answer shows a charge.
    pub fn give_backs(&self) -> usize {
        self.0.give_backs.running()
    }

    /// Requests of several parts that are being settled.
    pub fn split(&self) -> usize {
        SPLIT_MAX - self.0.split.available_permits()
    }

    /// Requests of several parts that were settled after their callers had left.
    pub fn abandoned(&self) -> u64 {
        self.0.abandoned.load(Ordering::Relaxed)
    }

    /// Numbers of the local fallback.
    pub fn fallback(&self) -> FallbackStats {
        self.0.ledger.as_ref().map(Ledger::stats).unwrap_or_default()
    }

    /// Whether the store's answers are sufficient for every counter: none has local hits that are to be debited, or
    /// were debited just now.
    pub fn is_settled(&self) -> bool {
        self.0.ledger.as_ref().is_none_or(Ledger::is_settled)
    }

    /// Keeps counters that are about to be reset from being debited, until they are forgotten or [released](Self::release).
    /// Waits for the debits in progress, for a moment at most.
    pub async fn hold(&self, keys: &[CounterKey]) {
        if let Some(ledger) = &self.0.ledger {
            ledger.hold(keys).await;
        }
    }

    /// Has counters debited again that were not reset.
    pub fn release(&self, keys: &[CounterKey]) {
        if let Some(ledger) = &self.0.ledger {
            ledger.release(keys);
        }
    }

    /// Forgets reports and hits to debit of counters, because they were reset.
    pub fn forget(&self, keys: &[CounterKey]) {
        if let Some(ledger) = &self.0.ledger {
            keys.iter().for_each(|key| ledger.forget(key));
        }
    }

    /// Forgets the counters of an owner, because they were reset, and what is known of all others.
    pub fn forget_all(&self, owner: &TenantKeys) {
        if let Some(ledger) = &self.0.ledger {
            ledger.forget_all(owner);
        }
    }

    /// Waits until everything is settled, debited and refunded.
    pub async fn finish(&self) {
        let all = |max| u32::try_from(max).unwrap_or(u32::MAX);
        let finished = async {
            // Requests that are being settled may need refunds.
            let _settled = self.0.split.acquire_many(all(SPLIT_MAX)).await;
            self.0.give_backs.finished().await;
            while self.0.ledger.as_ref().is_some_and(|ledger| ledger.owed() > 0) {
                tokio::time::sleep(FINISH_INTERVAL).await;
            }
        };
        let _late = tokio::time::timeout(FINISH_TIMEOUT, finished).await;
    }

    /// Decides every check of the group, by the deadline.
    ///
    /// # Errors
    /// The store could not answer, and a rule leaves it to the caller what that means.
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
            && Fix::SettleAfterDisconnect.is_active()
        {
            // Rare, so that what it keeps is not part of every request's future.
            return Box::pin(self.decide_split(group, deadline)).await;
        }
        self.0.decide(group, deadline).await
    }

    /// The same in its own task: if the caller leaves, charges of one part are still refunded if another refuses.
    async fn decide_split(
        &self,
        group: Group,
        deadline: Option<Instant>,
    ) -> Result<Decisions, Deferred> {
        let none = |error| group.iter().map(|_| Err(error)).collect();
        let Ok(permit) = Arc::clone(&self.0.split).try_acquire_owned() else {
            return self.0.conclude(&group, &none(StoreError::Unavailable)).await;
        };
        let (shared, checks) = (Arc::clone(&self.0), Arc::clone(&group));
        let (sender, decided) = oneshot::channel();
        tokio::spawn(async move {
            let decided = shared.decide(checks, deadline).await;
            if sender.send(decided).is_err() {
                shared.abandoned.fetch_add(1, Ordering::Relaxed);
            }
            drop(permit);
        });
        match decided.await {
            Ok(decided) => decided,
            Err(_panicked) => self.0.conclude(&group, &none(StoreError::Unknown)).await,
        }
    }
}
