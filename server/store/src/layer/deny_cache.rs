//! The deny cache: repeats refusals of the store without a call to it.
//!
//! A counter that refused some hits refuses as many or more until the retry time that it reported, unless
//! hits are refunded or the counter is reset. So an entry expires at that time, and after a second at the latest,
//! because this process does not see refunds and resets by other processes. A refund or reset by this process removes
//! the entry.

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
    defect_fixes::DefectFix,
    store::{DecisionSource, Group, LateAnswersFuture, RefusalScope},
};

use super::{late_answers_map::LateAnswersMap, uncounted_decision};
use crate::clock;

/// The longest time for which a refusal is cached.
const LIFETIME_MAX: Duration = Duration::from_secs(1);

/// Hash buckets of counters in [`InvalidationNumbers`]. Counters share buckets, so a refund of one also keeps the
/// pending refusals of the others out of the cache.
const INVALIDATION_BUCKETS: usize = 1024;

/// A layer that caches refusals of a store.
#[derive(Debug)]
pub struct DenyCache<S> {
    inner: S,
    cached: Arc<CachedRefusals>,
    /// Late answers to groups of which only some checks were sent.
    late_answers: LateAnswersMap,
}

#[derive(Debug)]
struct CachedRefusals {
    refusals: Cache<CounterKey, Refusal, UnitWeighter, RandomState>,
    invalidations: InvalidationNumbers,
}

/// When counters were last refunded or reset, as numbers that increase by one with each refund or reset. A refusal is
/// not cached if its check was sent before the last refund of its counter: it may be outdated.
#[derive(Debug)]
struct InvalidationNumbers {
    /// Number of the latest refund or reset.
    latest: AtomicU64,
    /// Number of the latest clearing of the whole cache.
    cleared: AtomicU64,
    /// For each bucket, number of the latest refund or reset of one of its counters.
    buckets: Box<[AtomicU64]>,
}

impl InvalidationNumbers {
    fn new() -> Self {
        let buckets = (0..INVALIDATION_BUCKETS).map(|_| AtomicU64::new(0)).collect();
        Self { latest: AtomicU64::new(0), cleared: AtomicU64::new(0), buckets }
    }

    fn bucket(&self, key: &CounterKey) -> Option<&AtomicU64> {
        let bucket = key.hash64() % self.buckets.len() as u64;
        self.buckets.get(usize::try_from(bucket).ok()?)
    }

    /// Records a refund or reset of a counter, or with `None` a clearing of the whole cache.
    fn record(&self, key: Option<&CounterKey>) {
        let number = self.latest.fetch_add(1, SeqCst) + 1;
        let bucket = key.map_or(Some(&self.cleared), |key| self.bucket(key));
        bucket.map(|it| it.fetch_max(number, SeqCst));
    }

    /// Whether the counter may have been refunded or reset after the refund or reset of this number.
    fn any_since(&self, number: u64, key: &CounterKey) -> bool {
        let is_later = |it: &AtomicU64| it.load(SeqCst) > number;
        let has_buckets = DefectFix::RefundsInvalidateRefusals.is_active();
        is_later(&self.cleared) || has_buckets && self.bucket(key).is_some_and(is_later)
    }
}

/// When a check was sent to the store.
#[derive(Clone, Copy)]
struct SentAt {
    time: Instant,
    /// Number of the latest refund or reset at that time.
    invalidation: u64,
}

/// A refusal of the store.
#[derive(Clone, Copy, Debug)]
struct Refusal {
    /// The refused hits. As many or more are refused again.
    hits: u64,
    /// The limit that was exceeded. A check of the counter under another limit, of an override or a changed limits
    /// file, may be allowed.
    limit: Limit,
    /// When the entry expires.
    expires_at: Instant,
    /// When the hits could pass; `None`: never.
    passes_at: Option<Instant>,
    resets_at: Instant,
}

impl CachedRefusals {
    /// Removes the refusal of a counter. Refusals of its checks in flight will not be cached.
    fn invalidate(&self, key: &CounterKey) {
        self.invalidations.record(Some(key));
        self.refusals.remove(key);
    }

