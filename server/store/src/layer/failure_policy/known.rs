//! The last report of the store on recently used counters, from which the local fallback starts.

use std::{
    num::NonZeroU32,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use hashbrown::HashTable;
use parking_lot::Mutex;
use sluicegate_core::{Charge, Check, CounterKey, Decision, Limit};

use crate::{Clock, Memory};

/// The most shards: more than cores, so that threads seldom wait for each other.
const SHARDS_MAX: usize = 64;

/// Fewer counters than this in a shard would make it a matter of chance which are evicted.
const SHARD_COUNTERS_MIN: usize = 1024;

/// Recently used counters that are passed over before one of them is evicted.
const SPARED_MAX: usize = 16;

/// A bounded table of recently asked counters.
#[derive(Debug)]
pub(super) struct KnownCounters {
    shards: Box<[Mutex<Shard>]>,
    evicted: AtomicU64,
    found: AtomicU64,
    missed: AtomicU64,
}

#[derive(Debug)]
struct Shard {
    counters: HashTable<Known>,
    counters_max: usize,
    /// Where the search for a counter to evict continues.
    hand: usize,
}

/// A counter's usage, as the store last reported it.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// Hash of the counter's key: 64 bits with a random seed.
    hash: u64,
    used: u64,
    /// When the answer arrived. The store measured earlier, so that less is refilled than since then.
    at: Instant,
    /// From then on nothing is known.
    resets_at: Instant,
    /// Whether it was asked again since it was added, or since the search for a counter to evict passed it.
    recent: bool,
}

impl Known {
    /// Hits left under a limit, rounded down; `None` once the counter has been reset.
    fn left(&self, limit: &Limit, now: Instant) -> Option<u64> {
        let used =
            self.used.saturating_sub(refilled(limit, now.saturating_duration_since(self.at)));
        (now < self.resets_at).then(|| u64::from(limit.capacity()).saturating_sub(used))
    }
}

/// Hits that a bucket gets back in a span, rounded down. When hits of a sliding window expire is not known, and a fixed
/// window gives none back before it ends.
fn refilled(limit: &Limit, span: Duration) -> u64 {
    if !limit.algorithm().has_burst() {
        return 0;
    }
    let ticks =
        u64::try_from(span.as_micros()).unwrap_or(u64::MAX) / limit.refill_interval().max(1);
    ticks.saturating_mul(limit.refill_units()) / limit.cost().max(1)
}

impl KnownCounters {
    /// Holds at most `counters_max` counters.
    pub(super) fn new(counters_max: usize) -> Self {
        let shards = (counters_max / SHARD_COUNTERS_MIN).clamp(1, SHARDS_MAX);
        let shard = |number| {
            let counters_max = (counters_max + number) / shards;
            Mutex::new(Shard { counters: HashTable::new(), counters_max, hand: 0 })
        };
        Self {
            shards: (0..shards).map(shard).collect(),
            evicted: AtomicU64::new(0),
            found: AtomicU64::new(0),
            missed: AtomicU64::new(0),
        }
    }

