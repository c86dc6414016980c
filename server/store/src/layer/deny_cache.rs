//! Caches refusals of the store, and refuses again without asking it.
//!
//! A counter that refused some hits refuses as many or more until the retry time that it reported, unless
//! hits are refunded. So an entry lives that long, but never longer than a second: refunds through
//! other processes are not visible here.

use std::{
    cmp::Ordering,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use foldhash::fast::RandomState;
use quick_cache::{
    UnitWeighter,
    sync::{Cache, DefaultLifecycle},
};
use sluicegate_core::{
    Answers, Batch, Charge, Check, CounterKey, Decision, Limit, Store, StoreError,
    fixes::Fix,
    store::{Group, PendingAnswers, RefusalScope, Source},
};

use super::late::LateAnswers;
use crate::clock;

/// How long a refusal is believed.
const LIFE_MAX: Duration = Duration::from_secs(1);

/// Parts of the hashes of counters, for refunds. Counters of one part are checked once more than
/// needed.
const GIVEN_PARTS: usize = 1024;

/// Answers from memory what the store inside has refused.
#[derive(Debug)]
pub struct DenyCache<S> {
    inner: S,
    remembered: Arc<Remembered>,
    /// Of groups that were asked about in part.
    late: LateAnswers,
}

/// What was refused, and what speaks against it.
#[derive(Debug)]
struct Remembered {
    refusals: Cache<CounterKey, Refusal, UnitWeighter, RandomState>,
    returns: Returns,
}

/// Numbers that rise with each refund or reset: a refusal of a check that was sent before is
/// not cached after.
#[derive(Debug)]
struct Returns {
    latest: AtomicU64,
    /// When all counters were.
    of_all: AtomicU64,
    /// When a counter of each part was.
    of_part: Box<[AtomicU64]>,
}

impl Returns {
    fn new() -> Self {
        let of_part = (0..GIVEN_PARTS).map(|_| AtomicU64::new(0)).collect();
        Self { latest: AtomicU64::new(0), of_all: AtomicU64::new(0), of_part }
    }

    fn part(&self, key: &CounterKey) -> Option<&AtomicU64> {
        let part = key.hash64() % self.of_part.len() as u64;
        self.of_part.get(usize::try_from(part).ok()?)
    }

    /// Notes that the counter may have fewer hits, or that all may.
    fn note(&self, key: Option<&CounterKey>) {
        let number = self.latest.fetch_add(1, SeqCst) + 1;
        let place = key.map_or(Some(&self.of_all), |key| self.part(key));
        place.map(|it| it.fetch_max(number, SeqCst));
    }

    /// Whether that was noted since.
    fn since(&self, asked: u64, key: &CounterKey) -> bool {
        let is_later = |it: &AtomicU64| it.load(SeqCst) > asked;
        let is_heard = Fix::RefundsInvalidateRefusals.is_active();
        is_later(&self.of_all) || is_heard && self.part(key).is_some_and(is_later)
    }
}

/// When a question was asked.
#[derive(Clone, Copy)]
struct Asked {
    at: Instant,
    /// The latest return then.
    returns: u64,
}

/// What was refused.
#[derive(Clone, Copy, Debug)]
struct Refusal {
    /// As many hits, or more, are refused.
    hits: u64,
    /// Under this limit only: a request may bring its own, and files change.
    limit: Limit,
    until: Instant,
    /// When the hits would pass; `None`: never.
    passes_at: Option<Instant>,
    resets_at: Instant,
}

impl Remembered {
    fn forget(&self, key: &CounterKey) {
        self.returns.note(Some(key));
        self.refusals.remove(key);
    }

    /// The answer to a check that is known to be refused.
    fn refused(&self, check: &Check) -> Option<Decision> {
        let Charge::Exactly(hits) = check.charge else { return None };
        if check.refusal_scope != RefusalScope::Request {
            return None;
        }
        let refusal = self.refusals.get(&check.key)?;
        let now = clock::now();
        if refusal.until <= now || refusal.limit != check.limit || hits.max(1) < refusal.hits {
            return None;
        }
        Some(Decision {
            allowed: false,
            charged: 0,
            remaining: 0,
            excess: 0,
            reset_after: refusal.resets_at.saturating_duration_since(now),
            // More hits than were refused wait at least as long.
            retry_after: refusal
                .passes_at
                .filter(|_| hits <= u64::from(check.limit.capacity()))
                .map(|at| at.saturating_duration_since(now)),
            receipt: None,
            source: Source::DenyCache,
        })
    }

    fn remember(&self, check: &Check, decision: &Decision, asked: Asked) {
        let Charge::Exactly(hits) = check.charge else { return };
        if decision.allowed
            || check.refusal_scope != RefusalScope::Request
            || decision.source != Source::Store
        {
            return;
        }
        let now = clock::now();
        let life = decision.retry_after.map_or(LIFE_MAX, |wait| wait.min(LIFE_MAX));
        let refusal = Refusal {
            hits: hits.max(1),
            limit: check.limit,
            // The store may have refused at any moment since it was asked, and a window that ended since is over.
            until: if Fix::RefusalsExpireFromRequest.is_active() { asked.at } else { now } + life,
            passes_at: decision.retry_after.map(|wait| now + wait),
            resets_at: now + decision.reset_after,
        };
        self.refusals.insert(check.key.clone(), refusal);
        // Checked after the insertion: refunds from now on remove it.
        if self.returns.since(asked.returns, &check.key) {
            self.refusals.remove(&check.key);
        }
    }

    /// Looks at what was asked and answered.
    fn learn(&self, group: &[Check], answers: &Answers, asked: Asked) {
        for (check, answer) in group.iter().zip(answers) {
            if gives_back(check) {
                self.forget(&check.key);
            } else if let Ok(decision) = answer
                && !decision.allowed
                && (is_only_one(group, check) || !Fix::RepeatedCountersNotCached.is_active())
            {
                self.remember(check, decision, asked);
            }
        }
    }
}

impl<S: Store> DenyCache<S> {
    /// Remembers at most `entries` refusals of `inner`; with 0 it only hands on.
    pub fn new(inner: S, entries: usize) -> Self {
        let refusals = Cache::with(
            entries,
            u64::try_from(entries).unwrap_or(u64::MAX),
            UnitWeighter,
            RandomState::default(),
            DefaultLifecycle::default(),
        );
        let remembered = Arc::new(Remembered { refusals, returns: Returns::new() });
        Self { inner, remembered, late: LateAnswers::default() }
    }

    /// The store inside.
    pub const fn inner(&self) -> &S {
        &self.inner
    }

    /// Refusals that are remembered, including those that are no longer believed.
    pub fn len(&self) -> usize {
        self.remembered.refusals.len()
    }

    /// Whether nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.remembered.refusals.is_empty()
    }

    /// Late answers that were not taken with [`Store::late_answers`]: none, unless a call of `decide` is just returning.
    pub fn late_kept(&self) -> usize {
        self.late.len()
    }

    /// Forgets everything, because limits or counters were changed.
    pub fn clear(&self) {
        self.remembered.returns.note(None);
        self.remembered.refusals.clear();
    }

    /// Forgets what is known of these counters, because they were reset.
    pub fn forget(&self, keys: &[CounterKey]) {
        keys.iter().for_each(|key| self.remembered.forget(key));
    }

    /// The answers to a group of which a first check is known to be refused: nothing is asked but what is
    /// charged whatever the others say.
    async fn refuse(
        &self,
        group: &Group,
        (first, decision): (usize, Decision),
        deadline: Option<Instant>,
    ) -> Answers {
        let refused = |at: usize, check: &Check| match at.cmp(&first) {
            Ordering::Less => None,
            Ordering::Equal => Some(decision),
            Ordering::Greater => self.remembered.refused(check),
        };
        let unconditional = |check: &&Check| !check.charge.is_conditional();
        let asked: Group = group.iter().filter(unconditional).cloned().collect();
        let answers = if asked.is_empty() {
            Answers::new()
        } else {
            let answers = self.ask(Arc::clone(&asked), deadline).await;
            if let Some(late) = self.inner.late_answers(&asked) {
                self.late.keep(group, Box::pin(of_whole(Arc::clone(group), late)));
            }
            answers
        };
        let mut answers = answers.into_iter();
        group
            .iter()
            .enumerate()
            .map(|(at, check)| {
                if !check.charge.is_conditional() {
                    return answers.next().unwrap_or(Err(StoreError::Unknown));
                }
                Ok(refused(at, check).unwrap_or_else(|| not_asked(check)))
            })
            .collect()
    }

    async fn decide_one(&self, group: Group, deadline: Option<Instant>) -> Answers {
        let first = |(at, check)| self.remembered.refused(check).map(|decision| (at, decision));
        if let Some(first) = group.iter().enumerate().find_map(first) {
            // What this keeps is not to be part of every request's future.
            return Box::pin(self.refuse(&group, first, deadline)).await;
        }
        self.ask(group, deadline).await
    }

    async fn ask(&self, group: Group, deadline: Option<Instant>) -> Answers {
        let returns = self.remembered.returns.latest.load(SeqCst);
        let asked = Asked { at: clock::now(), returns };
        let answers = self.inner.decide(Batch::single(Arc::clone(&group), deadline)).await;
        self.remembered.learn(&group, &answers, asked);
        answers
    }
}

