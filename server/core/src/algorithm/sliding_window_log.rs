//! Sliding window log: stores the time of every hit until a window has passed.
//!
//! Never admits more than the limit in any window: a hit at `t` counts until exactly `t + window`. Stores an entry for
//! each time with hits, so at most as many entries as the limit, which is therefore bounded. A queue and a running sum
//! replace the usual sorted set, so that the cost of a charge does not depend on the number of entries.

use std::collections::VecDeque;

use super::{
    algorithm_state::{AlgorithmState, Receipt, StateNumbers},
    arithmetic::remaining_hits,
};
use crate::{Limit, Time, limit::SLIDING_LOG_HITS_MAX};

/// State of a sliding window log: the time of every hit, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlidingWindowLog {
    /// No two entries have the same time, and none has zero hits.
    entries: VecDeque<Entry>,
    /// Hits in all entries, at most [`SLIDING_LOG_HITS_MAX`].
    used: u64,
}

/// The hits of one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    /// Microseconds since the Unix epoch.
    at: u64,
    /// Hits charged at that time.
    hits: u64,
}

impl AlgorithmState for SlidingWindowLog {
    fn advance(&mut self, limit: &Limit, now: Time) -> Time {
        let window = limit.window().micros();
        let newest = self.entries.back().map_or(0, |newest| newest.at);
        while let Some(oldest) = self.entries.front()
            && oldest.at + window <= now.as_micros()
        {
            self.used -= oldest.hits;
            self.entries.pop_front();
        }
        now.max(Time::from_micros(newest))
    }

    fn available(&self, limit: &Limit, _now: Time) -> i64 {
        remaining_hits(u64::from(limit.requests()), self.used)
    }

    fn charge(&mut self, _limit: &Limit, now: Time, hits: u64) -> Receipt {
        let at = now.as_micros();
        let hits = hits.min(u64::from(SLIDING_LOG_HITS_MAX).saturating_sub(self.used));
        match self.entries.back_mut() {
            Some(newest) if newest.at == at => newest.hits += hits,
            _ if hits > 0 => self.entries.push_back(Entry { at, hits }),
            _ => {}
        }
        self.used += hits;
        Receipt { at, used: 0 }
    }

    fn refund(&mut self, _limit: &Limit, _now: Time, hits: u64, receipt: Option<Receipt>) {
        match receipt {
            Some(receipt) => self.refund_at(receipt.at, hits),
            None => self.refund_oldest(hits),
        }
    }

    fn retry_after(&self, limit: &Limit, now: Time, hits: u64) -> u64 {
        let mut excess = (self.used + hits).saturating_sub(u64::from(limit.requests()));
        if excess == 0 {
            return 0;
        }
        let last_in_excess = self.entries.iter().find(|entry| {
            excess = excess.saturating_sub(entry.hits);
            excess == 0
        });
        last_in_excess.map_or(0, |entry| entry.expires_after(limit, now))
    }

    fn expires_after(&self, limit: &Limit, now: Time) -> u64 {
        self.entries.back().map_or(0, |newest| newest.expires_after(limit, now))
    }

    fn numbers(&self) -> StateNumbers {
        self.entries.iter().flat_map(|entry| [entry.at, entry.hits]).collect()
    }

    fn from_numbers(numbers: &[u64]) -> Option<Self> {
        let (entries, []) = numbers.as_chunks() else { return None };
        let entries: VecDeque<_> = entries.iter().map(|&[at, hits]| Entry { at, hits }).collect();
        let used = entries.iter().map(|entry| entry.hits).fold(0, u64::saturating_add);
        let in_order = entries.iter().is_sorted_by(|one, next| one.at < next.at);
        let valid = in_order && entries.iter().all(|entry| entry.hits > 0);
        (valid && used <= u64::from(SLIDING_LOG_HITS_MAX)).then_some(Self { entries, used })
    }
}

impl SlidingWindowLog {
    /// Refunds hits of the charge at a time.
    fn refund_at(&mut self, at: u64, hits: u64) {
        let Ok(position) = self.entries.binary_search_by_key(&at, |entry| entry.at) else { return };
        let Some(entry) = self.entries.get_mut(position) else { return };
        let refunded = hits.min(entry.hits);
        entry.hits -= refunded;
        self.used -= refunded;
        if entry.hits == 0 {
            self.entries.remove(position);
        }
    }

    /// Refunds hits of any charge, oldest first.
    fn refund_oldest(&mut self, mut hits: u64) {
        while hits > 0
            && let Some(oldest) = self.entries.front_mut()
        {
            let refunded = hits.min(oldest.hits);
            hits -= refunded;
            oldest.hits -= refunded;
            self.used -= refunded;
            if oldest.hits == 0 {
                self.entries.pop_front();
            }
        }
    }
}

impl Entry {
    /// Microseconds until the hits of the entry no longer count.
    const fn expires_after(&self, limit: &Limit, now: Time) -> u64 {
        (self.at + limit.window().micros()).saturating_sub(now.as_micros())
    }
}
