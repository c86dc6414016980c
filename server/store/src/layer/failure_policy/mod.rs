//! Turns what a store could not answer into a decision, by each rule's failure policy, and gives back what
//! was taken for a request that is refused after all.

mod conclusion;
mod debts;
mod give_back;
mod known;
mod late;
mod ledger;
mod leftovers;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use sluicegate_core::{
    Answers, Batch, Check, CounterKey, Decision, Store, StoreError,
    key::Owner,
    mends::Mend,
    store::{Group, Source},
};
use smallvec::SmallVec;
use thiserror::Error;
use tokio::sync::{Semaphore, oneshot};

use crate::{Clock, LiveReplicas, Memory, clock};
use conclusion::{Conclusion, allowed_by_all, denied, refuses};
use give_back::GiveBacks;
use ledger::Ledger;
use leftovers::{Leftover, leftovers};

pub use give_back::GIVE_BACK_TIMEOUT;
pub use ledger::FallbackStats;

/// A decision for each check of a group, in order.
pub type Decisions = SmallVec<[Decision; 4]>;

/// How long the end of the process waits until requests are settled and their takes given back.
pub const FINISH_TIMEOUT: Duration = Duration::from_secs(1);

/// How often the end of the process looks whether everything is debited.
const FINISH_INTERVAL: Duration = Duration::from_millis(10);

/// The most requests that are being settled in several parts at once. What comes beyond is decided by failure policies.
const SPLIT_MAX: usize = 16_384;

/// A rule defers to the caller's own failure mode.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the store is not available and a rule says on_failure: defer")]
pub struct Deferred;

/// The outermost layer. It is no [`Store`], because it has no errors to hand on: its callers get
/// decisions.
#[derive(Debug)]
pub struct FailurePolicy<S>(Arc<Shared<S>>);

#[derive(Debug)]
struct Shared<S> {
    inner: Arc<S>,
    local: Option<Local>,
    ledger: Option<Ledger>,
    answered: AtomicU64,
    concerned: AtomicU64,
    give_backs: Arc<GiveBacks>,
    split: Arc<Semaphore>,
    abandoned: AtomicU64,
}

