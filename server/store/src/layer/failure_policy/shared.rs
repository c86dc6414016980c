//! Decisions about groups: the store's answers, failure policies where there are none, and refunds.

use std::{
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use sluicegate_core::{
    Answers, Batch, Charge, Check, Decision, OnFailure, Store, StoreError,
    fixes::Fix,
    store::{Group, Source},
};
use thiserror::Error;
use tokio::sync::Semaphore;

use super::{
    conclusion::{Conclusion, Decisions, allowed_by_all, awaited, denied, refuses},
    give_back::GiveBacks,
    ledger::Ledger,
    leftovers::{Leftover, leftovers, undo},
};
use crate::{Clock, LiveReplicas, Memory, clock};

/// A rule defers to the caller's own failure mode.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the store is not available and a rule says on_failure: defer")]
pub struct Deferred;

/// What a decision needs, also after its caller has left.
#[derive(Debug)]
pub(super) struct Shared<S> {
    pub(super) inner: Arc<S>,
    pub(super) local: Option<Local>,
    pub(super) ledger: Option<Ledger>,
    pub(super) answered: AtomicU64,
    pub(super) concerned: AtomicU64,
    pub(super) give_backs: Arc<GiveBacks>,
    pub(super) split: Arc<Semaphore>,
    pub(super) abandoned: AtomicU64,
}

/// What counts while the store cannot: this process alone.
#[derive(Debug)]
pub struct Local {
    /// Where.
    pub store: Memory<Arc<dyn Clock>>,
    /// Among how many processes a limit is divided.
    pub replicas: LiveReplicas,
    /// The most counters whose last reports are kept, from which local counters start, and the most counters with hits to
    /// debit. With 0, local counters start unused, and their hits are not debited.
    pub known_max: usize,
}

impl<S: Store> Shared<S> {
    /// Decides every check of a group, by the deadline.
    ///
    /// # Errors
    /// See [`FailurePolicy::decide`](super::FailurePolicy::decide).
    pub(super) async fn decide(
        self: &Arc<Self>,
        group: Group,
        deadline: Option<Instant>,
    ) -> Result<Decisions, Deferred> {
        // Not in a function of its own, because each copies the answers.
        let asked = clock::now();
        let answers = self.inner.decide(Batch::single(Arc::clone(&group), deadline)).await;
        let is_enough = self.ledger.as_ref().is_none_or(|ledger| {
            ledger.note(&group, &answers, asked);
            ledger.is_enough(&group)
        });
        if is_enough && let Some(decisions) = allowed_by_all(&group, &answers) {
            return Ok(decisions);
        }
        // Rare, so that what it keeps is not part of every request's future.
        Box::pin(self.conclude(&group, &answers)).await
    }

    /// Answers checks that the inner store did not, and refunds charges in vain.
    pub(super) async fn conclude(
        self: &Arc<Self>,
        group: &Group,
        answers: &Answers,
    ) -> Result<Decisions, Deferred> {
        let is_unknown = answers.contains(&Err(StoreError::Unknown));
        // Before anything is awaited.
        let late = is_unknown.then(|| self.inner.late_answers(group)).flatten();
        let guards = |check: &Check| self.ledger.as_ref().is_some_and(|it| it.guards(check));
        let mut conclusion = Conclusion::new(group, answers, self.local.is_some(), guards);
        self.answered.fetch_add(conclusion.failed, Ordering::Relaxed);
        self.concerned.fetch_add(u64::from(conclusion.failed > 0), Ordering::Relaxed);
        if conclusion.failed > 0 {
            self.refund_later(group, answers).await;
        }
        if !conclusion.local.is_empty() {
            self.ask_local(group, &mut conclusion).await;
        }
        let refused = refuses(group, &conclusion.decisions);
        let deferred = conclusion.deferred && !refused;
        let leftovers = leftovers(group, &mut conclusion.decisions, refused || deferred);
        if !leftovers.is_empty() {
            self.give_back(group, &conclusion, leftovers).await;
        }
        if !conclusion.local.is_empty() {
            self.record(group, &conclusion);
        }
        if let Some(late) = late
            && Fix::RefundLateCharges.is_active()
        {
            // Afterwards: what is not listed to be debited stays charged.
            let failed = refused || deferred;
            let positions = awaited(group, answers, &conclusion, failed, guards);
            self.give_back_late(group, positions, late);
        }
        for (at, refusal) in conclusion.refused_here {
            if let Some(decision) = conclusion.decisions.get_mut(at) {
                let Decision { charged: granted, receipt, .. } = *decision;
                *decision = Decision { charged: granted, receipt, ..refusal };
            }
        }
        if deferred { Err(Deferred) } else { Ok(conclusion.decisions) }
    }

    /// Asks this process, last of all, so that nothing is charged here for a request that is refused
    /// already.
    async fn ask_local(&self, group: &[Check], conclusion: &mut Conclusion) {
        let Some(local) = &self.local else { return };
        let refused = refuses(group, &conclusion.decisions);
        conclusion.local.retain(|it| {
            let is_conditional = |check: &Check| check.charge.is_conditional();
            !(refused && group.get(it.position).is_some_and(is_conditional))
        });
        let replicas = local.replicas.get();
        let mut checks = Vec::with_capacity(conclusion.local.len());
        for it in &mut conclusion.local {
            let asked = group.get(it.position).zip(conclusion.decisions.get(it.position));
            let Some((check, decision)) = asked else { continue };
            // Of another number, what this process has admitted would be another share.
            let kept = self.ledger.as_ref().and_then(|ledger| ledger.replicas(check));
            it.replicas = kept.unwrap_or(replicas);
            let share = it.share(check);
            if let Some(ledger) = &self.ledger {
                ledger.lower((check, &share, decision.charged), it.replicas, &local.store);
            }
            checks.push(share);
        }
        let answers = local.store.decide(Batch::single(checks.into(), None)).await;
        for (it, answer) in conclusion.local.iter_mut().zip(answers) {
            let Some(decision) = conclusion.decisions.get_mut(it.position) else { continue };
            let here =
                answer.map_or_else(|_| denied(), |it| Decision { source: Source::Local, ..it });
            it.decision = Some(here);
            if decision.source != Source::Store {
                *decision = here;
            } else if !here.allowed {
                decision.allowed = false;
                conclusion.refused_here.push((it.position, here));
            }
        }
    }

    /// Has what this process admitted debited as soon as the store answers.
    fn record(self: &Arc<Self>, group: &[Check], conclusion: &Conclusion) {
        if self.ledger.as_ref().is_some_and(|ledger| ledger.record(group, conclusion)) {
            tokio::spawn(Arc::clone(self).settle_debts());
        }
    }

    /// Refunds charges: local ones at once, those in the inner store without waiting.
    async fn give_back(&self, group: &[Check], conclusion: &Conclusion, leftovers: Vec<Leftover>) {
        let is_left = |position| leftovers.iter().any(|it| it.position == position);
        let here = conclusion.local.iter().filter(|it| is_left(it.position)).filter_map(|it| {
            let share = it.share(group.get(it.position)?);
            undo(&share, it.decision.as_ref()?)
        });
        self.give_back_here(here.collect()).await;
        let inside = leftovers.into_iter().filter(|it| it.source != Source::Local);
        let inside: Vec<Check> = inside.map(|it| it.undo).collect();
        if !inside.is_empty() {
            self.give_backs.start(Arc::clone(&self.inner), inside);
        }
    }

    async fn give_back_here(&self, takes: Vec<Check>) {
        if let (Some(local), false) = (&self.local, takes.is_empty()) {
            // Memory: it cannot fail.
            let _given = local.store.decide(Batch::single(takes.into(), None)).await;
        }
    }

    /// Repeats refunds of callers that the store did not run: removes hits that this process has to debit,
    /// and sends the others to the store for a while.
    async fn refund_later(&self, group: &[Check], answers: &Answers) {
        let (mut here, mut inside) = (Vec::new(), Vec::new());
        for (check, answer) in group.iter().zip(answers) {
            let Charge::Refund { hits, receipt } = check.charge else { continue };
            if answer.is_ok() || *answer == Err(StoreError::Unknown) {
                continue;
            }
            let of_debt = self.refund_debt(check, hits);
            let take = |hits| Charge::Refund { hits, receipt };
            if let Some((hits, replicas)) = of_debt {
                let limit = check.limit.per_replica(replicas);
                here.push(Check { charge: take(hits), limit, ..check.clone() });
            }
            let left = hits - of_debt.map_or(0, |(hits, _)| hits);
            if left > 0 {
                inside.push(Check { charge: take(left), ..check.clone() });
            }
        }
        self.give_back_here(here).await;
        if !inside.is_empty() {
            self.give_backs.start_refunds(Arc::clone(&self.inner), inside);
        }
    }

    /// Removes hits from those that this process has to debit. Returns their number, and the number of processes that the
    /// limit is divided by.
    fn refund_debt(&self, check: &Check, hits: u64) -> Option<(u64, NonZeroU32)> {
        let ledger = self.ledger.as_ref().filter(|_| check.on_failure == OnFailure::Local)?;
        let replicas = ledger.replicas(check)?;
        let refunded = ledger.refund(&check.key, hits);
        (refunded > 0).then_some((refunded, replicas))
    }
}
