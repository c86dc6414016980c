//! The list of counters that were decided locally, and their hits to be debited in the store.
//!
//! A counter is listed from its first local decision until its hits are debited in the store. After an outage it stays
//! listed for [`LOCAL_SHARE_AFTER_OUTAGE`]: other replicas may not have debited their hits yet, so the store may allow
//! too much, and checks must also pass this replica's share of the limit.

use std::{
    num::NonZeroU32,
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use foldhash::fast::RandomState;
use indexmap::IndexMap;
use parking_lot::Mutex;
use sluicegate_core::{Check, CounterKey, Limit, key::TenantKeys};

/// The most counters that are debited concurrently.
pub(super) const DEBITS_MAX: usize = 128;

/// The most listed counters that one search for due debits examines, in total and under one lock.
const EXAMINED_MAX: usize = 8192;
const EXAMINED_UNDER_LOCK_MAX: usize = 256;

/// The most listed counters that are examined to make room for another one.
const EVICTION_CANDIDATES: usize = 16;

/// The most shards: more than cores, so that threads rarely contend.
const SHARDS_MAX: usize = 64;

/// Minimum number of counters of a shard: with fewer, one shard could be full long before the others.
const SHARD_COUNTERS_MIN: usize = 1024;

/// An outage is assumed if a counter was decided locally for this long, or if a probe failed within this time.
/// Otherwise only a few calls were slow.
const OUTAGE_MIN: Duration = Duration::from_millis(250);

/// How long checks must also pass the local share after an outage. Within this time other replicas reconnect, after at
/// most `RECONNECT_WAIT_MAX` and `--redis-connect-timeout`, and debit their hits.
const LOCAL_SHARE_AFTER_OUTAGE: Duration = Duration::from_secs(2);

/// A bounded list of counters with hits to be debited, by key.
#[derive(Debug)]
pub(super) struct PendingDebits {
    shards: Box<[Shard]>,
    /// Counters in all shards, to be read without a lock.
    len: AtomicUsize,
    /// Whether a task debits them.
    has_task: AtomicBool,
    /// The shard in which the search for due debits continues.
    next_shard: AtomicUsize,
    /// The number of the next pending debit.
    next_number: AtomicU64,
    /// When the store last did not answer for a counter.
    unanswered_at: Mutex<Option<Instant>>,
    undebited: AtomicU64,
    debited: AtomicU64,
    unknown: AtomicU64,
    dropped: AtomicU64,
}

#[derive(Debug)]
struct Shard {
    list: Mutex<DebitList>,
    /// Counters in the list, to be read without the lock.
    len: AtomicUsize,
    counters_max: usize,
}

#[derive(Debug, Default)]
struct DebitList {
    debits: IndexMap<CounterKey, PendingDebit, RandomState>,
    /// Position at which the search for due debits continues.
    next: usize,
}

/// The hits to be debited of one counter.
#[derive(Debug)]
struct PendingDebit {
    /// Distinguishes hits from before a reset of the counter from those after it.
    number: u64,
    limit: Limit,
    /// The number of replicas that share the limit.
    replicas: NonZeroU32,
    hits: u64,
    /// When the hits would have expired in the store.
    expires_at: Instant,
    /// When the counter was first decided locally.
    first_decided_at: Instant,
    /// When the store's answers suffice again; `None` until the store answers.
    store_suffices_at: Option<Instant>,
    /// Whether a debit is in progress: hits were taken, and its outcome is not recorded.
    is_in_progress: bool,
    /// Until when debits are suspended, because the counter is being reset.
    suspended_until: Option<Instant>,
}

impl PendingDebit {
    fn is_suspended(&self, now: Instant) -> bool {
        self.suspended_until.is_some_and(|until| now < until)
    }
}

/// A debit that can be sent.
#[derive(Clone, Debug)]
pub(super) struct DueDebit {
    pub(super) key: CounterKey,
    pub(super) limit: Limit,
    /// The number of replicas that share the limit.
    pub(super) replicas: NonZeroU32,
    number: u64,
}

impl PendingDebits {
    /// Lists at most `counters_max` counters.
    pub(super) fn new(counters_max: usize) -> Self {
        let shards = (counters_max / SHARD_COUNTERS_MIN).clamp(1, SHARDS_MAX);
        let shard = |number| Shard {
            list: Mutex::default(),
            len: AtomicUsize::new(0),
            counters_max: (counters_max + number) / shards,
        };
        Self {
            shards: (0..shards).map(shard).collect(),
            len: AtomicUsize::new(0),
            has_task: AtomicBool::new(false),
            next_shard: AtomicUsize::new(0),
            next_number: AtomicU64::new(0),
            unanswered_at: Mutex::default(),
            undebited: AtomicU64::new(0),
            debited: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        }
    }

    /// Whether no counter is listed.
    pub(super) fn is_empty(&self) -> bool {
        self.len.load(Ordering::Relaxed) == 0
    }

    /// Hits to be debited.
    pub(super) fn undebited(&self) -> u64 {
        self.undebited.load(Ordering::Relaxed)
    }

    /// Hits debited so far.
    pub(super) fn debited(&self) -> u64 {
        self.debited.load(Ordering::Relaxed)
    }

    /// Hits so far of debits that the store did not answer: they may be charged or not.
    pub(super) fn unknown(&self) -> u64 {
        self.unknown.load(Ordering::Relaxed)
    }

    /// Hits so far that are not debited, because the list had no room for their counters.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn shard(&self, key: &CounterKey) -> Option<&Shard> {
        // From bits of the hash that the shard's table does not use.
        let part = key.hash64() >> 25 & u64::from(u32::MAX);
        let number = (part * self.shards.len() as u64) >> 32;
        self.shards.get(usize::try_from(number).ok()?)
    }

    /// Calls `change` with the pending debit of a counter, if it is listed.
    fn with<T>(&self, key: &CounterKey, change: impl FnOnce(&mut PendingDebit) -> T) -> Option<T> {
        let shard = self.shard(key)?;
        if shard.len.load(Ordering::Relaxed) == 0 {
            return None;
        }
        shard.list.lock().debits.get_mut(key).map(change)
    }

    /// As [`with`](Self::with), unless the counter was reset after the debit was found due.
    fn with_due<T>(
        &self,
        due: &DueDebit,
        change: impl FnOnce(&mut PendingDebit) -> T,
    ) -> Option<T> {
        self.with(&due.key, |debit| (debit.number == due.number).then(|| change(debit))).flatten()
    }

    /// Whether a counter is listed, so that the store's answers do not suffice.
    pub(super) fn contains(&self, key: &CounterKey) -> bool {
        !self.is_empty() && self.with(key, |_| ()).is_some()
    }

    /// The number of replicas that share the limit of a listed counter; `None` once its hits have expired.
    pub(super) fn replicas(&self, key: &CounterKey, now: Instant) -> Option<NonZeroU32> {
        self.with(key, |debit| (now < debit.expires_at).then_some(debit.replicas)).flatten()
    }

    /// Lists a counter that was decided locally under a limit that `replicas` share. `hits` were charged, maybe 0, and
    /// expire at `expires_at`. Returns whether the caller must start a task that debits the listed counters.
    #[must_use]
    pub(super) fn add(
        &self,
        (check, replicas): (&Check, NonZeroU32),
        hits: u64,
        now: Instant,
        expires_at: Instant,
    ) -> bool {
        let Some(shard) = self.shard(&check.key) else { return false };
        let mut list = shard.list.lock();
        if list.debits.len() >= shard.counters_max && !list.debits.contains_key(&check.key) {
            self.make_room(&mut list, now);
        }
        if let Some(debit) = list.debits.get_mut(&check.key) {
            if debit.expires_at <= now {
                self.subtract_undebited(std::mem::take(&mut debit.hits), 0);
                debit.replicas = replicas;
            }
            debit.limit = check.limit;
            debit.hits = debit.hits.saturating_add(hits);
            debit.expires_at = expires_at;
            debit.store_suffices_at = None;
        } else if list.debits.len() < shard.counters_max {
            let debit = PendingDebit {
                number: self.next_number.fetch_add(1, Ordering::Relaxed),
                limit: check.limit,
                replicas,
                hits,
                expires_at,
                first_decided_at: now,
                store_suffices_at: None,
                is_in_progress: false,
                suspended_until: None,
            };
            list.debits.insert(check.key.clone(), debit);
        } else {
            self.dropped.fetch_add(hits, Ordering::Relaxed);
            return false;
        }
        self.undebited.fetch_add(hits, Ordering::Relaxed);
        self.update_len(shard, &list);
        !self.has_task.swap(true, Ordering::SeqCst)
    }

    /// Updates the number of counters of a shard, whose lock is held.
    fn update_len(&self, shard: &Shard, list: &DebitList) {
        let len = list.debits.len();
        let before = shard.len.swap(len, Ordering::Relaxed);
        if len >= before {
            self.len.fetch_add(len - before, Ordering::SeqCst);
        } else {
            self.len.fetch_sub(before - len, Ordering::SeqCst);
        }
    }

    /// Removes one counter whose hits have expired, if the next [`EVICTION_CANDIDATES`] have one.
    fn make_room(&self, list: &mut DebitList, now: Instant) {
        for _ in 0..EVICTION_CANDIDATES {
            let at = list.next;
            if at >= list.debits.len() {
                list.next = 0;
                return;
            }
            if self.remove_expired(list, at, now) {
                return;
            }
            list.next += 1;
        }
    }

    /// Removes the counter at a position of the list if its hits have expired. Returns whether they have.
    fn remove_expired(&self, list: &mut DebitList, at: usize, now: Instant) -> bool {
        let expired = list.debits.get_index(at).filter(|(_, debit)| debit.expires_at <= now);
        let Some((_, debit)) = expired else { return false };
        self.subtract_undebited(debit.hits, 0);
        list.debits.swap_remove_index(at);
        true
    }

    /// Whether the task that debits must continue. If not, the next listed counter starts another task.
    pub(super) fn continue_task(&self) -> bool {
        let has_counters = || self.len.load(Ordering::SeqCst) > 0;
        if has_counters() {
            return true;
        }
        self.has_task.store(false, Ordering::SeqCst);
        // A counter may have been listed just before, without starting a task.
        has_counters() && !self.has_task.swap(true, Ordering::SeqCst)
    }

    /// The next due debits: of counters that are available in the store again and were not debited since their last
    /// local decision. Each call continues after the last one. Removes counters for which the store suffices again, or
    /// whose hits have expired.
    pub(super) fn due(
        &self,
        now: Instant,
        is_available: impl Fn(&CounterKey) -> bool,
    ) -> Vec<DueDebit> {
        let (mut due, mut examined) = (Vec::new(), 0);
        let examined_max = self.len.load(Ordering::Relaxed).min(EXAMINED_MAX);
        for _ in 0..self.shards.len() + EXAMINED_MAX / EXAMINED_UNDER_LOCK_MAX {
            let number = self.next_shard.load(Ordering::Relaxed) % self.shards.len().max(1);
            let Some(shard) = self.shards.get(number) else { break };
            let mut list = shard.list.lock();
            let locked_until = examined_max.min(examined + EXAMINED_UNDER_LOCK_MAX);
            while examined < locked_until && due.len() < DEBITS_MAX {
                if list.next >= list.debits.len() {
                    list.next = 0;
                    self.next_shard.store(number + 1, Ordering::Relaxed);
                    break;
                }
                examined += 1;
                due.extend(self.examine_next(&mut list, now, &is_available));
            }
            self.update_len(shard, &list);
            if examined >= examined_max || due.len() >= DEBITS_MAX {
                break;
            }
        }
        due
    }

    /// Examines the next counter of a list, which must have one. Returns it if it is due, and removes it if the
    /// store suffices again or its hits have expired.
    fn examine_next(
        &self,
        list: &mut DebitList,
        now: Instant,
        is_available: impl Fn(&CounterKey) -> bool,
    ) -> Option<DueDebit> {
        let at = list.next;
        if self.remove_expired(list, at, now) {
            return None;
        }
        let (key, debit) = list.debits.get_index(at)?;
        if debit.store_suffices_at.is_some_and(|store_suffices_at| store_suffices_at <= now)
            && !debit.is_in_progress
        {
            list.debits.swap_remove_index(at);
            return None;
        }
        list.next += 1;
        if debit.store_suffices_at.is_some() || debit.is_in_progress || debit.is_suspended(now) {
            return None;
        }
        if !is_available(key) {
            self.note_unanswered(now);
            return None;
        }
        let PendingDebit { number, limit, replicas, .. } = *debit;
        Some(DueDebit { key: key.clone(), limit, replicas, number })
    }

    /// Records that the store did not answer for a counter.
    pub(super) fn note_unanswered(&self, now: Instant) {
        *self.unanswered_at.lock() = Some(now);
    }

    /// Takes all hits to be debited of a counter that the store answers for again. The caller must record the outcome
    /// with [`complete`](Self::complete), [`complete_unknown`](Self::complete_unknown) or [`put_back`](Self::put_back).
    pub(super) fn take(&self, due: &DueDebit, now: Instant) -> u64 {
        let unanswered_at = *self.unanswered_at.lock();
        let taken = self.with_due(due, |debit| {
            if debit.is_suspended(now) || debit.is_in_progress {
                return 0;
            }
            let was_outage = now.saturating_duration_since(debit.first_decided_at) >= OUTAGE_MIN
                || unanswered_at.is_some_and(|at| now.saturating_duration_since(at) < OUTAGE_MIN);
            debit.store_suffices_at =
                Some(if was_outage { now + LOCAL_SHARE_AFTER_OUTAGE } else { now });
            let hits = std::mem::take(&mut debit.hits);
            if debit.expires_at > now {
                debit.is_in_progress = hits > 0;
                return hits;
            }
            self.subtract_undebited(hits, 0);
            0
        });
        taken.unwrap_or(0)
    }

    /// Records the outcome of a debit: the store charged `debited` of the hits, and the others have expired.
    pub(super) fn complete(&self, due: &DueDebit, taken: u64, debited: u64) {
        self.with_due(due, |debit| debit.is_in_progress = false);
        self.subtract_undebited(taken, debited);
    }

    /// Records the outcome of a debit: `sent` of the hits may be charged or not, and the others have expired.
    pub(super) fn complete_unknown(&self, due: &DueDebit, taken: u64, sent: u64) {
        self.complete(due, taken, 0);
        self.unknown.fetch_add(sent, Ordering::Relaxed);
    }

    /// Lists taken hits again, which were not charged.
    pub(super) fn put_back(&self, due: &DueDebit, taken: u64) {
        let listed = self.with_due(due, |debit| {
            debit.hits = debit.hits.saturating_add(taken);
            (debit.store_suffices_at, debit.is_in_progress) = (None, false);
        });
        if listed.is_none() {
            // The counter was reset, or its hits have expired.
            self.subtract_undebited(taken, 0);
        }
    }

    /// Subtracts refunded hits from the hits to be debited of a counter. Returns the number subtracted.
    pub(super) fn refund(&self, key: &CounterKey, hits: u64, now: Instant) -> u64 {
        let refunded = self.with(key, |debit| {
            let refunded = if now < debit.expires_at { hits.min(debit.hits) } else { 0 };
            debit.hits -= refunded;
            self.subtract_undebited(refunded, 0);
            refunded
        });
        refunded.unwrap_or(0)
    }

    /// Subtracts hits from those to be debited, and counts how many of them were debited.
    fn subtract_undebited(&self, taken: u64, debited: u64) {
        self.undebited.fetch_sub(taken, Ordering::Relaxed);
        self.debited.fetch_add(debited, Ordering::Relaxed);
    }

    /// Suspends the debits of these counters until `until`, because they are being reset; with `None` resumes them.
    pub(super) fn suspend(&self, keys: &[CounterKey], until: Option<Instant>) {
        for key in keys {
            self.with(key, |debit| debit.suspended_until = until);
        }
    }

    /// Whether a debit of one of these counters is in progress.
    pub(super) fn any_in_progress(&self, keys: &[CounterKey]) -> bool {
        keys.iter().any(|key| self.with(key, |debit| debit.is_in_progress) == Some(true))
    }

    /// Removes a counter that was reset.
    pub(super) fn forget(&self, key: &CounterKey) {
        let Some(shard) = self.shard(key) else { return };
        let mut list = shard.list.lock();
        if let Some(debit) = list.debits.swap_remove(key) {
            self.subtract_undebited(debit.hits, 0);
            self.update_len(shard, &list);
        }
    }

    /// Removes the counters of a tenant.
    pub(super) fn forget_tenant(&self, tenant: &TenantKeys) {
        for shard in &self.shards {
            let mut list = shard.list.lock();
            list.debits.retain(|key, debit| {
                let keep = !tenant.contains(key.as_bytes());
                if !keep {
                    self.subtract_undebited(debit.hits, 0);
                }
                keep
            });
            self.update_len(shard, &list);
        }
    }
}

#[cfg(test)]
mod tests;