/// What counts while the store cannot: this process alone.
#[derive(Debug)]
pub struct Local {
    /// Where.
    pub store: Memory<Arc<dyn Clock>>,
    /// Among how many processes a limit is divided.
    pub replicas: LiveReplicas,
    /// The most recently asked counters that are known, so that counters here start from what the store last reported, and
    /// the most that hits are owed to. With 0, counters here start unused, and the store never hears of their hits.
    pub known_max: usize,
}

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

    /// Takes that could not be given back so far. Each stays charged until it expires.
    pub fn give_backs_failed(&self) -> u64 {
        self.0.give_backs.failed()
    }

    /// Hits that are known to be charged in vain, or may be, and were not given back so far.
    pub fn hits_not_returned(&self) -> u64 {
        self.0.give_backs.hits_not_returned()
    }

    /// Requests that are being given back, or will be if a late answer says that they were charged.
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

    /// Forgets what is known of counters and owed to them, because they were reset.
    pub fn forget(&self, keys: &[CounterKey]) {
        if let Some(ledger) = &self.0.ledger {
            keys.iter().for_each(|key| ledger.forget(key));
        }
    }

    /// Forgets the counters of an owner, because they were reset, and what is known of all others.
    pub fn forget_all(&self, owner: &Owner) {
        if let Some(ledger) = &self.0.ledger {
            ledger.forget_all(owner);
        }
    }

    /// Waits until everything is settled, debited, and given back that is to be.
    pub async fn finish(&self) {
        let all = |max| u32::try_from(max).unwrap_or(u32::MAX);
        let finished = async {
            // What is being settled may have something to give back.
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
            && !self.0.inner.settles_whole(&group)
            && Mend::SettlingOutlivesCaller.is_on()
        {
            // Rare, so that what it keeps is not part of every request's future.
            return Box::pin(self.decide_split(group, deadline)).await;
        }
        self.0.decide(group, deadline).await
    }

    /// The same in a task of its own: when the caller leaves, what one part took is still given back if another refuses.
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

impl<S: Store> Shared<S> {
    async fn decide(
        self: &Arc<Self>,
        group: Group,
        deadline: Option<Instant>,
    ) -> Result<Decisions, Deferred> {
        let answers = self.ask(&group, deadline).await;
        if self.ledger.as_ref().is_none_or(Ledger::is_settled)
            && let Some(decisions) = allowed_by_all(&group, &answers)
        {
            return Ok(decisions);
        }
        // Rare, so that what it keeps is not part of every request's future.
        Box::pin(self.conclude(&group, &answers)).await
    }

    /// Asks the store inside, and takes note of its answers.
    async fn ask(&self, group: &Group, deadline: Option<Instant>) -> Answers {
        let Some(ledger) = &self.ledger else {
            return self.inner.decide(Batch::of(Arc::clone(group), deadline)).await;
        };
        let asked = clock::now();
        let answers = self.inner.decide(Batch::of(Arc::clone(group), deadline)).await;
        ledger.note(group, &answers, asked);
        answers
    }

    /// Answers for the store inside where it did not, and gives back what is charged in vain.
    async fn conclude(
        self: &Arc<Self>,
        group: &Group,
        answers: &Answers,
    ) -> Result<Decisions, Deferred> {
        let is_unknown = answers.contains(&Err(StoreError::Unknown));
        // Before anything is awaited.
        let late = is_unknown.then(|| self.inner.late(group)).flatten();
        let guards = |check: &Check| self.ledger.as_ref().is_some_and(|it| it.guards(check));
        let mut conclusion = Conclusion::new(group, answers, self.local.is_some(), guards);
        self.answered.fetch_add(conclusion.failed, Ordering::Relaxed);
        self.concerned.fetch_add(u64::from(conclusion.failed > 0), Ordering::Relaxed);
        if !conclusion.local.is_empty() {
            self.ask_local(group, &mut conclusion).await;
        }
        let refused = refuses(group, &conclusion.decisions);
        let deferred = conclusion.deferred && !refused;
        let leftovers = leftovers(group, &mut conclusion.decisions, refused || deferred);
        if !leftovers.is_empty() {
            self.give_back(leftovers).await;
        }
        if !conclusion.local.is_empty() {
            self.record(group, &conclusion.decisions);
        }
        if let Some(late) = late
            && Mend::LateChargesReturn.is_on()
        {
            // Afterwards: what is not listed to be debited stays charged.
            let in_vain = late::in_vain(group, answers, &conclusion, refused || deferred, guards);
            self.give_back_late(group, in_vain, late);
        }
        for (at, refusal) in conclusion.refused_here {
            if let Some(decision) = conclusion.decisions.get_mut(at) {
                let Decision { granted, receipt, .. } = *decision;
                *decision = Decision { granted, receipt, ..refusal };
            }
        }
        if deferred { Err(Deferred) } else { Ok(conclusion.decisions) }
    }

    /// Asks this process, last of all, so that nothing is charged here for a request that is refused
    /// already.
    async fn ask_local(&self, group: &[Check], conclusion: &mut Conclusion) {
        let Some(local) = &self.local else { return };
        let refused = refuses(group, &conclusion.decisions);
        let asked =
            |at: &usize| !(refused && group.get(*at).is_some_and(|it| it.take.conditional()));
        conclusion.local.retain(|at| asked(at));
        let replicas = local.replicas.get();
        let checks: Group = conclusion
            .local
            .iter()
            .filter_map(|&at| group.get(at))
            .map(|check| Check {
                limit: check.limit.divided(replicas),
                veto: check.veto.of_part(),
                ..check.clone()
            })
            .collect();
        if let Some(ledger) = &self.ledger {
            let asked = conclusion.local.iter().zip(checks.iter()).filter_map(|(&at, share)| {
                Some((group.get(at)?, share, conclusion.decisions.get(at)?.granted))
            });
            ledger.lower(asked, replicas, local);
        }
        let answers = local.store.decide(Batch::of(checks, None)).await;
        for (&at, answer) in conclusion.local.iter().zip(answers) {
            let Some(decision) = conclusion.decisions.get_mut(at) else { continue };
            let here =
                answer.map_or_else(|_| denied(), |it| Decision { source: Source::Local, ..it });
            if decision.source != Source::Store {
                *decision = here;
            } else if !here.allowed {
                decision.allowed = false;
                conclusion.refused_here.push((at, here));
            }
        }
    }

    /// Has what this process admitted debited as soon as the store answers.
    fn record(self: &Arc<Self>, group: &[Check], decisions: &[Decision]) {
        if self.ledger.as_ref().is_some_and(|ledger| ledger.record(group, decisions)) {
            tokio::spawn(Arc::clone(self).settle_debts());
        }
    }

    /// Gives back what was taken: here at once, in the store inside without waiting for it.
    async fn give_back(&self, leftovers: Vec<Leftover>) {
        let (here, inside): (Vec<_>, Vec<_>) =
            leftovers.into_iter().partition(|it| it.source == Source::Local);
        if let (Some(local), false) = (&self.local, here.is_empty()) {
            let replicas = local.replicas.get();
            let here = here.into_iter().map(|Leftover { check, .. }| Check {
                limit: check.limit.divided(replicas),
                ..check
            });
            // Memory: it cannot fail.
            let _given = local.store.decide(Batch::of(here.collect(), None)).await;
        }
        if inside.is_empty() {
            return;
        }
        let inside = inside.into_iter().map(|it| it.check).collect();
        self.give_backs.start(Arc::clone(&self.inner), inside);
    }
}
