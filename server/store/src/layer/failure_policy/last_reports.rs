//! The store's last reports on recently checked counters, from which the counters of the local fallback start.

use std::{
    num::NonZeroU32,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use hashbrown::HashTable;
use parking_lot::Mutex;
use sluicegate_core::{Charge, Check, CounterKey, Decision, Limit};

use crate::{Clock, Memory};

/// The most shards: more than cores, so that threads rarely contend.
const SHARDS_MAX: usize = 64;

/// Minimum number of counters of a shard: with fewer, one shard could evict counters long before the others are full.
const SHARD_COUNTERS_MIN: usize = 1024;

/// Maximum number of recently checked counters that an eviction skips.
const SKIPPED_MAX: usize = 16;

/// A bounded table of the last reports, by hash of the counter's key.
#[derive(Debug)]
pub(super) struct LastReports {
    shards: Box<[Mutex<Shard>]>,
    evicted: AtomicU64,
    found: AtomicU64,
    missed: AtomicU64,
}

#[derive(Debug)]
struct Shard {
    reports: HashTable<Report>,
    counters_max: usize,
    /// Position in the table at which the search for a counter to evict continues (the hand of the CLOCK algorithm).
    hand: usize,
}

/// The usage of a counter, as the store last reported it.
#[derive(Clone, Copy, Debug)]
struct Report {
    /// Hash of the counter's key: 64 bits with a random seed.
    hash: u64,
    used: u64,
    /// When the answer arrived. The store decided before that, so the refill computed from here is never too high.
    at: Instant,
    /// When the counter resets. Then the report no longer holds.
    resets_at: Instant,
    /// Whether the counter was checked again since it was added, or since the search for a counter to evict skipped it.
    was_rechecked: bool,
}

impl Report {
    /// The remaining hits under a limit, rounded down; `None` once the counter has reset.
    fn remaining(&self, limit: &Limit, now: Instant) -> Option<u64> {
        let used =
            self.used.saturating_sub(refilled(limit, now.saturating_duration_since(self.at)));
        (now < self.resets_at).then(|| u64::from(limit.capacity()).saturating_sub(used))
    }
}

/// The hits that a token bucket or GCRA refills in a time span, rounded down. Zero for other algorithms: hits of a
/// fixed window stay until it ends, and the report does not show when hits of a sliding window expire.
fn refilled(limit: &Limit, span: Duration) -> u64 {
    if !limit.algorithm().has_burst() {
        return 0;
    }
    let ticks =
        u64::try_from(span.as_micros()).unwrap_or(u64::MAX) / limit.refill_interval().max(1);
    ticks.saturating_mul(limit.refill_units()) / limit.cost().max(1)
}

impl LastReports {
    /// Holds at most `counters_max` counters.
    pub(super) fn new(counters_max: usize) -> Self {
        let shards = (counters_max / SHARD_COUNTERS_MIN).clamp(1, SHARDS_MAX);
        let shard = |number| {
            let counters_max = (counters_max + number) / shards;
            Mutex::new(Shard { reports: HashTable::new(), counters_max, hand: 0 })
        };
        Self {
            shards: (0..shards).map(shard).collect(),
            evicted: AtomicU64::new(0),
            found: AtomicU64::new(0),
            missed: AtomicU64::new(0),
        }
    }

    /// Counters in the table, including those that have reset since their report.
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().reports.len()).sum()
    }

    /// Counters so far that were evicted before they reset.
    pub(super) fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    /// Checks so far that were decided locally and whose counters had a report.
    pub(super) fn found(&self) -> u64 {
        self.found.load(Ordering::Relaxed)
    }

    /// Checks so far that were decided locally and whose counters had no report.
    pub(super) fn missed(&self) -> u64 {
        self.missed.load(Ordering::Relaxed)
    }

    /// Records the store's answer to a check that was sent at `sent_at` and is answered now.
    pub(super) fn record(
        &self,
        check: &Check,
        decision: &Decision,
        sent_at: Instant,
        now: Instant,
    ) {
        let capacity = u64::from(check.limit.capacity());
        let report = Report {
            hash: check.key.hash64(),
            used: (capacity + decision.excess).saturating_sub(decision.remaining),
            at: now,
            resets_at: now + decision.reset_after,
            was_rechecked: false,
        };
        let Some(shard) = self.shard(report.hash) else { return };
        let mut shard = shard.lock();
        let Some(old) = shard.find(report.hash) else {
            let evicted = shard.add(report, now);
            self.evicted.fetch_add(u64::from(evicted), Ordering::Relaxed);
            return;
        };
        // The store may have settled two overlapping checks in either order: the lower number of remaining hits is
        // kept.
        let overlap = sent_at < old.at;
        if !overlap || old.remaining(&check.limit, now).is_none_or(|it| it > decision.remaining) {
            *old = report;
        }
        old.was_rechecked = true;
    }

    /// Caps the remaining hits of a check's local counter at this replica's share of what the store last reported as
    /// remaining, if there is a report. `share` is the check against this replica's share of the limit; `charged` are
    /// the hits that the store has just charged for it.
    pub(super) fn cap_remaining<C: Clock>(
        &self,
        (check, share, charged): (&Check, &Check, u64),
        replicas: NonZeroU32,
        memory: &Memory<C>,
        now: Instant,
    ) {
        let hash = check.key.hash64();
        let Some(shard) = self.shard(hash) else { return };
        // Held until the counter is capped, so that no other thread uses it before.
        let mut shard = shard.lock();
        let report = shard.find(hash);
        let found = report.and_then(|it| Some((it.remaining(&check.limit, now)?, it.resets_at)));
        let Some((remaining, resets_at)) = found else {
            self.missed.fetch_add(1, Ordering::Relaxed);
            return;
        };
        self.found.fetch_add(1, Ordering::Relaxed);
        // Capped again on every check, because the local window may have ended before the store's, or the limit may
        // have changed.
        let share = Check { charge: Charge::IfAllowed(1), ..share.clone() };
        let remaining = remaining.saturating_add(charged) / u64::from(replicas.get());
        memory.cap_remaining(&share, remaining, resets_at.saturating_duration_since(now));
    }

    /// Removes a counter.
    pub(super) fn forget(&self, key: &CounterKey) {
        let Some(shard) = self.shard(key.hash64()) else { return };
        let same = |report: &Report| report.hash == key.hash64();
        if let Ok(report) = shard.lock().reports.find_entry(key.hash64(), same) {
            report.remove();
        }
    }

    /// Removes all counters.
    pub(super) fn clear(&self) {
        self.shards.iter().for_each(|shard| shard.lock().reports.clear());
    }

    fn shard(&self, hash: u64) -> Option<&Mutex<Shard>> {
        // From bits of the hash that the shard's table does not use.
        let number = ((hash >> 25 & u64::from(u32::MAX)) * self.shards.len() as u64) >> 32;
        self.shards.get(usize::try_from(number).ok()?)
    }
}