    /// Counters in the table, including those that have been reset since.
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().counters.len()).sum()
    }

    /// Counters evicted so far before they were reset.
    pub(super) fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    /// Checks decided by this process so far whose counters were in the table.
    pub(super) fn found(&self) -> u64 {
        self.found.load(Ordering::Relaxed)
    }

    /// Checks decided by this process so far whose counters were not.
    pub(super) fn missed(&self) -> u64 {
        self.missed.load(Ordering::Relaxed)
    }

    /// Takes note of the store's answer to a check that was asked at `asked` and is answered now.
    pub(super) fn note(&self, check: &Check, decision: &Decision, asked: Instant, now: Instant) {
        let capacity = u64::from(check.limit.capacity());
        let known = Known {
            hash: check.key.hash64(),
            used: (capacity + decision.excess).saturating_sub(decision.remaining),
            at: now,
            resets_at: now + decision.reset_after,
            recent: false,
        };
        let Some(shard) = self.shard(known.hash) else { return };
        let mut shard = shard.lock();
        let Some(old) = shard.find(known.hash) else {
            let evicted = shard.add(known, now);
            self.evicted.fetch_add(u64::from(evicted), Ordering::Relaxed);
            return;
        };
        // The store may have settled two overlapping checks in either order: the lower remainder is believed.
        let overlap = asked < old.at;
        if !overlap || old.left(&check.limit, now).is_none_or(|left| left > decision.remaining) {
            *old = known;
        }
        old.recent = true;
    }

    /// Lowers a local counter to this process's share of what is left, if that is known. `share` is the check against this
    /// process's share of the limit; `granted` are hits that the store has just granted to it.
    pub(super) fn lower<C: Clock>(
        &self,
        (check, share, granted): (&Check, &Check, u64),
        replicas: NonZeroU32,
        memory: &Memory<C>,
        now: Instant,
    ) {
        let hash = check.key.hash64();
        let Some(shard) = self.shard(hash) else { return };
        // Held until the counter is lowered, so that no other thread asks for it before.
        let mut shard = shard.lock();
        let known = shard.find(hash);
        let found = known.and_then(|it| Some((it.left(&check.limit, now)?, it.resets_at)));
        let Some((left, resets_at)) = found else {
            self.missed.fetch_add(1, Ordering::Relaxed);
            return;
        };
        self.found.fetch_add(1, Ordering::Relaxed);
        // Each time: the local window may end sooner than the store's, and another limit may be asked for.
        let charged = Check { charge: Charge::Exactly(1), ..share.clone() };
        let left = left.saturating_add(granted) / u64::from(replicas.get());
        memory.lower(&charged, left, resets_at.saturating_duration_since(now));
    }

    /// Forgets a counter.
    pub(super) fn forget(&self, key: &CounterKey) {
        let Some(shard) = self.shard(key.hash64()) else { return };
        let same = |known: &Known| known.hash == key.hash64();
        if let Ok(known) = shard.lock().counters.find_entry(key.hash64(), same) {
            known.remove();
        }
    }

    /// Forgets every counter.
    pub(super) fn clear(&self) {
        self.shards.iter().for_each(|shard| shard.lock().counters.clear());
    }

    fn shard(&self, hash: u64) -> Option<&Mutex<Shard>> {
        // From bits that do not place the counter inside its shard.
        let number = ((hash >> 25 & u64::from(u32::MAX)) * self.shards.len() as u64) >> 32;
        self.shards.get(usize::try_from(number).ok()?)
    }
}

impl Shard {
    fn find(&mut self, hash: u64) -> Option<&mut Known> {
        self.counters.find_mut(hash, |known| known.hash == hash)
    }

    /// Adds a counter that is not in the table. Returns whether another one that was still known is evicted for it.
    fn add(&mut self, known: Known, now: Instant) -> bool {
        let is_full = self.counters.len() >= self.counters_max;
        let evicted = is_full && self.evict(now);
        if self.counters.len() < self.counters_max {
            self.counters.insert_unique(known.hash, known, |known| known.hash);
        }
        evicted
    }

