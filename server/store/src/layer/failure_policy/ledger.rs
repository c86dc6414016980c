//! What connects local decisions to the store's counters: local counters start from what the store last reported, and what
//! they admitted is debited when the store answers again.

use std::{
    num::NonZeroU32,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::join_all;
use sluicegate_core::{
    Answers, Batch, Check, CounterKey, Decision, OnFailure, Store, StoreError, Take,
    key::Owner,
    store::{Group, Source, Veto},
};

use super::{
    Local, Shared,
    debts::{Debts, Due},
    known::KnownCounters,
};
use crate::clock;

/// How often the store is asked whether it answers again for counters that were decided locally.
const PROBE_INTERVAL: Duration = Duration::from_millis(100);

/// How long a probe or a debit may take. A hanging server must not hold the calls of requests for longer.
const DEBIT_TIMEOUT: Duration = Duration::from_millis(250);

/// What this process knows of the store's counters, and owes them.
#[derive(Debug)]
pub(super) struct Ledger {
    known: KnownCounters,
    debts: Debts,
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
    /// Hits that are not debited, because too many counters are owed some.
    pub dropped: u64,
}

impl Ledger {
    /// Knows at most `counters_max` counters, and owes as many; `None` if that is 0.
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

    /// Whether the store's answers are enough for every counter.
    pub(super) fn is_settled(&self) -> bool {
        self.debts.is_empty()
    }

    /// Whether the store's permission is not enough for a check: other replicas may owe hits of its counter.
    pub(super) fn guards(&self, check: &Check) -> bool {
        check.on_failure == OnFailure::Local && self.debts.contain(&check.key)
    }

    /// Lowers the local counters of checks to what is known of them: each with its check against this process's share of the
    /// limit, and the hits that the store has granted.
    pub(super) fn lower<'c>(
        &self,
        checks: impl Iterator<Item = (&'c Check, &'c Check, u64)>,
        replicas: NonZeroU32,
        local: &Local,
    ) {
        let now = clock::now();
        for check in checks {
            self.known.lower(check, replicas, &local.store, now);
        }
    }

    /// Lists the counters that this process decided. Returns whether a task is to be started that debits them.
    #[must_use]
    pub(super) fn record(&self, group: &[Check], decisions: &[Decision]) -> bool {
        let now = clock::now();
        let of_local = group.iter().zip(decisions).filter(|(_, it)| it.source == Source::Local);
        of_local.fold(false, |start, (check, decision)| {
            let expires_at = now + decision.reset_after;
            start | self.debts.add(check, decision.granted, now, expires_at)
        })
    }

    /// Forgets a counter, because it was reset.
    pub(super) fn forget(&self, key: &CounterKey) {
        self.known.forget(key);
        self.debts.forget(key);
    }

    /// Forgets the counters of an owner, because they were reset, and what is known of all others.
    pub(super) fn forget_all(&self, owner: &Owner) {
        self.known.clear();
        self.debts.forget_all(owner);
    }

    /// Hits that are to be debited.
    pub(super) fn owed(&self) -> u64 {
        self.debts.owed()
    }
}

impl<S: Store> Shared<S> {
    /// Debits what is owed as soon as the store answers, until no counter is listed any more.
    pub(super) async fn settle_debts(self: Arc<Self>) {
        let (Some(local), Some(ledger)) = (&self.local, &self.ledger) else { return };
        while ledger.debts.go_on() {
            tokio::time::sleep(PROBE_INTERVAL).await;
            while self.debit_some(local, ledger).await {}
        }
    }

    /// Debits some counters. Returns whether the store answers for any of those that are due.
    async fn debit_some(&self, local: &Local, ledger: &Ledger) -> bool {
        let due = ledger.debts.due(clock::now());
        // Asked first, because a debit that a hanging server does not answer can neither be sent again nor forgotten.
        let probed = join_all(due.iter().map(|it| self.ask_alone(it, 0))).await;
        if probed.iter().any(Result::is_err) {
            ledger.debts.note_silence(clock::now());
        }
        let answered = due.iter().zip(probed).filter(|(_, answer)| answer.is_ok());
        let debited =
            join_all(answered.map(|(due, _)| self.debit(due, local, &ledger.debts))).await;
        debited.contains(&true)
    }

    /// Debits a counter. Returns whether the store answered.
    async fn debit(&self, due: &Due, local: &Local, debts: &Debts) -> bool {
        let taken = debts.take(&due.key, clock::now());
        // Hits that have expired here would have expired in the store, had it been asked.
        let hits = taken.min(self.used_locally(due, local).await);
        if hits == 0 {
            debts.settle(taken, 0);
            return true;
        }
        match self.ask_alone(due, hits).await {
            Ok(_) => debts.settle(taken, hits),
            Err(StoreError::Unknown) => debts.settle_unknown(taken, hits),
            Err(StoreError::Full | StoreError::Unavailable | StoreError::Elsewhere) => {
                debts.put_back(&due.key, taken);
                return false;
            }
        }
        true
    }

    /// Hits that count against this process's share of a limit.
    async fn used_locally(&self, due: &Due, local: &Local) -> u64 {
        let limit = due.limit.divided(local.replicas.get());
        let peek = Check { limit, ..charge(due, 0) };
        let answers = local.store.decide(Batch::of(Arc::from([peek]), None)).await;
        let Some(Ok(decision)) = answers.first() else { return 0 };
        (u64::from(limit.capacity()) + decision.excess).saturating_sub(decision.remaining)
    }

    /// Charges a counter in the store with hits, or with none, whatever it has left.
    async fn ask_alone(&self, due: &Due, hits: u64) -> Result<Decision, StoreError> {
        let deadline = Some(clock::now() + DEBIT_TIMEOUT);
        let answers = self.ask(&Group::from([charge(due, hits)]), deadline).await;
        answers.first().copied().unwrap_or(Err(StoreError::Unknown))
    }
}

fn charge(due: &Due, hits: u64) -> Check {
    Check {
        key: due.key.clone(),
        limit: due.limit,
        take: Take::Always { hits, needs: 0 },
        descriptor: 0,
        veto: Veto::None,
        on_failure: OnFailure::Local,
    }
}
