//! Counters that this process decided by itself, and the hits to debit in the store for them.
//!
//! A counter is listed from its first local decision until the store has been debited. If the outage lasted, it stays
//! listed a little longer: other replicas may not have debited yet, so a check must pass both the store and this process's share.

use std::{
    num::NonZeroU32,
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use foldhash::fast::RandomState;
use indexmap::IndexMap;
use parking_lot::Mutex;
use sluicegate_core::{Check, CounterKey, Limit, key::TenantKeys};

/// The most counters that are debited together.
pub(super) const DEBITS_MAX: usize = 128;

/// The most listed counters that one search for those to debit looks at, and those of them under one lock.
const LOOKED_AT_MAX: usize = 8192;
const LOCKED_MAX: usize = 256;

/// The most counters that are looked at to make room for another one.
const EVICTED_FROM: usize = 16;

/// The most shards: more than cores, so that threads seldom wait for each other.
const SHARDS_MAX: usize = 64;

/// Fewer counters than this in a shard would make it a matter of chance which find room.
const SHARD_COUNTERS_MIN: usize = 1024;

/// An outage lasts at least so long, or some probe fails. Otherwise the counter met a few slow calls.
const OUTAGE_MIN: Duration = Duration::from_millis(250);

/// How long the store's answer is not sufficient after an outage. Within this time other replicas reconnect, after at most
/// `RETRY_MAX` and `--redis-connect-timeout`, and debit their hits.
const SETTLING: Duration = Duration::from_secs(2);

/// A bounded list of counters, by key.
#[derive(Debug)]
pub(super) struct Debts {
    shards: Box<[Shard]>,
    /// Counters in all shards, to be read without a lock.
    len: AtomicUsize,
    /// Whether a task debits them.
    is_settling: AtomicBool,
    /// The shard in which the search for counters to debit continues.
    next_shard: AtomicUsize,
    /// The number of the next debt.
    next_number: AtomicU64,
    /// When the store was last known not to answer for some counter.
    silent_at: Mutex<Option<Instant>>,
    owed: AtomicU64,
    debited: AtomicU64,
    unknown: AtomicU64,
    dropped: AtomicU64,
}

#[derive(Debug)]
struct Shard {
    listed: Mutex<Listed>,
    /// Counters in the list, to be read without the lock.
    len: AtomicUsize,
    counters_max: usize,
}

#[derive(Debug, Default)]
struct Listed {
    debts: IndexMap<CounterKey, Debt, RandomState>,
    /// Where the search for counters to debit continues.
    next: usize,
}

#[derive(Debug)]
struct Debt {
    /// Each debt has its own number, so that a debit of hits from before a reset is not taken for one of hits after it.
    number: u64,
    limit: Limit,
    /// The number of processes that the limit is divided by.
    replicas: NonZeroU32,
    hits: u64,
    /// From then on the hits would have expired in the store.
    expires_at: Instant,
    /// When it was first decided locally.
    since: Instant,
    /// When the store's answers are enough again; `None` until it answers.
    settled_at: Option<Instant>,
    /// Whether hits were taken from it that are not settled yet.
    is_sent: bool,
    /// Until then nothing is debited, because the counter is being reset.
    held_until: Option<Instant>,
}

impl Debt {
    fn is_held(&self, now: Instant) -> bool {
        self.held_until.is_some_and(|until| now < until)
    }
}

/// A counter to be debited.
#[derive(Clone, Debug)]
pub(super) struct Due {
    pub(super) key: CounterKey,
    pub(super) limit: Limit,
    /// The number of processes that the limit is divided by.
    pub(super) replicas: NonZeroU32,
    number: u64,
}

impl Debts {
    /// Lists at most `counters_max` counters.
    pub(super) fn new(counters_max: usize) -> Self {
        let shards = (counters_max / SHARD_COUNTERS_MIN).clamp(1, SHARDS_MAX);
        let shard = |number| Shard {
            listed: Mutex::default(),
            len: AtomicUsize::new(0),
            counters_max: (counters_max + number) / shards,
        };
        Self {
            shards: (0..shards).map(shard).collect(),
            len: AtomicUsize::new(0),
            is_settling: AtomicBool::new(false),
            next_shard: AtomicUsize::new(0),
            next_number: AtomicU64::new(0),
            silent_at: Mutex::default(),
            owed: AtomicU64::new(0),
            debited: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        }
    }

    /// Whether no counter is listed.
    pub(super) fn is_empty(&self) -> bool {
        self.len.load(Ordering::Relaxed) == 0
    }

    /// Hits that are to be debited.
    pub(super) fn owed(&self) -> u64 {
        self.owed.load(Ordering::Relaxed)
    }

    /// Hits debited so far.
    pub(super) fn debited(&self) -> u64 {
        self.debited.load(Ordering::Relaxed)
    }

    /// Hits so far of debits that the store did not answer.
    pub(super) fn unknown(&self) -> u64 {
        self.unknown.load(Ordering::Relaxed)
    }

    /// Hits so far of counters for which the list had no room.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn shard(&self, key: &CounterKey) -> Option<&Shard> {
        // From bits that do not place the counter inside its shard.
        let part = key.hash64() >> 25 & u64::from(u32::MAX);
        let number = (part * self.shards.len() as u64) >> 32;
        self.shards.get(usize::try_from(number).ok()?)
    }

    /// Lets `look` see and change the debt of a counter, if it is listed.
    fn with<T>(&self, key: &CounterKey, look: impl FnOnce(&mut Debt) -> T) -> Option<T> {
        let shard = self.shard(key)?;
        if shard.len.load(Ordering::Relaxed) == 0 {
            return None;
        }
        shard.listed.lock().debts.get_mut(key).map(look)
    }

    /// The same for the debt that was due, unless the counter has been forgotten since.
    fn with_due<T>(&self, due: &Due, look: impl FnOnce(&mut Debt) -> T) -> Option<T> {
        self.with(&due.key, |debt| (debt.number == due.number).then(|| look(debt))).flatten()
    }

    /// Whether a counter is listed, so that the store's answer is not enough.
    pub(super) fn contain(&self, key: &CounterKey) -> bool {
        !self.is_empty() && self.with(key, |_| ()).is_some()
    }

    /// The number of processes that the limit of a listed counter is divided by, until its hits expire.
    pub(super) fn replicas(&self, key: &CounterKey, now: Instant) -> Option<NonZeroU32> {
        self.with(key, |debt| (now < debt.expires_at).then_some(debt.replicas)).flatten()
    }

    /// Lists a counter that was decided locally, its limit divided by `replicas`, and granted these hits, maybe none, which
    /// expire at `expires_at`. Returns whether a task is to be started that debits it.
    #[must_use]
    pub(super) fn add(
        &self,
        (check, replicas): (&Check, NonZeroU32),
        hits: u64,
        now: Instant,
        expires_at: Instant,
    ) -> bool {
        let Some(shard) = self.shard(&check.key) else { return false };
        let mut listed = shard.listed.lock();
        if listed.debts.len() >= shard.counters_max && !listed.debts.contains_key(&check.key) {
            self.evict(&mut listed, now);
        }
        if let Some(debt) = listed.debts.get_mut(&check.key) {
            if debt.expires_at <= now {
                self.note_debited(std::mem::take(&mut debt.hits), 0);
                debt.replicas = replicas;
            }
            debt.limit = check.limit;
            debt.hits = debt.hits.saturating_add(hits);
            debt.expires_at = expires_at;
            debt.settled_at = None;
        } else if listed.debts.len() < shard.counters_max {
            let debt = Debt {
                number: self.next_number.fetch_add(1, Ordering::Relaxed),
                limit: check.limit,
                replicas,
                hits,
                expires_at,
                since: now,
                settled_at: None,
                is_sent: false,
                held_until: None,
            };
            listed.debts.insert(check.key.clone(), debt);
        } else {
            self.dropped.fetch_add(hits, Ordering::Relaxed);
            return false;
        }
        self.owed.fetch_add(hits, Ordering::Relaxed);
        self.note_len(shard, &listed);
        !self.is_settling.swap(true, Ordering::SeqCst)
    }

    /// Takes note of a shard's number of counters, whose lock is held.
    fn note_len(&self, shard: &Shard, listed: &Listed) {
        let len = listed.debts.len();
        let before = shard.len.swap(len, Ordering::Relaxed);
        if len >= before {
            self.len.fetch_add(len - before, Ordering::SeqCst);
        } else {
            self.len.fetch_sub(before - len, Ordering::SeqCst);
        }
    }

    /// Makes room, if one of the next counters has nothing to debit any more.
    fn evict(&self, listed: &mut Listed, now: Instant) {
        for _ in 0..EVICTED_FROM {
            let at = listed.next;
            if at >= listed.debts.len() {
                listed.next = 0;
                return;
            }
            if self.remove_expired(listed, at, now) {
                return;
            }
            listed.next += 1;
        }
    }

    /// Removes the counter at a place of the list if its hits have expired. Returns whether they have.
    fn remove_expired(&self, listed: &mut Listed, at: usize, now: Instant) -> bool {
        let expired = listed.debts.get_index(at).filter(|(_, debt)| debt.expires_at <= now);
        let Some((_, debt)) = expired else { return false };
        self.note_debited(debt.hits, 0);
        listed.debts.swap_remove_index(at);
        true
    }

    /// Whether the task that debits goes on. If not, the next counter starts another one.
    pub(super) fn go_on(&self) -> bool {
        let has_some = || self.len.load(Ordering::SeqCst) > 0;
        if has_some() {
            return true;
        }
        self.is_settling.store(false, Ordering::SeqCst);
        // One may have been listed just before, and has started no task.
        has_some() && !self.is_settling.swap(true, Ordering::SeqCst)
    }

    /// Some counters that the store has not answered for and is available for, the next ones with each call. Drops those that
    /// are settled, or whose hits have expired.
    pub(super) fn due(&self, now: Instant, is_available: impl Fn(&CounterKey) -> bool) -> Vec<Due> {
        let (mut due, mut looked_at) = (Vec::new(), 0);
        let looked_at_max = self.len.load(Ordering::Relaxed).min(LOOKED_AT_MAX);
        for _ in 0..self.shards.len() + LOOKED_AT_MAX / LOCKED_MAX {
            let number = self.next_shard.load(Ordering::Relaxed) % self.shards.len().max(1);
            let Some(shard) = self.shards.get(number) else { break };
            let mut listed = shard.listed.lock();
            let locked_until = looked_at_max.min(looked_at + LOCKED_MAX);
            while looked_at < locked_until && due.len() < DEBITS_MAX {
                if listed.next >= listed.debts.len() {
                    listed.next = 0;
                    self.next_shard.store(number + 1, Ordering::Relaxed);
                    break;
                }
                looked_at += 1;
                due.extend(self.look_at_next(&mut listed, now, &is_available));
            }
            self.note_len(shard, &listed);
            if looked_at >= looked_at_max || due.len() >= DEBITS_MAX {
                break;
            }
        }
        due
    }

    /// Looks at the next counter of a list, which has one: returns it if it is due, and drops it if it is settled or expired.
    fn look_at_next(
        &self,
        listed: &mut Listed,
        now: Instant,
        is_available: impl Fn(&CounterKey) -> bool,
    ) -> Option<Due> {
        let at = listed.next;
        if self.remove_expired(listed, at, now) {
            return None;
        }
        let (key, debt) = listed.debts.get_index(at)?;
        if debt.settled_at.is_some_and(|settled_at| settled_at <= now) && !debt.is_sent {
            listed.debts.swap_remove_index(at);
            return None;
        }
        listed.next += 1;
        if debt.settled_at.is_some() || debt.is_sent || debt.is_held(now) {
            return None;
        }
        if !is_available(key) {
            self.note_silence(now);
            return None;
        }
        let Debt { number, limit, replicas, .. } = *debt;
        Some(Due { key: key.clone(), limit, replicas, number })
    }

    /// Takes note of a counter that the store did not answer for.
    pub(super) fn note_silence(&self, now: Instant) {
        *self.silent_at.lock() = Some(now);
    }

    /// Takes all hits to debit of a counter that the store answers again. One of the functions below must
    /// settle them.
    pub(super) fn take(&self, due: &Due, now: Instant) -> u64 {
        let silent_at = *self.silent_at.lock();
        let taken = self.with_due(due, |debt| {
            if debt.is_held(now) || debt.is_sent {
                return 0;
            }
            let was_outage = now.saturating_duration_since(debt.since) >= OUTAGE_MIN
                || silent_at.is_some_and(|at| now.saturating_duration_since(at) < OUTAGE_MIN);
            debt.settled_at = Some(if was_outage { now + SETTLING } else { now });
            let hits = std::mem::take(&mut debt.hits);
            if debt.expires_at > now {
                debt.is_sent = hits > 0;
                return hits;
            }
            self.note_debited(hits, 0);
            0
        });
        taken.unwrap_or(0)
    }

    /// Settles hits that were taken: the store has charged some of them, and the others have expired.
    pub(super) fn settle(&self, due: &Due, taken: u64, debited: u64) {
        self.with_due(due, |debt| debt.is_sent = false);
        self.note_debited(taken, debited);
    }

    /// Settles hits that were taken: some were sent and may be charged or not, and the others have expired.
    pub(super) fn settle_unknown(&self, due: &Due, taken: u64, sent: u64) {
        self.settle(due, taken, 0);
        self.unknown.fetch_add(sent, Ordering::Relaxed);
    }

    /// Lists hits again that were taken and not charged.
    pub(super) fn put_back(&self, due: &Due, taken: u64) {
        let listed = self.with_due(due, |debt| {
            debt.hits = debt.hits.saturating_add(taken);
            (debt.settled_at, debt.is_sent) = (None, false);
        });
        if listed.is_none() {
            // Reset meanwhile, or expired.
            self.note_debited(taken, 0);
        }
    }

    /// Removes refunded hits from those to debit of a counter. Returns the number removed.
    pub(super) fn refund(&self, key: &CounterKey, hits: u64, now: Instant) -> u64 {
        let refunded = self.with(key, |debt| {
            let refunded = if now < debt.expires_at { hits.min(debt.hits) } else { 0 };
            debt.hits -= refunded;
            self.note_debited(refunded, 0);
            refunded
        });
        refunded.unwrap_or(0)
    }

    fn note_debited(&self, taken: u64, debited: u64) {
        self.owed.fetch_sub(taken, Ordering::Relaxed);
        self.debited.fetch_add(debited, Ordering::Relaxed);
    }

    /// Debits nothing of these counters until then, because they are being reset; with `None` does so again.
    pub(super) fn hold(&self, keys: &[CounterKey], until: Option<Instant>) {
        for key in keys {
            self.with(key, |debt| debt.held_until = until);
        }
    }

    /// Whether hits of these counters have been sent and are not settled yet.
    pub(super) fn are_sent(&self, keys: &[CounterKey]) -> bool {
        keys.iter().any(|key| self.with(key, |debt| debt.is_sent) == Some(true))
    }

    /// Forgets a counter, because it was reset.
    pub(super) fn forget(&self, key: &CounterKey) {
        let Some(shard) = self.shard(key) else { return };
        let mut listed = shard.listed.lock();
        if let Some(debt) = listed.debts.swap_remove(key) {
            self.note_debited(debt.hits, 0);
            self.note_len(shard, &listed);
        }
    }

    /// Forgets the counters of an owner.
    pub(super) fn forget_all(&self, owner: &TenantKeys) {
        for shard in &self.shards {
            let mut listed = shard.listed.lock();
            listed.debts.retain(|key, debt| {
                let keep = !owner.contains(key.as_bytes());
                if !keep {
                    self.note_debited(debt.hits, 0);
                }
                keep
            });
            self.note_len(shard, &listed);
        }
    }
}

#[cfg(test)]
mod tests;