    /// The decision on a check whose refusal is cached.
    fn refusal_of(&self, check: &Check) -> Option<Decision> {
        let Charge::IfAllowed(hits) = check.charge else { return None };
        if check.refusal_scope != RefusalScope::Request {
            return None;
        }
        let refusal = self.refusals.get(&check.key)?;
        let now = clock::now();
        if refusal.expires_at <= now || refusal.limit != check.limit || hits.max(1) < refusal.hits {
            return None;
        }
        Some(Decision {
            allowed: false,
            charged: 0,
            remaining: 0,
            excess: 0,
            reset_after: refusal.resets_at.saturating_duration_since(now),
            // More hits than were refused have to wait at least as long.
            retry_after: refusal
                .passes_at
                .filter(|_| hits <= u64::from(check.limit.capacity()))
                .map(|at| at.saturating_duration_since(now)),
            receipt: None,
            source: DecisionSource::DenyCache,
        })
    }

    /// Caches the decision if it is a refusal by the store.
    fn insert(&self, check: &Check, decision: &Decision, sent: SentAt) {
        let Charge::IfAllowed(hits) = check.charge else { return };
        if decision.allowed
            || check.refusal_scope != RefusalScope::Request
            || decision.source != DecisionSource::Store
        {
            return;
        }
        let now = clock::now();
        let lifetime = decision.retry_after.map_or(LIFETIME_MAX, |wait| wait.min(LIFETIME_MAX));
        let refusal = Refusal {
            hits: hits.max(1),
            limit: check.limit,
            // Counted from the sending: the store may have decided at any time since then, and its window may have
            // ended.
            expires_at: if DefectFix::RefusalsExpireFromRequest.is_active() {
                sent.time
            } else {
                now
            } + lifetime,
            passes_at: decision.retry_after.map(|wait| now + wait),
            resets_at: now + decision.reset_after,
        };
        self.refusals.insert(check.key.clone(), refusal);
        // Checked after the insertion, because refunds from then on remove the entry.
        if self.invalidations.any_since(sent.invalidation, &check.key) {
            self.refusals.remove(&check.key);
        }
    }

    /// Caches the refusals of a group's answers, and invalidates those of counters that it refunded.
    fn update(&self, group: &[Check], answers: &Answers, sent: SentAt) {
        for (check, answer) in group.iter().zip(answers) {
            if invalidates_refusals(check) {
                self.invalidate(&check.key);
            } else if let Ok(decision) = answer
                && !decision.allowed
                && (is_only_check_of_counter(group, check)
                    || !DefectFix::RepeatedCountersNotCached.is_active())
            {
                self.insert(check, decision, sent);
            }
        }
    }
}

impl<S: Store> DenyCache<S> {
    /// Caches at most `entries` refusals of `inner`; with 0, every check goes to `inner`.
    pub fn new(inner: S, entries: usize) -> Self {
        let refusals = Cache::with(
            entries,
            u64::try_from(entries).unwrap_or(u64::MAX),
            UnitWeighter,
            RandomState::default(),
            DefaultLifecycle::default(),
        );
        let cached =
            Arc::new(CachedRefusals { refusals, invalidations: InvalidationNumbers::new() });
        Self { inner, cached, late_answers: LateAnswersMap::default() }
    }

    /// The wrapped store.
    pub const fn inner(&self) -> &S {
        &self.inner
    }

    /// Cached refusals, including expired ones.
    pub fn len(&self) -> usize {
        self.cached.refusals.len()
    }

    /// Whether no refusal is cached.
    pub fn is_empty(&self) -> bool {
        self.cached.refusals.is_empty()
    }

    /// Late answers that were not retrieved with [`Store::late_answers`]: 0 except while a call of `decide` returns.
    pub fn late_answers_uncollected(&self) -> usize {
        self.late_answers.len()
    }

    /// Removes all refusals, because limits or counters were changed.
    pub fn clear(&self) {
        self.cached.invalidations.record(None);
        self.cached.refusals.clear();
    }

    /// Removes the refusals of these counters, because they were reset.
    pub fn invalidate(&self, keys: &[CounterKey]) {
        keys.iter().for_each(|key| self.cached.invalidate(key));
    }

