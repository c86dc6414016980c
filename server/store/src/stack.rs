//! The stores as they are put together at start-up.

use std::{
    num::NonZeroU32,
    sync::Arc,
    time::{Duration, Instant},
};

use sluicegate_core::{Answers, Batch, CounterKey, Store as _, key::TenantKeys, store::Group};

use crate::{
    Clock, Clocks, Coalesce, Decisions, Deferred, DenyCache, FailurePolicy, FallbackStats, Inspect,
    LiveReplicas, Local, Memory, MemorySettings, Redis, Reset, Step, Unavailable,
    redis::{FileError, RedisSettings},
};

/// A clock of whatever kind.
type AnyClock = Arc<dyn Clock>;

/// The store with its layers.
///
/// ```text
/// FailurePolicy → Memory          FailurePolicy → DenyCache → Coalesce → Redis
/// ```
///
/// Leases will be between the deny cache and coalescing.
#[derive(Debug)]
pub enum Stack {
    /// Counters in this process.
    Memory(FailurePolicy<Memory<AnyClock>>),
    /// Counters in Redis.
    Redis(Box<FailurePolicy<DenyCache<Coalesce<Redis>>>>),
}

/// What a stack with Redis needs beside it.
#[derive(Clone, Debug)]
pub struct RedisStackSettings {
    /// Where Redis is.
    pub redis: RedisSettings,
    /// The most refusals that are remembered; 0 for none.
    pub deny_cache_entries: usize,
    /// Counters of this process alone, for when Redis cannot be asked.
    pub local: MemorySettings,
    /// The most recently asked counters that are known, so that those start from what Redis last reported; 0 for none.
    pub fallback_counters: usize,
    /// Processes among which a limit is divided then; `None`: as many as were last seen.
    pub replicas: Option<NonZeroU32>,
}

/// Where a search in a stack's store continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cursor {
    /// In memory.
    Memory(<Memory<AnyClock> as Inspect>::Cursor),
    /// In Redis.
    Redis(<Redis as Inspect>::Cursor),
}

impl Cursor {
    fn in_memory(self) -> Option<<Memory<AnyClock> as Inspect>::Cursor> {
        if let Self::Memory(cursor) = self { Some(cursor) } else { None }
    }

    fn in_redis(self) -> Option<<Redis as Inspect>::Cursor> {
        if let Self::Redis(cursor) = self { Some(cursor) } else { None }
    }
}

impl Stack {
    /// Counters in this process.
    pub fn memory(settings: MemorySettings, clocks: Clocks) -> Self {
        Self::Memory(FailurePolicy::new(Memory::new(settings, clocks.memory), None))
    }

    /// Counters in Redis, and in this process while it cannot be asked.
    ///
    /// # Errors
    /// A file that the connection needs cannot be used.
    pub fn redis(settings: RedisStackSettings, clocks: Clocks) -> Result<Self, FileError> {
        let RedisStackSettings { redis, deny_cache_entries, local, fallback_counters, replicas } =
            settings;
        let known = replicas.map_or_else(LiveReplicas::default, LiveReplicas::new);
        let heard = replicas.is_none().then(|| known.clone());
        let connections = redis.connections;
        let store = Coalesce::new(Redis::start(redis, heard, clocks.redis)?, connections);
        let store = DenyCache::new(store, deny_cache_entries);
        let store_here = Memory::new(local, clocks.memory);
        let local = Local { store: store_here, replicas: known, known_max: fallback_counters };
        Ok(Self::Redis(Box::new(FailurePolicy::new(store, Some(local)))))
    }

    /// Waits until the store can be asked, for so long at most.
    pub async fn connected(&self, within: Duration) {
        if let Some(redis) = self.in_redis() {
            redis.connected(within).await;
        }
    }

    /// Decides every check of a group, by the deadline.
    ///
    /// # Errors
    /// The store could not answer, and a rule leaves it to the caller what that means.
    pub async fn decide(
        &self,
        group: Group,
        deadline: Option<Instant>,
    ) -> Result<Decisions, Deferred> {
        match self {
            Self::Memory(policy) => policy.decide(group, deadline).await,
            Self::Redis(policy) => policy.decide(group, deadline).await,
        }
    }