    /// Evicts the next counter that was reset or not asked again, or any if many are. Returns whether it was still known.
    fn evict(&mut self, now: Instant) -> bool {
        let places = self.counters.num_buckets();
        let mut spared = 0;
        for _ in 0..places {
            self.hand = if self.hand + 1 < places { self.hand + 1 } else { 0 };
            let Ok(mut place) = self.counters.get_bucket_entry(self.hand) else { continue };
            let known = place.get_mut();
            let is_known = now < known.resets_at;
            if is_known && known.recent && spared < SPARED_MAX {
                known.recent = false;
                spared += 1;
                continue;
            }
            place.remove();
            return is_known;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    };

    use sluicegate_core::{
        Algorithm, Batch, OnFailure, Store, Time, Window,
        store::{Group, RefusalScope, Source},
    };

    use super::*;
    use crate::{MemorySettings, Reading, clock};

    const DAY: Duration = Duration::from_secs(86_400);

    fn limit(algorithm: Algorithm, requests: u32) -> Limit {
        Limit::new(algorithm, requests, Window::from_seconds(86_400).unwrap(), None).unwrap()
    }

    fn check(name: &str, limit: Limit) -> Check {
        let key = CounterKey::from_text(format!("s1:fw:86400:{{api:user={name}}}").as_bytes());
        Check {
            key: key.unwrap(),
            limit,
            charge: Charge::Exactly(1),
            descriptor: 0,
            refusal_scope: RefusalScope::Request,
            on_failure: OnFailure::Local,
        }
    }

    fn answer(remaining: u64, excess: u64, reset_after: Duration) -> Decision {
        Decision {
            allowed: true,
            charged: 0,
            remaining,
            excess,
            reset_after,
            retry_after: None,
            receipt: None,
            source: Source::Store,
        }
    }

    /// A clock that only the test advances, in microseconds since the Unix epoch.
    #[derive(Debug)]
    struct TestClock(AtomicU64);

    impl TestClock {
        fn advance(&self, by: Duration) {
            let micros = u64::try_from(by.as_micros()).unwrap();
            self.0.fetch_add(micros, Ordering::Relaxed);
        }
    }

    impl Clock for TestClock {
        fn read(&self) -> Reading {
            let now = Time::from_micros(self.0.load(Ordering::Relaxed));
            Reading { wall: now, steady: now }
        }
    }

    type LocalMemory = Memory<Arc<TestClock>>;

    /// A store of this process, and its clock, which shows noon.
    fn memory() -> (LocalMemory, Arc<TestClock>) {
        let noon = (20_000 * 86_400 + 43_200) * 1_000_000;
        let clock = Arc::new(TestClock(AtomicU64::new(noon)));
        (Memory::new(MemorySettings { counters_max: 100 }, Arc::clone(&clock)), clock)
    }

    /// What one of four replicas has left of a check's limit, having lowered its counter.
    async fn share_left(known: &KnownCounters, check: &Check, at: Instant) -> u64 {
        let (memory, _) = memory();
        lower(known, check, &memory, at);
        left_in(&memory, check).await
    }

    fn lower(known: &KnownCounters, check: &Check, memory: &LocalMemory, at: Instant) {
        known.lower((check, &share(check), 0), FOUR, memory, at);
    }

    const FOUR: NonZeroU32 = NonZeroU32::new(4).unwrap();

    fn share(check: &Check) -> Check {
        Check { limit: check.limit.per_replica(FOUR), ..check.clone() }
    }

    async fn left_in(memory: &LocalMemory, check: &Check) -> u64 {
        let peek = Check { charge: Charge::Exactly(0), ..share(check) };
        memory.decide(Batch::single(Arc::from([peek]), None)).await[0].unwrap().remaining
    }

    #[tokio::test]
    async fn local_counter_starts_at_its_share_of_what_was_left() {
        let (known, now) = (KnownCounters::new(10), clock::now());
        for algorithm in Algorithm::ALL {
            let bob = check("bob", limit(algorithm, 100));
            known.clear();
            assert_eq!(share_left(&known, &bob, now).await, 25, "{algorithm:?}: unknown");
            for (left, excess, share) in
                [(100, 0, 25), (99, 0, 24), (10, 0, 2), (3, 0, 0), (0, 0, 0), (0, 50, 0)]
            {
                known.note(&bob, &answer(left, excess, DAY / 2), now, now);
                assert_eq!(share_left(&known, &bob, now).await, share, "{algorithm:?}: {left}");
            }
        }
        assert_eq!((known.missed(), known.found()), (5, 30));
    }

    #[tokio::test]
    async fn nothing_is_known_after_the_reset() {
        let (known, now) = (KnownCounters::new(10), clock::now());
        let bob = check("bob", limit(Algorithm::FixedWindow, 100));
        known.note(&bob, &answer(0, 0, DAY / 2), now, now);
        assert_eq!(share_left(&known, &bob, now + DAY / 2 - Duration::from_nanos(1)).await, 0);
        known.note(&bob, &answer(0, 0, DAY / 2), now, now);
        assert_eq!(share_left(&known, &bob, now + DAY / 2).await, 25);
    }

    #[tokio::test]
    async fn buckets_refill_since_the_answer_rounded_down() {
        for algorithm in [Algorithm::TokenBucket, Algorithm::Gcra] {
            let bob = check("bob", limit(algorithm, 100));
            // Eight of 100 in a day take 6,912 s.
            for (seconds, share) in [(0, 0), (6_911, 1), (6_912, 2), (86_400, 25)] {
                let (known, now) = (KnownCounters::new(10), clock::now());
                known.note(&bob, &answer(0, 0, 2 * DAY), now, now);
                let later = now + Duration::from_secs(seconds);
                assert_eq!(share_left(&known, &bob, later).await, share, "{algorithm:?} {seconds}");
            }
        }
    }

    #[tokio::test]
    async fn usage_is_known_whatever_limit_was_asked() {
        let (known, now) = (KnownCounters::new(10), clock::now());
        known.note(
            &check("bob", limit(Algorithm::FixedWindow, 100)),
            &answer(40, 0, DAY),
            now,
            now,
        );
        let raised = check("bob", limit(Algorithm::FixedWindow, 140));
        assert_eq!(share_left(&known, &raised, now).await, 20);
    }

    #[tokio::test]
    async fn of_overlapping_answers_the_lower_remainder_is_believed() {
        let (known, now) = (KnownCounters::new(10), clock::now());
        let at = |millis| now + Duration::from_millis(millis);
        let bob = check("bob", limit(Algorithm::FixedWindow, 100));
        known.note(&bob, &answer(40, 0, DAY / 2), at(0), at(10));
        known.note(&bob, &answer(80, 0, DAY / 2), at(5), at(11));
        assert_eq!(share_left(&known, &bob, at(11)).await, 10);
        known.note(&bob, &answer(20, 0, DAY / 2), at(5), at(12));
        assert_eq!(share_left(&known, &bob, at(12)).await, 5);
        // Hits were refunded: this check was sent after the others were answered.
        known.note(&bob, &answer(60, 0, DAY / 2), at(12), at(20));
        assert_eq!(share_left(&known, &bob, at(20)).await, 15);
    }

    #[tokio::test]
    async fn lowering_twice_charges_once_and_keeps_what_was_used() {
        let (known, now, (memory, _)) = (KnownCounters::new(10), clock::now(), memory());
        for algorithm in Algorithm::ALL {
            let bob = check(algorithm.name(), limit(algorithm, 100));
            for left in [10, 10, 40] {
                known.note(&bob, &answer(left, 0, DAY / 2), now, now);
                lower(&known, &bob, &memory, now);
                lower(&known, &bob, &memory, now);
                assert_eq!(left_in(&memory, &bob).await, 2, "{algorithm:?}");
            }
            let one = Group::from([share(&bob)]);
            assert!(memory.decide(Batch::single(one, None)).await[0].unwrap().allowed);
            lower(&known, &bob, &memory, now);
            assert_eq!(left_in(&memory, &bob).await, 1, "{algorithm:?}");
        }
    }

    #[tokio::test]
    async fn a_later_window_of_the_local_clock_is_not_charged() {
        let (known, now, (memory, clock)) = (KnownCounters::new(10), clock::now(), memory());
        let bob = check("bob", limit(Algorithm::FixedWindow, 100));
        known.note(&bob, &answer(0, 0, Duration::from_millis(5)), now, now);
        // By this clock 12 h are left of the window, by the store's 5 ms.
        clock.advance(Duration::from_secs(43_200 - 1));
        lower(&known, &bob, &memory, now);
        assert_eq!(left_in(&memory, &bob).await, 0, "the same window, a second off");
        clock.advance(Duration::from_secs(1));
        known.note(&bob, &answer(0, 0, Duration::from_millis(5)), now, now);
        lower(&known, &bob, &memory, now);
        assert_eq!(left_in(&memory, &bob).await, 25);
    }

    #[tokio::test]
    async fn a_local_window_that_ends_sooner_is_lowered_again() {
        let (known, now, (memory, clock)) = (KnownCounters::new(10), clock::now(), memory());
        let bob = check("bob", limit(Algorithm::FixedWindow, 100));
        // The store's window began by its clock, this process's ends in a second.
        clock.advance(Duration::from_secs(43_200 - 1));
        known.note(&bob, &answer(0, 0, DAY), now, now);
        for _ in 0..2 {
            lower(&known, &bob, &memory, now);
            assert_eq!(left_in(&memory, &bob).await, 0);
            clock.advance(Duration::from_secs(1));
        }
    }

    #[tokio::test]
    async fn a_larger_limit_after_a_smaller_one_is_lowered_too() {
        let (known, now, (memory, _)) = (KnownCounters::new(10), clock::now(), memory());
        let [small, large] =
            [100, 1000].map(|requests| check("bob", limit(Algorithm::FixedWindow, requests)));
        known.note(&large, &answer(500, 0, DAY / 2), now, now);
        for (check, left) in [(&small, 0), (&large, 125)] {
            lower(&known, check, &memory, now);
            assert_eq!(left_in(&memory, check).await, left);
        }
    }

    #[test]
    fn the_table_is_bounded_and_keeps_what_is_asked() {
        let (known, now) = (KnownCounters::new(100), clock::now());
        let limit = limit(Algorithm::FixedWindow, 100);
        let hot = check("hot", limit);
        for number in 0..1000 {
            known.note(&check(&number.to_string(), limit), &answer(0, 0, DAY), now, now);
            known.note(&hot, &answer(0, 0, DAY), now, now);
        }
        assert_eq!((known.len(), known.evicted()), (100, 901));
        let (memory, _) = memory();
        lower(&known, &hot, &memory, now);
        assert_eq!(known.found(), 1);
        known.forget(&hot.key);
        assert_eq!(known.len(), 99);
    }
}