    /// Refuses a group from the cache. `first` is the position of its first check with a cached refusal. Sends only the
    /// unconditional charges to the store, because they are made in any case.
    async fn refuse(
        &self,
        group: &Group,
        (first, decision): (usize, Decision),
        deadline: Option<Instant>,
    ) -> Answers {
        let refused = |at: usize, check: &Check| match at.cmp(&first) {
            Ordering::Less => None,
            Ordering::Equal => Some(decision),
            Ordering::Greater => self.cached.refusal_of(check),
        };
        let unconditional = |check: &&Check| !check.charge.is_conditional();
        let sent: Group = group.iter().filter(unconditional).cloned().collect();
        let answers = if sent.is_empty() {
            Answers::new()
        } else {
            let answers = self.send(Arc::clone(&sent), deadline).await;
            if let Some(late) = self.inner.late_answers(&sent) {
                self.late_answers.insert(group, Box::pin(of_whole_group(Arc::clone(group), late)));
            }
            answers
        };
        let mut answers = answers.into_iter();
        group
            .iter()
            .enumerate()
            .map(|(at, check)| {
                if !check.charge.is_conditional() {
                    return answers.next().unwrap_or(Err(StoreError::OutcomeUnknown));
                }
                // Not sent, because another check of its group is refused.
                Ok(refused(at, check)
                    .unwrap_or_else(|| uncounted_decision(check, DecisionSource::NotAsked)))
            })
            .collect()
    }

    async fn decide_one(&self, group: Group, deadline: Option<Instant>) -> Answers {
        let first = |(at, check)| self.cached.refusal_of(check).map(|decision| (at, decision));
        if let Some(first) = group.iter().enumerate().find_map(first) {
            // Boxed, because it would enlarge the future of every request.
            return Box::pin(self.refuse(&group, first, deadline)).await;
        }
        self.send(group, deadline).await
    }

    async fn send(&self, group: Group, deadline: Option<Instant>) -> Answers {
        let invalidation = self.cached.invalidations.latest.load(SeqCst);
        let sent = SentAt { time: clock::now(), invalidation };
        let answers = self.inner.decide(Batch::single(Arc::clone(&group), deadline)).await;
        self.cached.update(&group, &answers, sent);
        answers
    }
}

impl<S: Store> Store for DenyCache<S> {
    fn settles_atomically(&self, checks: &[Check]) -> bool {
        self.inner.settles_atomically(checks)
    }

    fn late_answers(&self, group: &Group) -> Option<LateAnswersFuture> {
        let late = self.inner.late_answers(group).or_else(|| self.late_answers.take(group))?;
        if !group.iter().any(invalidates_refusals) {
            return Some(late);
        }
        let (cached, group) = (Arc::clone(&self.cached), Arc::clone(group));
        Some(Box::pin(async move {
            let answers = late.await;
            // The store may have refused other checks before it ran the refund.
            let refunds = group.iter().filter(|check| invalidates_refusals(check));
            refunds.for_each(|check| cached.invalidate(&check.key));
            answers
        }))
    }

    fn is_available(&self, key: &CounterKey) -> bool {
        self.inner.is_available(key)
    }

    async fn decide(&self, batch: Batch) -> Answers {
        if self.cached.refusals.capacity() == 0 {
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

/// The late answers to a whole group of which only the unconditional charges were sent. `late` has the answers to
/// these charges.
async fn of_whole_group(group: Group, late: LateAnswersFuture) -> Answers {
    let mut late = late.await.into_iter();
    let answer = |check: &Check| {
        let late = (!check.charge.is_conditional()).then(|| late.next()).flatten();
        late.unwrap_or(Err(StoreError::OutcomeUnknown))
    };
    group.iter().map(answer).collect()
}

/// Whether the check is a refund, after which the counter may allow hits that it refused before.
fn invalidates_refusals(check: &Check) -> bool {
    let Charge::Refund { receipt, .. } = check.charge else { return false };
    receipt.is_none() || DefectFix::UndoneChargesInvalidateRefusals.is_active()
}

/// Whether no other check of the group is on the same counter. A check may have been refused only because of the charge
/// of another one, which the refusal then undid.
fn is_only_check_of_counter(group: &[Check], check: &Check) -> bool {
    group.iter().filter(|it| it.key == check.key).count() == 1
}
