//! What connects local decisions to the store's counters: local counters start from what the store last reported, and what
//! they admitted is debited when the store answers again.

use std::{
    num::NonZeroU32,
    sync::Arc,
    time::{Duration, Instant},
};

use sluicegate_core::{Answers, Check, CounterKey, OnFailure, key::TenantKeys, store::Source};

use super::{conclusion::Conclusion, debts::Debts, known::KnownCounters};
use crate::{Clock, Memory, clock};

/// How long a probe or a debit may take. A hanging server must not hold the calls of requests for longer.
pub(super) const DEBIT_TIMEOUT: Duration = Duration::from_millis(250);

/// How long a reset keeps its counters from being debited, if it does not say that it has ended.
const HELD_MAX: Duration = Duration::from_secs(10);

/// How often a reset looks whether the debits in progress have ended.
const HOLD_INTERVAL: Duration = Duration::from_millis(5);

/// The store's last reports on counters, and the hits to debit in them.
#[derive(Debug)]
pub(super) struct Ledger {
    known: KnownCounters,
    pub(super) debts: Debts,
}

/// Numbers of the local fallback.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FallbackStats {
    /// Counters in the table of recently asked ones.
    pub counters: u64,
    /// Counters evicted from it before they were reset.
    pub evicted: u64,
    /// Checks decided by this process whose counters were in the table.
    pub found: u64,
    /// Checks decided by this process whose counters were not.
    pub missed: u64,
    /// Hits admitted by this process that are to be debited.
    pub owed: u64,
    /// Hits debited.
    pub debited: u64,
    /// Hits of debits that the store did not answer.
    pub unknown: u64,
    /// Hits that are not debited, because too many counters have some.
    pub dropped: u64,
}

impl Ledger {
    /// Tracks at most `counters_max` reports, and as many counters to debit; `None` if that is 0.
    pub(super) fn new(counters_max: usize) -> Option<Self> {
        (counters_max > 0).then(|| Self {
            known: KnownCounters::new(counters_max),
            debts: Debts::new(counters_max),
        })
    }

    pub(super) fn stats(&self) -> FallbackStats {
        let Self { known, debts } = self;
        FallbackStats {
            counters: known.len() as u64,
            evicted: known.evicted(),
            found: known.found(),
            missed: known.missed(),
            owed: debts.owed(),
            debited: debts.debited(),
            unknown: debts.unknown(),
            dropped: debts.dropped(),
        }
    }

    /// Takes note of the store's answers to checks that were asked at `asked`.
    pub(super) fn note(&self, group: &[Check], answers: &Answers, asked: Instant) {
        let mut now = None;
        for (check, answer) in group.iter().zip(answers) {
            if let Ok(decision) = answer
                && decision.source == Source::Store
                && check.on_failure == OnFailure::Local
            {
                self.known.note(check, decision, asked, *now.get_or_insert_with(clock::now));
            }
        }
    }

    /// Whether the store's answers are sufficient for every check.
    pub(super) fn is_enough(&self, group: &[Check]) -> bool {
        self.debts.is_empty() || !group.iter().any(|check| self.guards(check))
    }

    /// Whether a check must also pass the local share: other replicas may not have debited hits of its counter yet.
    pub(super) fn guards(&self, check: &Check) -> bool {
        check.on_failure == OnFailure::Local && self.debts.contain(&check.key)
    }

    /// The number of processes that a limit is divided by while hits of its counter are to be debited, here or by other
    /// replicas.
    pub(super) fn replicas(&self, check: &Check) -> Option<NonZeroU32> {
        self.debts.replicas(&check.key, clock::now())
    }

    /// Lowers the local counter of a check to what is known of it. `share` is the check against this process's share of the
    /// limit, one of so many; `granted` are hits that the store has granted to it.
    pub(super) fn lower(
        &self,
        check: (&Check, &Check, u64),
        replicas: NonZeroU32,
        local: &Memory<Arc<dyn Clock>>,
    ) {
        self.known.lower(check, replicas, local, clock::now());
    }

    /// Lists the counters that this process decided. Returns whether a task is to be started that debits them.
    #[must_use]
    pub(super) fn record(&self, group: &[Check], conclusion: &Conclusion) -> bool {
        let now = clock::now();
        conclusion.local.iter().fold(false, |start, it| {
            let decision = conclusion.decisions.get(it.position);
            let decision = decision.filter(|decision| decision.source == Source::Local);
            let Some((check, decision)) = group.get(it.position).zip(decision) else {
                return start;
            };
            let expires_at = now + decision.reset_after;
            start | self.debts.add((check, it.replicas), decision.charged, now, expires_at)
        })
    }

    /// Removes refunded hits from those to debit of a counter. Returns the number removed.
    pub(super) fn refund(&self, key: &CounterKey, hits: u64) -> u64 {
        self.debts.refund(key, hits, clock::now())
    }

    /// Keeps counters that are about to be reset from being debited, until they are forgotten or [released](Self::release).
    /// Waits for the debits in progress.
    pub(super) async fn hold(&self, keys: &[CounterKey]) {
        let now = clock::now();
        self.debts.hold(keys, Some(now + HELD_MAX));
        while self.debts.are_sent(keys) && clock::now() < now + DEBIT_TIMEOUT {
            tokio::time::sleep(HOLD_INTERVAL).await;
        }
    }

    /// Has counters debited again that were not reset.
    pub(super) fn release(&self, keys: &[CounterKey]) {
        self.debts.hold(keys, None);
    }

    /// Forgets a counter, because it was reset.
    pub(super) fn forget(&self, key: &CounterKey) {
        self.known.forget(key);
        self.debts.forget(key);
    }

    /// Forgets the counters of an owner, because they were reset, and what is known of all others.
    pub(super) fn forget_all(&self, owner: &TenantKeys) {
        self.known.clear();
        self.debts.forget_all(owner);
    }

    /// Whether no counter is listed.
    pub(super) fn is_settled(&self) -> bool {
        self.debts.is_empty()
    }

    /// Hits that are to be debited.
    pub(super) fn owed(&self) -> u64 {
        self.debts.owed()
    }
}
