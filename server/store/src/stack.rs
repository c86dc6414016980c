//! The composition of store and layers at start-up.

use std::{
    num::NonZeroU32,
    sync::Arc,
    time::{Duration, Instant},
};

use sluicegate_core::{Answers, Batch, CounterKey, Store as _, key::TenantKeys, store::Group};

use crate::{
    Clock, Clocks, Coalesce, Decisions, Deferred, DenyCache, FailurePolicy, FallbackStats, Inspect,
    InspectError, LiveReplicas, LocalFallback, Memory, MemorySettings, Redis, ResetMode, ScanStep,
    redis::{FileError, RedisSettings},
};

/// Any clock.
type AnyClock = Arc<dyn Clock>;

/// The store with its layers.
///
/// ```text
/// FailurePolicy → Memory          FailurePolicy → DenyCache → Coalesce → Redis
/// ```
#[derive(Debug)]
pub enum Stack {
    /// Counters in this process.
    Memory(FailurePolicy<Memory<AnyClock>>),
    /// Counters in Redis.
    Redis(Box<FailurePolicy<DenyCache<Coalesce<Redis>>>>),
}

/// Settings of a stack with Redis.
#[derive(Clone, Debug)]
pub struct RedisStackSettings {
    /// The Redis servers.
    pub redis: RedisSettings,
    /// The most refusals in the deny cache; 0 disables it.
    pub deny_cache_entries: usize,
    /// The counters of the local fallback.
    pub local: MemorySettings,
    /// The most counters for which Redis' last report is kept; 0 for none. The local fallback starts from these
    /// reports.
    pub fallback_counters: usize,
    /// The number of replicas that share a limit in the local fallback; `None`: as many as heartbeats last counted.
    pub replicas: Option<NonZeroU32>,
}

/// Where a scan of a stack's store continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cursor {
    /// In memory.
    Memory(<Memory<AnyClock> as Inspect>::Cursor),
    /// In Redis.
    Redis(<Redis as Inspect>::Cursor),
}

impl Cursor {
    fn into_memory(self) -> Option<<Memory<AnyClock> as Inspect>::Cursor> {
        if let Self::Memory(cursor) = self { Some(cursor) } else { None }
    }

    fn into_redis(self) -> Option<<Redis as Inspect>::Cursor> {
        if let Self::Redis(cursor) = self { Some(cursor) } else { None }
    }
}

impl Stack {
    /// Counters in this process.
    pub fn memory(settings: MemorySettings, clocks: Clocks) -> Self {
        Self::Memory(FailurePolicy::new(Memory::new(settings, clocks.memory), None))
    }

    /// Counters in Redis, with a local fallback in this process.
    ///
    /// # Errors
    /// A password or TLS file cannot be used.
    pub fn redis(settings: RedisStackSettings, clocks: Clocks) -> Result<Self, FileError> {
        let RedisStackSettings { redis, deny_cache_entries, local, fallback_counters, replicas } =
            settings;
        let live = replicas.map_or_else(LiveReplicas::default, LiveReplicas::new);
        let counted = replicas.is_none().then(|| live.clone());
        let connections = redis.connections;
        let store = Coalesce::new(Redis::start(redis, counted, clocks.redis)?, connections);
        let store = DenyCache::new(store, deny_cache_entries);
        let memory = Memory::new(local, clocks.memory);
        let local =
            LocalFallback { store: memory, replicas: live, counters_max: fallback_counters };
        Ok(Self::Redis(Box::new(FailurePolicy::new(store, Some(local)))))
    }

    /// Waits until every counter is available, at most for `within`.
    pub async fn wait_until_available(&self, within: Duration) {
        if let Some(redis) = self.as_redis() {
            redis.wait_until_available(within).await;
        }
    }

    /// Decides every check of a group, by the deadline.
    ///
    /// # Errors
    /// The store did not answer a check whose rule has `on_failure: defer`.
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

    /// Reads the counters of a group of peeks from the store, without the layers: neither the deny cache nor a failure
    /// policy answers, and no answer is cached.
    pub async fn peek(&self, group: Group, deadline: Option<Instant>) -> Answers {
        let batch = Batch::single(group, deadline);
        match self {
            Self::Memory(policy) => policy.inner().decide(batch).await,
            Self::Redis(policy) => policy.inner().inner().inner().decide(batch).await,
        }
    }

