//! Debits of what this process admitted by itself, as soon as the store answers again.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use sluicegate_core::{
    Answers, Batch, Charge, Check, Decision, OnFailure, Store, StoreError,
    store::{Group, PendingAnswers, RefusalScope},
};
use tokio::sync::OwnedSemaphorePermit;

use super::{
    debts::{Debts, Due},
    ledger::{DEBIT_TIMEOUT, Ledger},
    shared::{Local, Shared},
};
use crate::clock;

/// How often the store is asked whether it answers again for counters that were decided locally.
const PROBE_INTERVAL: Duration = Duration::from_millis(100);

impl<S: Store> Shared<S> {
    /// Debits local hits as soon as the store answers, until no counter is listed any more.
    pub(super) async fn settle_debts(self: Arc<Self>) {
        let (Some(local), Some(ledger)) = (&self.local, &self.ledger) else { return };
        while ledger.debts.go_on() {
            tokio::time::sleep(PROBE_INTERVAL).await;
            while self.debit_some(local, ledger).await {}
        }
    }

    /// Debits some counters. Returns whether the store answers for any of those that are due.
    async fn debit_some(self: &Arc<Self>, local: &Local, ledger: &Ledger) -> bool {
        let due = ledger.debts.due(clock::now(), |key| self.inner.is_available(key));
        // Asked first, because a debit that a hanging server does not answer can neither be sent again nor forgotten.
        let probed = join_all(due.iter().map(|it| self.charge(it, 0, ledger))).await;
        if probed.iter().any(|(_, answer)| answer.is_err()) {
            ledger.debts.note_silence(clock::now());
        }
        let answered = due.iter().zip(probed).filter(|(_, (_, answer))| answer.is_ok());
        let debited = join_all(answered.map(|(due, _)| self.debit(due, local, ledger))).await;
        debited.contains(&true)
    }

    /// Debits a counter. Returns whether the store answered.
    async fn debit(self: &Arc<Self>, due: &Due, local: &Local, ledger: &Ledger) -> bool {
        let debts = &ledger.debts;
        let taken = debts.take(due, clock::now());
        if taken == 0 {
            return true;
        }
        // Hits that have expired here would have expired in the store, had it been asked.
        let hits = taken.min(self.used_locally(due, local).await);
        if hits == 0 {
            debts.settle(due, taken, 0);
            return true;
        }
        let (group, answer) = self.charge(due, hits, ledger).await;
        let sent = Sent { due: due.clone(), taken, hits };
        if answer == Err(StoreError::Unknown)
            && let Some(late) = self.inner.late_answers(&group)
            && let Some(permit) = self.give_backs.late()
        {
            tokio::spawn(Arc::clone(self).debit_late(sent, late, permit));
            return true;
        }
        sent.settle(answer, debts)
    }

    /// Settles a debit by its late answer.
    async fn debit_late(
        self: Arc<Self>,
        sent: Sent,
        late: PendingAnswers,
        permit: OwnedSemaphorePermit,
    ) {
        let answer = first(&late.await);
        if let Some(ledger) = &self.ledger {
            sent.settle(answer, &ledger.debts);
        }
        drop(permit);
    }

    /// Hits that count against this process's share of a limit.
    async fn used_locally(&self, due: &Due, local: &Local) -> u64 {
        let limit = due.limit.per_replica(due.replicas);
        let peek = Check { limit, ..charge(due, 0) };
        let answers = local.store.decide(Batch::single(Arc::from([peek]), None)).await;
        let Some(Ok(decision)) = answers.first() else { return 0 };
        (u64::from(limit.capacity()) + decision.excess).saturating_sub(decision.remaining)
    }

    /// Charges a counter in the store with hits, or with none, whatever it has left. Returns what was asked, too.
    async fn charge(&self, due: &Due, hits: u64, ledger: &Ledger) -> (Group, Answer) {
        let asked = clock::now();
        let group = Group::from([charge(due, hits)]);
        let batch = Batch::single(Arc::clone(&group), Some(asked + DEBIT_TIMEOUT));
        let answers = self.inner.decide(batch).await;
        ledger.note(&group, &answers, asked);
        (group, first(&answers))
    }
}

/// The answer to a single check.
type Answer = Result<Decision, StoreError>;

fn first(answers: &Answers) -> Answer {
    answers.first().copied().unwrap_or(Err(StoreError::Unknown))
}

/// A debit that was sent.
struct Sent {
    due: Due,
    /// Hits removed from those to be debited.
    taken: u64,
    /// Those of them that were sent. The others have expired.
    hits: u64,
}

impl Sent {
    /// Settles it by the store's answer. Returns whether the store has answered, or may have.
    fn settle(&self, answer: Answer, debts: &Debts) -> bool {
        let &Self { ref due, taken, hits } = self;
        match answer {
            Ok(_) => debts.settle(due, taken, hits),
            Err(StoreError::Unknown) => debts.settle_unknown(due, taken, hits),
            Err(StoreError::Full | StoreError::Unavailable | StoreError::Moved) => {
                debts.put_back(due, taken);
                return false;
            }
        }
        true
    }
}

fn charge(due: &Due, hits: u64) -> Check {
    Check {
        key: due.key.clone(),
        limit: due.limit,
        charge: Charge::Always { hits, needs: 0 },
        descriptor: 0,
        refusal_scope: RefusalScope::None,
        on_failure: OnFailure::Local,
    }
}
