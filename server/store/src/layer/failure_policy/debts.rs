//! Counters that this process decided by itself, and the hits it owes the store for them.
//!
//! A counter is listed from its first local decision until the store has been debited. If the outage lasted, it stays
//! listed a little longer: other replicas may still owe hits, so a check must pass both the store and this process's share.

use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use foldhash::fast::RandomState;
use indexmap::IndexMap;
use parking_lot::Mutex;
use sluicegate_core::{Check, CounterKey, Limit, key::Owner};

/// The most counters that are debited together.
pub(super) const DEBITS_MAX: usize = 128;

/// The most listed counters that one search for those to debit looks at.
const LOOKED_AT_MAX: usize = 1024;

/// The most counters that are looked at to make room for another one.
const EVICTED_FROM: usize = 16;

/// An outage lasts at least so long, or some probe fails. Otherwise the counter met a few slow calls.
const OUTAGE_MIN: Duration = Duration::from_millis(250);

/// How long the store's answer is not enough after an outage. Within this time other replicas reconnect, at the pace of
/// `RETRY_MAX` and `--redis-connect-timeout`, and debit what they owe.
const SETTLING: Duration = Duration::from_secs(2);

/// A bounded list of counters, by key.
#[derive(Debug)]
pub(super) struct Debts {
    listed: Mutex<Listed>,
    counters_max: usize,
    /// Counters in the list, to be read without the lock.
    len: AtomicUsize,
    owed: AtomicU64,
    debited: AtomicU64,
    unknown: AtomicU64,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct Listed {
    debts: IndexMap<CounterKey, Debt, RandomState>,
    /// Where the search for counters to debit continues.
    next: usize,
    /// Whether a task debits them.
    is_settling: bool,
    /// When the store last did not answer a probe.
    silent_at: Option<Instant>,
}

#[derive(Debug)]
struct Debt {
    limit: Limit,
    hits: u64,
    /// From then on the hits would have expired in the store.
    expires_at: Instant,
    /// When it was first decided locally.
    since: Instant,
    /// When the store's answers are enough again; `None` until it answers.
    settled_at: Option<Instant>,
}

/// A counter to be debited.
#[derive(Clone, Debug)]
pub(super) struct Due {
    pub(super) key: CounterKey,
    pub(super) limit: Limit,
}

impl Debts {
    /// Lists at most `counters_max` counters.
    pub(super) fn new(counters_max: usize) -> Self {
        Self {
            listed: Mutex::default(),
            counters_max,
            len: AtomicUsize::new(0),
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

    /// Whether a counter is listed, so that the store's answer is not enough.
    pub(super) fn contain(&self, key: &CounterKey) -> bool {
        !self.is_empty() && self.listed.lock().debts.contains_key(key)
    }

    /// Lists a counter that was decided locally and granted these hits, maybe none, which expire at `expires_at`. Returns
    /// whether a task is to be started that debits it.
    #[must_use]
    pub(super) fn add(&self, check: &Check, hits: u64, now: Instant, expires_at: Instant) -> bool {
        let mut listed = self.listed.lock();
        if listed.debts.len() >= self.counters_max && !listed.debts.contains_key(&check.key) {
            self.evict(&mut listed, now);
        }
        if let Some(debt) = listed.debts.get_mut(&check.key) {
            if debt.expires_at <= now {
                self.settle(std::mem::take(&mut debt.hits), 0);
            }
            debt.limit = check.limit;
            debt.hits = debt.hits.saturating_add(hits);
            debt.expires_at = expires_at;
            debt.settled_at = None;
        } else if listed.debts.len() < self.counters_max {
            let debt = Debt { limit: check.limit, hits, expires_at, since: now, settled_at: None };
            listed.debts.insert(check.key.clone(), debt);
            self.len.store(listed.debts.len(), Ordering::Relaxed);
        } else {
            self.dropped.fetch_add(hits, Ordering::Relaxed);
            return false;
        }
        self.owed.fetch_add(hits, Ordering::Relaxed);
        !std::mem::replace(&mut listed.is_settling, true)
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
        self.settle(debt.hits, 0);
        listed.debts.swap_remove_index(at);
        true
    }

    /// Whether the task that debits goes on. If not, the next counter starts another one.
    pub(super) fn go_on(&self) -> bool {
        let mut listed = self.listed.lock();
        listed.is_settling = !listed.debts.is_empty();
        listed.is_settling
    }

    /// Some counters that the store has not answered for, the next ones with each call. Drops those that are settled, or whose
    /// hits have expired.
    pub(super) fn due(&self, now: Instant) -> Vec<Due> {
        let mut listed = self.listed.lock();
        let mut due = Vec::new();
        for _ in 0..listed.debts.len().min(LOOKED_AT_MAX) {
            if listed.next >= listed.debts.len() {
                listed.next = 0;
            }
            let at = listed.next;
            if self.remove_expired(&mut listed, at, now) {
                continue;
            }
            let Some((key, debt)) = listed.debts.get_index(at) else { break };
            match debt.settled_at {
                None => due.push(Due { key: key.clone(), limit: debt.limit }),
                Some(settled_at) if settled_at <= now => {
                    listed.debts.swap_remove_index(at);
                    continue;
                }
                Some(_) => {}
            }
            listed.next += 1;
            if due.len() == DEBITS_MAX {
                break;
            }
        }
        self.len.store(listed.debts.len(), Ordering::Relaxed);
        due
    }

    /// Takes note of a probe that the store did not answer.
    pub(super) fn note_silence(&self, now: Instant) {
        self.listed.lock().silent_at = Some(now);
    }

    /// Takes the hits of a counter that the store answers for again: all it owes now, to be settled by one of the functions
    /// below.
    pub(super) fn take(&self, key: &CounterKey, now: Instant) -> u64 {
        let mut listed = self.listed.lock();
        let silent_at = listed.silent_at;
        let Some(debt) = listed.debts.get_mut(key) else { return 0 };
        let was_outage = now.saturating_duration_since(debt.since) >= OUTAGE_MIN
            || silent_at.is_some_and(|at| now.saturating_duration_since(at) < OUTAGE_MIN);
        debt.settled_at = Some(if was_outage { now + SETTLING } else { now });
        let hits = std::mem::take(&mut debt.hits);
        if debt.expires_at > now {
            return hits;
        }
        self.settle(hits, 0);
        0
    }

    /// Settles hits that were taken: the store has charged some of them, and the others have expired.
    pub(super) fn settle(&self, taken: u64, debited: u64) {
        self.owed.fetch_sub(taken, Ordering::Relaxed);
        self.debited.fetch_add(debited, Ordering::Relaxed);
    }

    /// Settles hits that were taken: some were sent and may be charged or not, and the others have expired.
    pub(super) fn settle_unknown(&self, taken: u64, sent: u64) {
        self.owed.fetch_sub(taken, Ordering::Relaxed);
        self.unknown.fetch_add(sent, Ordering::Relaxed);
    }

    /// Lists hits again that were taken and not charged.
    pub(super) fn put_back(&self, key: &CounterKey, hits: u64) {
        let mut listed = self.listed.lock();
        match listed.debts.get_mut(key) {
            Some(debt) => {
                debt.hits = debt.hits.saturating_add(hits);
                debt.settled_at = None;
            }
            // Reset meanwhile.
            None => self.settle(hits, 0),
        }
    }

    /// Forgets a counter, because it was reset.
    pub(super) fn forget(&self, key: &CounterKey) {
        let mut listed = self.listed.lock();
        if let Some(debt) = listed.debts.swap_remove(key) {
            self.settle(debt.hits, 0);
        }
        self.len.store(listed.debts.len(), Ordering::Relaxed);
    }

    /// Forgets the counters of an owner.
    pub(super) fn forget_all(&self, owner: &Owner) {
        let mut listed = self.listed.lock();
        listed.debts.retain(|key, debt| {
            let keep = !owner.owns(key.as_bytes());
            if !keep {
                self.settle(debt.hits, 0);
            }
            keep
        });
        self.len.store(listed.debts.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use sluicegate_core::{Algorithm, OnFailure, Take, Window, store::Veto};

    use super::*;
    use crate::clock;

    const MINUTE: Duration = Duration::from_secs(60);

    fn check(name: &str) -> Check {
        let key = CounterKey::from_text(format!("s1:fw:60:{{api:user={name}}}").as_bytes());
        let window = Window::from_seconds(60).unwrap();
        Check {
            key: key.unwrap(),
            limit: Limit::new(Algorithm::FixedWindow, 100, window, None).unwrap(),
            take: Take::Exactly(1),
            descriptor: 0,
            veto: Veto::Alone,
            on_failure: OnFailure::Local,
        }
    }

    #[test]
    fn hits_of_an_ended_window_are_not_debited_into_the_next() {
        let (debts, now, bob) = (Debts::new(10), clock::now(), check("bob"));
        assert!(debts.add(&bob, 25, now, now + MINUTE));
        assert_eq!(debts.due(now).len(), 1);
        // The store answers in the next window.
        assert_eq!(debts.take(&bob.key, now + MINUTE), 0);
        assert_eq!((debts.owed(), debts.debited()), (0, 0));
        assert!(debts.due(now + MINUTE).is_empty());
        assert!(debts.is_empty());
        // The same, and the outage goes on: what was admitted in the next window is owed alone.
        let _started = debts.add(&bob, 25, now, now + MINUTE);
        let _started = debts.add(&bob, 3, now + MINUTE, now + 2 * MINUTE);
        assert_eq!((debts.owed(), debts.take(&bob.key, now + MINUTE)), (3, 3));
    }

    #[test]
    fn counters_of_ended_windows_make_room() {
        let (debts, now) = (Debts::new(2), clock::now());
        for name in ["ann", "bob"] {
            let _started = debts.add(&check(name), 1, now, now + MINUTE);
        }
        let _started = debts.add(&check("carol"), 1, now, now + MINUTE);
        assert_eq!((debts.owed(), debts.dropped()), (2, 1));
        let _started = debts.add(&check("carol"), 1, now + MINUTE, now + 2 * MINUTE);
        assert_eq!((debts.owed(), debts.dropped()), (2, 1));
        assert!(debts.contain(&check("carol").key));
    }
}