    /// The store's name in settings: `memory`, or the URL scheme without TLS.
    pub fn kind(&self) -> &'static str {
        self.as_redis().map_or("memory", Redis::scheme)
    }

    /// Resets counters in the store, see [`Inspect::reset`](crate::Inspect::reset), and in this process: in the local
    /// fallback, its reports and debits, and the deny cache. Later decisions of this process see them as unused.
    ///
    /// # Errors
    /// The store is unavailable. If it is unknown whether it has reset the counters, they are still reset in this
    /// process.
    pub async fn reset(&self, keys: &[CounterKey], mode: ResetMode) -> Result<u64, InspectError> {
        let policy = match self {
            Self::Memory(policy) => return policy.inner().reset(keys, mode).await,
            Self::Redis(policy) => policy,
        };
        if mode == ResetMode::DryRun {
            return policy.inner().inner().inner().reset(keys, mode).await;
        }
        // Hits from before the reset must not be debited after it.
        policy.suspend_debits(keys).await;
        let outcome = policy.inner().inner().inner().reset(keys, mode).await;
        if matches!(outcome, Ok(_) | Err(InspectError::Unknown(_))) {
            if let Some(local) = policy.local() {
                local.store.reset(keys, mode).await?;
            }
            policy.forget(keys);
            policy.inner().invalidate(keys);
        } else {
            policy.resume_debits(keys);
        }
        outcome
    }

    /// One step of a scan for the counters of a tenant in the store, see [`Inspect::scan`](crate::Inspect::scan).
    ///
    /// # Errors
    /// The store is unavailable.
    pub async fn scan(
        &self,
        tenant: &TenantKeys,
        from: Option<Cursor>,
    ) -> Result<ScanStep<Cursor>, InspectError> {
        match self {
            Self::Memory(policy) => {
                let from = from.and_then(Cursor::into_memory);
                let ScanStep { found, next } = policy.inner().scan(tenant, from).await?;
                Ok(ScanStep { found, next: next.map(Cursor::Memory) })
            }
            Self::Redis(policy) => {
                let from = from.and_then(Cursor::into_redis);
                let redis = policy.inner().inner().inner();
                let ScanStep { found, next } = redis.scan(tenant, from).await?;
                Ok(ScanStep { found, next: next.map(Cursor::Redis) })
            }
        }
    }

    /// Resets the local counters of a tenant and its hits to be debited. Clears the deny cache and the last reports of
    /// all counters, because these may include counters of the tenant that no longer exist in the store.
    ///
    /// # Errors
    /// Never fails, because the local fallback is memory.
    pub async fn reset_local(&self, tenant: &TenantKeys) -> Result<(), InspectError> {
        let Self::Redis(policy) = self else { return Ok(()) };
        if let Some(local) = policy.local() {
            let mut from = None;
            loop {
                let step = local.store.scan(tenant, from).await?;
                local.store.reset(&step.found, ResetMode::Delete).await?;
                from = step.next;
                tokio::task::yield_now().await;
                if from.is_none() {
                    break;
                }
            }
        }
        policy.forget_tenant(tenant);
        policy.inner().clear();
        Ok(())
    }

    /// Waits for multi-slot requests, refunds and debits at shutdown, at most
    /// [`FINISH_TIMEOUT`](crate::FINISH_TIMEOUT).
    pub async fn finish(&self) {
        match self {
            Self::Memory(policy) => policy.finish().await,
            Self::Redis(policy) => policy.finish().await,
        }
    }

    /// Counters in this process's memory.
    pub fn counters_in_memory(&self) -> usize {
        self.as_memory().map_or(0, Memory::len)
    }

    /// Removes expired counters from this process's memory, from the next `steps` buckets of each shard.
    pub fn sweep(&self, steps: usize) {
        if let Some(memory) = self.as_memory() {
            memory.sweep(steps);
        }
    }

    /// Clears the deny cache, because limits have changed.
    pub fn clear_deny_cache(&self) {
        if let Self::Redis(policy) = self {
            policy.inner().clear();
        }
    }

    /// The Redis store, if counters are in Redis.
    pub fn as_redis(&self) -> Option<&Redis> {
        self.coalesced().map(Coalesce::inner)
    }

    /// Groups that wait for a call to Redis.
    pub fn groups_waiting(&self) -> usize {
        self.coalesced().map_or(0, Coalesce::groups_waiting)
    }

    /// Sets a callback for the number of groups and slot groups in each call to Redis. Only the first callback is used.
    pub fn on_batch(&self, callback: impl Fn(usize) + Send + Sync + 'static) {
        if let Some(coalesced) = self.coalesced() {
            coalesced.on_batch(callback);
        }
    }

    /// Unknown hits: Redis did not report whether it charged or refunded them.
    pub fn hits_unknown(&self) -> u64 {
        let not_refunded = match self {
            Self::Memory(policy) => policy.hits_not_refunded(),
            Self::Redis(policy) => policy.hits_not_refunded(),
        };
        self.coalesced().map_or(0, Coalesce::hits_unknown) + not_refunded
    }

    /// Pending refunds, and calls to Redis whose late replies are awaited.
    pub fn refunds_and_late_calls(&self) -> usize {
        let refunds = match self {
            Self::Memory(policy) => policy.refunds_pending(),
            Self::Redis(policy) => policy.refunds_pending(),
        };
        self.coalesced().map_or(0, Coalesce::late_calls) + refunds
    }

    /// Whether no counter is listed for debits. A counter is listed while it has hits to be debited, and for some time
    /// after the debit, in which its checks must also pass the local share.
    pub fn is_debit_list_empty(&self) -> bool {
        match self {
            Self::Memory(policy) => policy.is_debit_list_empty(),
            Self::Redis(policy) => policy.is_debit_list_empty(),
        }
    }

    /// Late answers that wait for their callers: 0 without requests in progress.
    pub fn late_answers_uncollected(&self) -> usize {
        match self {
            Self::Memory(_) => 0,
            Self::Redis(policy) => {
                policy.inner().late_answers_uncollected()
                    + policy.inner().inner().late_answers_uncollected()
            }
        }
    }

    fn coalesced(&self) -> Option<&Coalesce<Redis>> {
        match self {
            Self::Memory(_) => None,
            Self::Redis(policy) => Some(policy.inner().inner()),
        }
    }

    /// Refusals in the deny cache.
    pub fn deny_cache_refusals(&self) -> usize {
        match self {
            Self::Memory(_) => 0,
            Self::Redis(policy) => policy.inner().len(),
        }
    }

    /// The last known number of replicas.
    pub fn live_replicas(&self) -> NonZeroU32 {
        let local = match self {
            Self::Memory(_) => None,
            Self::Redis(policy) => policy.local(),
        };
        local.map_or(NonZeroU32::MIN, |local| local.replicas.get())
    }

    /// Whether some counters are unavailable.
    pub fn is_degraded(&self) -> bool {
        self.as_redis().is_some_and(Redis::is_degraded)
    }

    /// Total time for which some counters were unavailable.
    pub fn total_degraded_time(&self) -> Duration {
        self.as_redis().map_or(Duration::ZERO, Redis::total_degraded_time)
    }

    /// Checks so far that the store has not answered.
    pub fn checks_unanswered(&self) -> u64 {
        match self {
            Self::Memory(policy) => policy.checks_unanswered(),
            Self::Redis(policy) => policy.checks_unanswered(),
        }
    }

    /// Requests so far with at least one check that the store has not answered.
    pub fn requests_unanswered(&self) -> u64 {
        match self {
            Self::Memory(policy) => policy.requests_unanswered(),
            Self::Redis(policy) => policy.requests_unanswered(),
        }
    }

    /// Multi-slot requests that are being settled.
    pub fn multi_slot_in_progress(&self) -> usize {
        match self {
            Self::Memory(policy) => policy.multi_slot_in_progress(),
            Self::Redis(policy) => policy.multi_slot_in_progress(),
        }
    }

    /// Multi-slot requests so far that were settled after their callers had disconnected.
    pub fn multi_slot_abandoned(&self) -> u64 {
        match self {
            Self::Memory(policy) => policy.multi_slot_abandoned(),
            Self::Redis(policy) => policy.multi_slot_abandoned(),
        }
    }

    /// Statistics of the local fallback.
    pub fn fallback_stats(&self) -> FallbackStats {
        match self {
            Self::Memory(policy) => policy.fallback_stats(),
            Self::Redis(policy) => policy.fallback_stats(),
        }
    }

    /// Checks so far that could not be refunded.
    pub fn refunds_failed(&self) -> u64 {
        match self {
            Self::Memory(policy) => policy.refunds_failed(),
            Self::Redis(policy) => policy.refunds_failed(),
        }
    }

    fn as_memory(&self) -> Option<&Memory<AnyClock>> {
        match self {
            Self::Memory(policy) => Some(policy.inner()),
            Self::Redis(policy) => policy.local().map(|local| &local.store),
        }
    }
}