impl<S: Store> Store for DenyCache<S> {
    fn settles_atomically(&self, checks: &[Check]) -> bool {
        self.inner.settles_atomically(checks)
    }

    fn late_answers(&self, group: &Group) -> Option<PendingAnswers> {
        let late = self.inner.late_answers(group).or_else(|| self.late.take(group))?;
        if !group.iter().any(gives_back) {
            return Some(late);
        }
        let (remembered, group) = (Arc::clone(&self.remembered), Arc::clone(group));
        Some(Box::pin(async move {
            let answers = late.await;
            // The store has refused until then.
            let given_back = group.iter().filter(|check| gives_back(check));
            given_back.for_each(|check| remembered.forget(&check.key));
            answers
        }))
    }

    fn is_available(&self, key: &CounterKey) -> bool {
        self.inner.is_available(key)
    }

    async fn decide(&self, batch: Batch) -> Answers {
        if self.remembered.refusals.capacity() == 0 {
            return self.inner.decide(batch).await;
        }
        let Batch { mut groups, deadline } = batch;
        if groups.len() == 1
            && let Some(group) = groups.pop()
        {
            return self.decide_one(group, deadline).await;
        }
        let mut answers = Answers::new();
        for group in groups {
            answers.extend(self.decide_one(group, deadline).await);
        }
        answers
    }
}

/// The late answers to a group of which only the unconditional checks were asked about.
async fn of_whole(group: Group, late: PendingAnswers) -> Answers {
    let mut asked = late.await.into_iter();
    let answer = |check: &Check| {
        let asked = (!check.charge.is_conditional()).then(|| asked.next()).flatten();
        asked.unwrap_or(Err(StoreError::Unknown))
    };
    group.iter().map(answer).collect()
}

fn gives_back(check: &Check) -> bool {
    let Charge::Refund { receipt, .. } = check.charge else { return false };
    receipt.is_none() || Fix::UndoneChargesInvalidateRefusals.is_active()
}

/// Whether no other check of the group is on the same counter. The charge of one may have been refunded because the
/// other was refused.
fn is_only_one(group: &[Check], check: &Check) -> bool {
    group.iter().filter(|it| it.key == check.key).count() == 1
}

/// Says nothing about the counter.
fn not_asked(check: &Check) -> Decision {
    Decision {
        allowed: true,
        charged: 0,
        remaining: u64::from(check.limit.capacity()),
        excess: 0,
        reset_after: Duration::ZERO,
        retry_after: Some(Duration::ZERO),
        receipt: None,
        source: Source::NotAsked,
    }
}
