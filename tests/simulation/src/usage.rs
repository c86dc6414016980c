//! Usage of a counter, read from its value in Redis. The oracle computes it by the textbook definitions, without the
//! code of `sluicegate_core`.

use sluicegate_core::{Algorithm, Limit};
use sluicegate_store::redis::Reply;

/// The value of a counter in Redis. Times are in microseconds since the Unix epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Usage {
    /// Hits of the window that begins at `start`.
    FixedWindow { start: u64, hits: u64 },
    /// Hits of the window with this number, and of the previous one.
    SlidingWindowCounter { window: u64, previous: u64, current: u64 },
    /// Time and hits of each entry.
    SlidingWindowLog(Vec<(u64, u64)>),
    /// Units used at the time `last`, of which a hit costs `cost`.
    TokenBucket { last: u64, used: u64, cost: u64 },
    /// The theoretical arrival time.
    Gcra { tat: u64 },
}

impl Usage {
    /// Parses a value; `None` if it is not one of a counter with this algorithm.
    pub(crate) fn read(limit: &Limit, value: &Reply) -> Option<Self> {
        let window = limit.window().micros();
        let text = match value {
            Reply::Nil => "",
            Reply::Text(text) => std::str::from_utf8(text).ok()?,
            Reply::Array(elements) if limit.algorithm() == Algorithm::SlidingWindowLog => {
                let numbers: Option<Vec<u64>> =
                    elements.iter().map(|it| it.as_str()?.parse().ok()).collect();
                return Self::of_log(&numbers?);
            }
            _ => return None,
        };
        let numbers: Option<Vec<u64>> =
            text.split(':').filter(|it| !it.is_empty()).map(|it| it.parse().ok()).collect();
        Some(match (limit.algorithm(), numbers?.as_slice()) {
            (Algorithm::FixedWindow, []) => Self::FixedWindow { start: 0, hits: 0 },
            (Algorithm::FixedWindow, &[sum]) => {
                Self::FixedWindow { start: sum - sum % window, hits: sum % window }
            }
            (Algorithm::FixedWindow, &[number, hits]) => {
                Self::FixedWindow { start: number * window, hits }
            }
            (Algorithm::SlidingWindowCounter, []) => {
                Self::SlidingWindowCounter { window: 0, previous: 0, current: 0 }
            }
            (Algorithm::SlidingWindowCounter, &[packed]) => {
                let base = window.isqrt();
                Self::SlidingWindowCounter {
                    window: packed / base / base,
                    previous: packed / base % base,
                    current: packed % base,
                }
            }
            (Algorithm::SlidingWindowCounter, &[window, previous, current]) => {
                Self::SlidingWindowCounter { window, previous, current }
            }
            (Algorithm::SlidingWindowLog, []) => Self::SlidingWindowLog(Vec::new()),
            (Algorithm::TokenBucket, []) => Self::TokenBucket { last: 0, used: 0, cost: 1 },
            (Algorithm::TokenBucket, &[last, used, cost]) => Self::TokenBucket { last, used, cost },
            (Algorithm::Gcra, []) => Self::Gcra { tat: 0 },
            (Algorithm::Gcra, &[tat]) => Self::Gcra { tat },
            _ => return None,
        })
    }

    /// Parses a log: the sum before the first entry, then time and running sum of each.
    fn of_log(numbers: &[u64]) -> Option<Self> {
        let (&base, entries) = numbers.split_first()?;
        let mut before = base;
        let mut read = Vec::new();
        for entry in entries.chunks(2) {
            let &[at, sum] = entry else { return None };
            read.push((at, sum.checked_sub(before)?));
            before = sum;
        }
        Some(Self::SlidingWindowLog(read))
    }

    /// Hits that count at the time `now`, rounded up.
    pub(crate) fn hits(&self, limit: &Limit, now: u64) -> u64 {
        let (parts, whole) = self.parts(limit, now);
        u64::try_from(parts.div_ceil(whole)).unwrap()
    }

    /// Hits that count at the time `now`, rounded to the nearest whole number, so that the difference between the usage
    /// at two times is exact even if part of a hit has refilled in between.
    pub(crate) fn nearest_hits(&self, limit: &Limit, now: u64) -> i64 {
        let (parts, whole) = self.parts(limit, now);
        i64::try_from((2 * parts + whole) / (2 * whole)).unwrap()
    }

    /// Hits that count at the time `now`, as a fraction: parts of hits, and the number of parts in a hit.
    fn parts(&self, limit: &Limit, now: u64) -> (u128, u128) {
        let window = limit.window().micros();
        let wide = |number: u64| u128::from(number);
        match *self {
            Self::FixedWindow { start, hits } => {
                (wide(if now < start + window { hits } else { 0 }), 1)
            }
            Self::SlidingWindowCounter { window: number, previous, current } => {
                let now = now.max(number * window);
                let end = (number + 1) * window;
                let parts = match now / window - number {
                    0 => wide(current) * wide(window) + wide(previous) * wide(end - now),
                    1 => wide(current) * wide(end + window - now),
                    _ => 0,
                };
                (parts, wide(window))
            }
            Self::SlidingWindowLog(ref entries) => {
                // If the clock was set back, the time is that of the last entry.
                let now = entries.last().map_or(now, |(at, _)| now.max(*at));
                let live = entries.iter().filter(|(at, _)| at + window > now);
                (live.map(|(_, hits)| wide(*hits)).sum(), 1)
            }
            Self::TokenBucket { used: 0, .. } => (0, 1),
            Self::TokenBucket { last, used, cost } => {
                // A hit refills every window ÷ requests. A limit of 0 refills like a limit of 1.
                let passed = wide(now.saturating_sub(last));
                let refilled =
                    (u128::from(limit.requests().max(1)) * wide(cost)).saturating_mul(passed);
                let parts = (wide(used) * wide(window)).saturating_sub(refilled);
                (parts, wide(cost) * wide(window))
            }
            Self::Gcra { tat } => {
                let interval = window.div_ceil(u64::from(limit.requests().max(1)));
                (wide(tat.saturating_sub(now)), wide(interval))
            }
        }
    }
}