    /// Asks the store itself about a group that charges nothing, without the layers: neither the deny cache nor a failure
    /// policy answers, and nothing is cached.
    pub async fn peek(&self, group: Group, deadline: Option<Instant>) -> Answers {
        let batch = Batch::single(group, deadline);
        match self {
            Self::Memory(policy) => policy.inner().decide(batch).await,
            Self::Redis(policy) => policy.inner().inner().inner().decide(batch).await,
        }
    }

    /// What the store is called in settings: `memory`, or the scheme of its address.
    pub fn kind(&self) -> &'static str {
        self.in_redis().map_or("memory", Redis::scheme)
    }

    /// Resets counters in the store, see [`Inspect::reset`](crate::Inspect::reset), and whatever this process knows of them beside it. From
    /// then on a decision of this process sees them as never used, until they are used again.
    ///
    /// # Errors
    /// The store cannot be asked. Where it may have reset them all the same, this process has forgotten them.
    pub async fn reset(&self, keys: &[CounterKey], reset: Reset) -> Result<u64, Unavailable> {
        let policy = match self {
            Self::Memory(policy) => return policy.inner().reset(keys, reset).await,
            Self::Redis(policy) => policy,
        };
        if reset == Reset::DryRun {
            return policy.inner().inner().inner().reset(keys, reset).await;
        }
        // Hits from before the reset must not be debited after it.
        policy.hold(keys).await;
        let outcome = policy.inner().inner().inner().reset(keys, reset).await;
        if matches!(outcome, Ok(_) | Err(Unavailable::Unknown(_))) {
            if let Some(local) = policy.local() {
                local.store.reset(keys, reset).await?;
            }
            policy.forget(keys);
            policy.inner().forget(keys);
        } else {
            policy.release(keys);
        }
        outcome
    }

    /// Finds counters of an owner in the store, see [`Inspect::step`](crate::Inspect::step).
    ///
    /// # Errors
    /// The store cannot be asked.
    pub async fn step(
        &self,
        owner: &TenantKeys,
        from: Option<Cursor>,
    ) -> Result<Step<Cursor>, Unavailable> {
        match self {
            Self::Memory(policy) => {
                let from = from.and_then(Cursor::in_memory);
                let Step { found, next } = policy.inner().step(owner, from).await?;
                Ok(Step { found, next: next.map(Cursor::Memory) })
            }
            Self::Redis(policy) => {
                let from = from.and_then(Cursor::in_redis);
                let redis = policy.inner().inner().inner();
                let Step { found, next } = redis.step(owner, from).await?;
                Ok(Step { found, next: next.map(Cursor::Redis) })
            }
        }
    }

    /// Resets the local counters of an owner, and the hits to debit for them.
    /// Forgets all refusals and reports of all counters: some may be of counters that the store no longer had.
    ///
    /// # Errors
    /// None: this is memory.
    pub async fn reset_local(&self, owner: &TenantKeys) -> Result<(), Unavailable> {
        let Self::Redis(policy) = self else { return Ok(()) };
        if let Some(local) = policy.local() {
            let mut from = None;
            loop {
                let step = local.store.step(owner, from).await?;
                local.store.reset(&step.found, Reset::Now).await?;
                from = step.next;
                tokio::task::yield_now().await;
                if from.is_none() {
                    break;
                }
            }
        }
        policy.forget_all(owner);
        policy.inner().clear();
        Ok(())
    }

    /// Waits until all refunds and debits are done, because the process ends.
    pub async fn finish(&self) {
        match self {
            Self::Memory(policy) => policy.finish().await,
            Self::Redis(policy) => policy.finish().await,
        }
    }

    /// Counters in this process's memory.
    pub fn counters(&self) -> usize {
        self.in_memory().map_or(0, Memory::len)
    }

    /// Drops expired counters from this process's memory, looking at so many of each shard.
    pub fn sweep(&self, steps: usize) {
        if let Some(memory) = self.in_memory() {
            memory.sweep(steps);
        }
    }

    /// Forgets what was refused, because limits have changed.
    pub fn limits_changed(&self) {
        if let Self::Redis(policy) = self {
            policy.inner().clear();
        }
    }

    /// Redis, if counters are kept there.
    pub fn in_redis(&self) -> Option<&Redis> {
        self.coalesced().map(Coalesce::inner)
    }

    /// Groups that wait for a call to Redis.
    pub fn waiting(&self) -> usize {
        self.coalesced().map_or(0, Coalesce::waiting)
    }

    /// Sets a listener for the number of groups, or parts of them, in each call to Redis. Only the first listener is used.
    pub fn on_batch(&self, listener: impl Fn(usize) + Send + Sync + 'static) {
        if let Some(coalesced) = self.coalesced() {
            coalesced.on_batch(listener);
        }
    }

    /// Unknown hits: Redis did not report whether it charged or refunded them.
    pub fn hits_unknown(&self) -> u64 {
        let not_returned = match self {
            Self::Memory(policy) => policy.hits_not_returned(),
            Self::Redis(policy) => policy.hits_not_returned(),
        };
        self.coalesced().map_or(0, Coalesce::hits_unknown) + not_returned
    }

    /// Give-backs in progress, and calls to Redis whose late replies are awaited.
    pub fn settlements_pending(&self) -> usize {
        let give_backs = match self {
            Self::Memory(policy) => policy.give_backs(),
            Self::Redis(policy) => policy.give_backs(),
        };
        self.coalesced().map_or(0, Coalesce::late_calls) + give_backs
    }

    /// Whether the store's answers are sufficient for every counter: none has local hits that are to be debited, or
    /// were debited just now.
    pub fn is_settled(&self) -> bool {
        match self {
            Self::Memory(policy) => policy.is_settled(),
            Self::Redis(policy) => policy.is_settled(),
        }
    }

    /// Late answers that are kept for requests in progress: none if there are none.
    pub fn late_kept(&self) -> usize {
        match self {
            Self::Memory(_) => 0,
            Self::Redis(policy) => policy.inner().late_kept() + policy.inner().inner().late_kept(),
        }
    }

    fn coalesced(&self) -> Option<&Coalesce<Redis>> {
        match self {
            Self::Memory(_) => None,
            Self::Redis(policy) => Some(policy.inner().inner()),
        }
    }

    /// Refusals that are remembered.
    pub fn refusals(&self) -> usize {
        match self {
            Self::Memory(_) => 0,
            Self::Redis(policy) => policy.inner().len(),
        }
    }

    /// Processes that share the counters, as far as is known.
    pub fn replicas(&self) -> NonZeroU32 {
        let local = match self {
            Self::Memory(_) => None,
            Self::Redis(policy) => policy.local(),
        };
        local.map_or(NonZeroU32::MIN, |local| local.replicas.get())
    }

    /// Whether some counters cannot be asked.
    pub fn is_degraded(&self) -> bool {
        self.in_redis().is_some_and(Redis::is_degraded)
    }

    /// For how long some counters could not be asked, all times together.
    pub fn degraded_for(&self) -> Duration {
        self.in_redis().map_or(Duration::ZERO, Redis::degraded_for)
    }

    /// Checks that the store has not answered so far.
    pub fn unanswered(&self) -> u64 {
        match self {
            Self::Memory(policy) => policy.answered(),
            Self::Redis(policy) => policy.answered(),
        }
    }

    /// Requests of which the store has not answered every check so far.
    pub fn requests_unanswered(&self) -> u64 {
        match self {
            Self::Memory(policy) => policy.concerned(),
            Self::Redis(policy) => policy.concerned(),
        }
    }

    /// Requests of several parts that are being settled.
    pub fn split(&self) -> usize {
        match self {
            Self::Memory(policy) => policy.split(),
            Self::Redis(policy) => policy.split(),
        }
    }

    /// Requests of several parts that were settled after their callers had left.
    pub fn abandoned(&self) -> u64 {
        match self {
            Self::Memory(policy) => policy.abandoned(),
            Self::Redis(policy) => policy.abandoned(),
        }
    }

    /// Numbers of the local fallback.
    pub fn fallback(&self) -> FallbackStats {
        match self {
            Self::Memory(policy) => policy.fallback(),
            Self::Redis(policy) => policy.fallback(),
        }
    }

    /// Failed refunds so far.
    pub fn give_backs_failed(&self) -> u64 {
        match self {
            Self::Memory(policy) => policy.give_backs_failed(),
            Self::Redis(policy) => policy.give_backs_failed(),
        }
    }

    fn in_memory(&self) -> Option<&Memory<AnyClock>> {
        match self {
            Self::Memory(policy) => Some(policy.inner()),
            Self::Redis(policy) => policy.local().map(|local| &local.store),
        }
    }
}