impl Shard {
    fn find(&mut self, hash: u64) -> Option<&mut Report> {
        self.reports.find_mut(hash, |report| report.hash == hash)
    }

    /// Adds a counter that is not in the table. Returns whether another counter was evicted before it reset.
    fn add(&mut self, report: Report, now: Instant) -> bool {
        let is_full = self.reports.len() >= self.counters_max;
        let evicted = is_full && self.evict(now);
        if self.reports.len() < self.counters_max {
            self.reports.insert_unique(report.hash, report, |report| report.hash);
        }
        evicted
    }

    /// Evicts the next counter that has reset or was not checked again; after [`SKIPPED_MAX`] others, any counter.
    /// Returns whether the counter had not reset.
    fn evict(&mut self, now: Instant) -> bool {
        let buckets = self.reports.num_buckets();
        let mut skipped = 0;
        for _ in 0..buckets {
            self.hand = if self.hand + 1 < buckets { self.hand + 1 } else { 0 };
            let Ok(mut entry) = self.reports.get_bucket_entry(self.hand) else { continue };
            let report = entry.get_mut();
            let holds = now < report.resets_at;
            if holds && report.was_rechecked && skipped < SKIPPED_MAX {
                report.was_rechecked = false;
                skipped += 1;
                continue;
            }
            entry.remove();
            return holds;
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
        store::{DecisionSource, Group, RefusalScope},
    };

    use super::*;
    use crate::{ClockTimes, MemorySettings, clock};

    const DAY: Duration = Duration::from_secs(86_400);

    fn limit(algorithm: Algorithm, requests: u32) -> Limit {
        Limit::new(algorithm, requests, Window::from_seconds(86_400).unwrap(), None).unwrap()
    }

    fn check(name: &str, limit: Limit) -> Check {
        let key = CounterKey::from_text(format!("s1:fw:86400:{{api:user={name}}}").as_bytes());
        Check {
            key: key.unwrap(),
            limit,
            charge: Charge::IfAllowed(1),
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
            source: DecisionSource::Store,
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
        fn read(&self) -> ClockTimes {
            let now = Time::from_micros(self.0.load(Ordering::Relaxed));
            ClockTimes { wall: now, steady: now }
        }
    }

    type LocalMemory = Memory<Arc<TestClock>>;

    /// A memory store, and its clock, which shows noon.
    fn memory() -> (LocalMemory, Arc<TestClock>) {
        let noon = (20_000 * 86_400 + 43_200) * 1_000_000;
        let clock = Arc::new(TestClock(AtomicU64::new(noon)));
        (Memory::new(MemorySettings { counters_max: 100 }, Arc::clone(&clock)), clock)
    }

    /// The remaining hits of a check in one of four replicas, after its local counter is capped.
    async fn remaining_share(reports: &LastReports, check: &Check, at: Instant) -> u64 {
        let (memory, _) = memory();
        cap_remaining(reports, check, &memory, at);
        remaining_in(&memory, check).await
    }

    fn cap_remaining(reports: &LastReports, check: &Check, memory: &LocalMemory, at: Instant) {
        reports.cap_remaining((check, &share(check), 0), FOUR, memory, at);
    }

    const FOUR: NonZeroU32 = NonZeroU32::new(4).unwrap();

    fn share(check: &Check) -> Check {
        Check { limit: check.limit.per_replica(FOUR), ..check.clone() }
    }

    async fn remaining_in(memory: &LocalMemory, check: &Check) -> u64 {
        let peek = Check { charge: Charge::IfAllowed(0), ..share(check) };
        memory.decide(Batch::single(Arc::from([peek]), None)).await[0].unwrap().remaining
    }

    #[tokio::test]
    async fn local_counter_starts_at_its_share_of_remaining_hits() {
        let (reports, now) = (LastReports::new(10), clock::now());
        for algorithm in Algorithm::ALL {
            let bob = check("bob", limit(algorithm, 100));
            reports.clear();
            assert_eq!(remaining_share(&reports, &bob, now).await, 25, "{algorithm:?}: unknown");
            for (left, excess, share) in
                [(100, 0, 25), (99, 0, 24), (10, 0, 2), (3, 0, 0), (0, 0, 0), (0, 50, 0)]
            {
                reports.record(&bob, &answer(left, excess, DAY / 2), now, now);
                assert_eq!(
                    remaining_share(&reports, &bob, now).await,
                    share,
                    "{algorithm:?}: {left}"
                );
            }
        }
        assert_eq!((reports.missed(), reports.found()), (5, 30));
    }

    #[tokio::test]
    async fn report_does_not_hold_after_the_reset() {
        let (reports, now) = (LastReports::new(10), clock::now());
        let bob = check("bob", limit(Algorithm::FixedWindow, 100));
        reports.record(&bob, &answer(0, 0, DAY / 2), now, now);
        assert_eq!(
            remaining_share(&reports, &bob, now + DAY / 2 - Duration::from_nanos(1)).await,
            0
        );
        reports.record(&bob, &answer(0, 0, DAY / 2), now, now);
        assert_eq!(remaining_share(&reports, &bob, now + DAY / 2).await, 25);
    }

    #[tokio::test]
    async fn buckets_refill_since_the_answer_rounded_down() {
        for algorithm in [Algorithm::TokenBucket, Algorithm::Gcra] {
            let bob = check("bob", limit(algorithm, 100));
            // Eight of 100 in a day take 6,912 s.
            for (seconds, share) in [(0, 0), (6_911, 1), (6_912, 2), (86_400, 25)] {
                let (reports, now) = (LastReports::new(10), clock::now());
                reports.record(&bob, &answer(0, 0, 2 * DAY), now, now);
                let later = now + Duration::from_secs(seconds);
                assert_eq!(
                    remaining_share(&reports, &bob, later).await,
                    share,
                    "{algorithm:?} {seconds}"
                );
            }
        }
    }

    #[tokio::test]
    async fn reported_usage_applies_to_any_limit_of_the_counter() {
        let (reports, now) = (LastReports::new(10), clock::now());
        reports.record(
            &check("bob", limit(Algorithm::FixedWindow, 100)),
            &answer(40, 0, DAY),
            now,
            now,
        );
        let raised = check("bob", limit(Algorithm::FixedWindow, 140));
        assert_eq!(remaining_share(&reports, &raised, now).await, 20);
    }

    #[tokio::test]
    async fn of_overlapping_answers_the_fewest_remaining_hits_are_kept() {
        let (reports, now) = (LastReports::new(10), clock::now());
        let at = |millis| now + Duration::from_millis(millis);
        let bob = check("bob", limit(Algorithm::FixedWindow, 100));
        reports.record(&bob, &answer(40, 0, DAY / 2), at(0), at(10));
        reports.record(&bob, &answer(80, 0, DAY / 2), at(5), at(11));
        assert_eq!(remaining_share(&reports, &bob, at(11)).await, 10);
        reports.record(&bob, &answer(20, 0, DAY / 2), at(5), at(12));
        assert_eq!(remaining_share(&reports, &bob, at(12)).await, 5);
        // Hits were refunded: this check was sent after the others were answered.
        reports.record(&bob, &answer(60, 0, DAY / 2), at(12), at(20));
        assert_eq!(remaining_share(&reports, &bob, at(20)).await, 15);
    }

    #[tokio::test]
    async fn capping_twice_charges_once_and_keeps_usage() {
        let (reports, now, (memory, _)) = (LastReports::new(10), clock::now(), memory());
        for algorithm in Algorithm::ALL {
            let bob = check(algorithm.name(), limit(algorithm, 100));
            for left in [10, 10, 40] {
                reports.record(&bob, &answer(left, 0, DAY / 2), now, now);
                cap_remaining(&reports, &bob, &memory, now);
                cap_remaining(&reports, &bob, &memory, now);
                assert_eq!(remaining_in(&memory, &bob).await, 2, "{algorithm:?}");
            }
            let one = Group::from([share(&bob)]);
            assert!(memory.decide(Batch::single(one, None)).await[0].unwrap().allowed);
            cap_remaining(&reports, &bob, &memory, now);
            assert_eq!(remaining_in(&memory, &bob).await, 1, "{algorithm:?}");
        }
    }

    #[tokio::test]
    async fn later_window_of_the_local_clock_is_not_capped() {
        let (reports, now, (memory, clock)) = (LastReports::new(10), clock::now(), memory());
        let bob = check("bob", limit(Algorithm::FixedWindow, 100));
        reports.record(&bob, &answer(0, 0, Duration::from_millis(5)), now, now);
        // The window ends in 12 h by this clock, and in 5 ms by the store's.
        clock.advance(Duration::from_secs(43_200 - 1));
        cap_remaining(&reports, &bob, &memory, now);
        assert_eq!(remaining_in(&memory, &bob).await, 0, "the same window, a second off");
        clock.advance(Duration::from_secs(1));
        reports.record(&bob, &answer(0, 0, Duration::from_millis(5)), now, now);
        cap_remaining(&reports, &bob, &memory, now);
        assert_eq!(remaining_in(&memory, &bob).await, 25);
    }

    #[tokio::test]
    async fn local_counter_is_capped_again_in_its_next_window() {
        let (reports, now, (memory, clock)) = (LastReports::new(10), clock::now(), memory());
        let bob = check("bob", limit(Algorithm::FixedWindow, 100));
        // The window begins now by the store's clock, and ends in a second by this one.
        clock.advance(Duration::from_secs(43_200 - 1));
        reports.record(&bob, &answer(0, 0, DAY), now, now);
        for _ in 0..2 {
            cap_remaining(&reports, &bob, &memory, now);
            assert_eq!(remaining_in(&memory, &bob).await, 0);
            clock.advance(Duration::from_secs(1));
        }
    }

    #[tokio::test]
    async fn larger_limit_after_a_smaller_one_is_capped_too() {
        let (reports, now, (memory, _)) = (LastReports::new(10), clock::now(), memory());
        let [small, large] =
            [100, 1000].map(|requests| check("bob", limit(Algorithm::FixedWindow, requests)));
        reports.record(&large, &answer(500, 0, DAY / 2), now, now);
        for (check, left) in [(&small, 0), (&large, 125)] {
            cap_remaining(&reports, check, &memory, now);
            assert_eq!(remaining_in(&memory, check).await, left);
        }
    }

    #[test]
    fn the_table_is_bounded_and_keeps_counters_in_use() {
        let (reports, now) = (LastReports::new(100), clock::now());
        let limit = limit(Algorithm::FixedWindow, 100);
        let hot = check("hot", limit);
        for number in 0..1000 {
            reports.record(&check(&number.to_string(), limit), &answer(0, 0, DAY), now, now);
            reports.record(&hot, &answer(0, 0, DAY), now, now);
        }
        assert_eq!((reports.len(), reports.evicted()), (100, 901));
        let (memory, _) = memory();
        cap_remaining(&reports, &hot, &memory, now);
        assert_eq!(reports.found(), 1);
        reports.forget(&hot.key);
        assert_eq!(reports.len(), 99);
    }
}
