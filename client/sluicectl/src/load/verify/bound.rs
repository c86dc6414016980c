//! Upper bounds of what a limit admits, from the time spans in which hits may have been charged.
//!
//! Written from the documentation of the algorithms (`docs/limits.md`), independently of the code that decides. All
//! that is known of a hit is that it was charged between its request and its answer, so the bounds are about time
//! spans:
//!
//! | algorithm | bound | source |
//! |---|---|---|
//! | fixed window | limit × windows, for the hits in a range of aligned windows | upstream's counters |
//! | sliding window log | limit × n, for the hits in a span shorter than n windows | "in any window" |
//! | sliding window counter | as a fixed window; and hits of the current window + weighted hits of the previous one | Cloudflare, "How we built rate limiting capable of scaling to millions of domains" (2017) |
//! | token bucket, GCRA | burst + rate × span, for the hits in any span | ITU-T I.371, annex A |

use std::collections::BTreeMap;

use sluicegate_core::{Algorithm, Counting, Limit};

use super::tree::Tree;

/// Time in microseconds since the run began; negative before.
pub(super) type RunTime = i64;

/// A duration in microseconds.
pub(super) type Micros = i64;

/// A span of time, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) from: RunTime,
    pub(super) to: RunTime,
}

impl Span {
    /// The span, later by `by`.
    pub(super) const fn moved(self, by: Micros) -> Self {
        Self { from: self.from + by, to: self.to + by }
    }

    /// The intersection of two spans.
    pub(super) fn intersection(self, other: Self) -> Option<Self> {
        let (from, to) = (self.from.max(other.from), self.to.min(other.to));
        (from <= to).then_some(Self { from, to })
    }
}

/// Hits of one request, charged at one moment within the span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Charge {
    pub(super) span: Span,
    pub(super) hits: i64,
    /// Span in which the aligned window ends, according to the answer.
    pub(super) window_ends: Option<Span>,
}

/// Span in which window 0 begins. Window n begins n windows later.
pub(super) type WindowStart = Span;

/// The documented bound of a limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bound {
    algorithm: Algorithm,
    /// Hits that a window or a full bucket holds.
    capacity: i64,
    /// Hits that a bucket refills per window.
    requests: i64,
    window: Micros,
    /// Whether one remaining hit is enough to admit a request (`counting: debit`).
    debits: bool,
    /// Whether an answer may show the end of a later window than the one that was charged: envoyproxy/ratelimit chooses
    /// the window, charges it, and calculates the time until the reset afterwards.
    may_show_later_window: bool,
}

impl Bound {
    pub(super) fn new(limit: &Limit, counting: Counting) -> Self {
        Self {
            algorithm: limit.algorithm(),
            capacity: limit.capacity().into(),
            requests: limit.requests().into(),
            window: i64::from(limit.window().seconds()) * 1_000_000,
            debits: counting == Counting::Debit,
            may_show_later_window: counting == Counting::Upstream,
        }
    }

    pub(super) const fn window(&self) -> Micros {
        self.window
    }

    pub(super) const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    pub(super) const fn capacity(&self) -> i64 {
        self.capacity
    }

    pub(super) const fn requests(&self) -> i64 {
        self.requests
    }

    /// Whether used hits become available again only at the end of a window.
    pub(super) const fn resets_only_at_window_end(&self) -> bool {
        matches!(self.algorithm, Algorithm::FixedWindow)
    }

    /// Whether windows are aligned, so that their beginning matters.
    pub(super) const fn is_aligned(&self) -> bool {
        matches!(self.algorithm, Algorithm::FixedWindow | Algorithm::SlidingWindowCounter)
    }

    /// Span in which the charged window ends, from the reset time of the answer; `None` if windows are not aligned. A
    /// sliding window counter resets when its hits no longer count, which is one window later.
    pub(super) const fn window_end(&self, reset: Span) -> Option<Span> {
        match self.algorithm {
            Algorithm::FixedWindow => Some(reset),
            Algorithm::SlidingWindowCounter => Some(reset.moved(-self.window)),
            Algorithm::SlidingWindowLog | Algorithm::TokenBucket | Algorithm::Gcra => None,
        }
    }

    /// Over-admitted hits. Hits are added in the order of their answers. A hit is over-admitted if it cannot be within
    /// the bound together with the earlier ones, in whatever order and at whatever times they were charged.
    pub(super) fn over_admitted(&self, window_start: WindowStart, admitted: &[Charge]) -> i64 {
        self.excess(self.admits_at_most(admitted), window_start, admitted)
    }

    /// The refused hits that the limit would have admitted in addition to the others.
    pub(super) fn under_admitted(
        &self,
        window_start: WindowStart,
        others: &[Charge],
        refused: &[Charge],
    ) -> i64 {
        let capacity = self.admits_at_most(refused);
        let hits: i64 = refused.iter().map(|charge| charge.hits).sum();
        let without = self.excess(capacity, window_start, others);
        let with = self.excess(capacity, window_start, &[others, refused].concat());
        (hits + without - with).clamp(0, hits)
    }

    /// Hits that a window or a full bucket admits. With debits, the last of these charges needs only one remaining hit.
    fn admits_at_most(&self, charges: &[Charge]) -> i64 {
        let largest = charges.iter().map(|charge| charge.hits).max().unwrap_or(0);
        match self.capacity {
            // A limit of 0 admits no debits either.
            0 => 0,
            capacity if self.debits => (capacity - 1 + largest).max(0),
            capacity => capacity,
        }
    }

    fn excess(&self, capacity: i64, window_start: WindowStart, admitted: &[Charge]) -> i64 {
        let mut charges: Vec<_> = admitted.iter().copied().filter(|it| it.hits > 0).collect();
        charges.sort_by_key(|charge| (charge.span.to, charge.span.from));
        match self.algorithm {
            Algorithm::FixedWindow => self.excess_by_windows(capacity, window_start, &mut charges),
            Algorithm::SlidingWindowLog => self.excess_by_log(capacity, &mut charges),
            Algorithm::SlidingWindowCounter => {
                self.excess_by_windows(capacity, window_start, &mut charges)
                    + self.excess_by_estimate(capacity, window_start, &mut charges)
            }
            Algorithm::TokenBucket | Algorithm::Gcra => {
                let bound = LinearBound {
                    scale: self.window.into(),
                    base: i128::from(capacity) * i128::from(self.window),
                    slope: if capacity == 0 { 0 } else { self.requests.into() },
                };
                bound.over_admitted(&mut charges, |charge| (charge.span.from, charge.span.to))
            }
        }
    }

    /// Hits within windows i to j are at most capacity × (j - i + 1).
    fn excess_by_windows(
        &self,
        capacity: i64,
        window_start: WindowStart,
        charges: &mut [Charge],
    ) -> i64 {
        let capacity = i128::from(capacity);
        let bound = LinearBound { scale: 1, base: capacity, slope: capacity };
        bound.over_admitted(charges, |charge| self.windows_of(window_start, charge))
    }

    /// The first and the last window that a moment of the span can be in.
    pub(super) fn windows(&self, window_start: WindowStart, span: Span) -> (i64, i64) {
        let first = (span.from - window_start.to).div_euclid(self.window);
        (first, (span.to - window_start.from).div_euclid(self.window))
    }

    /// The first and the last window that hits may have been charged to.
    pub(super) fn windows_of(&self, window_start: WindowStart, charge: &Charge) -> (i64, i64) {
        let (first, last) = self.windows(window_start, charge.span);
        let Some(ends) = charge.window_ends else { return (first, last) };
        // The first and the last window that may end within `ends`.
        let shown_first = (ends.from - 1 - window_start.to).div_euclid(self.window);
        let shown_last = (ends.to - window_start.from).div_euclid(self.window) - 1;
        let shown_first = if self.may_show_later_window { first } else { first.max(shown_first) };
        let shown = (shown_first, last.min(shown_last));
        // Empty if the clock was set in between.
        if shown.0 <= shown.1 { shown } else { (first, last) }
    }

    /// Hits within a span shorter than n windows are at most capacity × n. Tried for n = 1, 2, 4, … windows.
    fn excess_by_log(&self, capacity: i64, charges: &mut [Charge]) -> i64 {
        let starts = sorted_starts(charges.iter().map(|charge| charge.span.from));
        let (Some(first), Some(last)) = (starts.first(), charges.last()) else { return 0 };
        let whole = last.span.to - first;
        let mut tree = Tree::new(starts.len());
        let mut over = 0;
        for charge in charges {
            let index = starts.partition_point(|start| *start < charge.span.from);
            tree.add(index, charge.hits.into(), 0);
            let mut windows = 1;
            let mut excess = 0;
            loop {
                let since = charge.span.to.saturating_sub(self.window.saturating_mul(windows));
                let within = starts.partition_point(|start| *start <= since);
                if within < starts.len() {
                    let bound = i128::from(capacity) * i128::from(windows);
                    excess = excess.max(tree.hits_from(within) - bound);
                }
                if self.window.saturating_mul(windows) > whole {
                    break;
                }
                windows *= 2;
            }
            let excess = i64::try_from(excess).unwrap_or(i64::MAX).min(charge.hits);
            if excess > 0 {
                tree.add(index, -i128::from(excess), 0);
                charge.hits -= excess;
                over += excess;
            }
        }
        over
    }

    /// When a hit was admitted, the estimate was at most the capacity: the hits of its window so far, and the weighted
    /// hits of the previous window.
    fn excess_by_estimate(
        &self,
        capacity: i64,
        window_start: WindowStart,
        charges: &mut [Charge],
    ) -> i64 {
        charges.sort_by_key(|charge| charge.span.to);
        let mut windows = BTreeMap::<i64, i64>::new();
        let mut over = 0;
        for charge in charges {
            let (window, last) = self.windows_of(window_start, charge);
            if window != last {
                continue;
            }
            let before = windows.get(&(window - 1)).copied().unwrap_or(0);
            let end = window_start.from + (window + 1) * self.window;
            let left = (end - charge.span.to).clamp(0, self.window);
            let share = self.weighted_previous_hits(before, left);
            let hits = windows.entry(window).or_default();
            *hits += charge.hits;
            let excess = (*hits + share - capacity).clamp(0, charge.hits);
            *hits -= excess;
            charge.hits -= excess;
            over += excess;
        }
        over
    }

    /// The weighted hits of the previous window when `left` of the current window remains, rounded up as documented.
    pub(super) fn weighted_previous_hits(&self, before: i64, left: Micros) -> i64 {
        let (share, window) = (i128::from(before) * i128::from(left), i128::from(self.window));
        i64::try_from((share + window - 1) / window).unwrap_or(i64::MAX)
    }
}

/// A bound on the hits in a span that grows linearly with its length: `(base + slope × length) / scale`.
struct LinearBound {
    scale: i128,
    base: i128,
    slope: i128,
}

impl LinearBound {
    /// Hits beyond the bound, which are subtracted from the charges. `interval` returns begin and end of a charge.
    ///
    /// Keeping each hit that fits, in the order of ends, keeps the maximum number of hits. The reason: if two
    /// overlapping spans are full, so is their union, because their intersection and union together have the same bound
    /// as the two spans, and no fewer hits.
    fn over_admitted(
        &self,
        charges: &mut [Charge],
        interval: impl Fn(&Charge) -> (i64, i64),
    ) -> i64 {
        charges.sort_by_key(|charge| interval(charge).1);
        let starts = sorted_starts(charges.iter().map(|charge| interval(charge).0));
        let mut tree = Tree::new(starts.len());
        let mut over = 0;
        for charge in charges {
            let (start, end) = interval(charge);
            let at = starts.partition_point(|known| *known < start);
            let offset = self.slope * i128::from(start);
            tree.add(at, i128::from(charge.hits) * self.scale, offset);
            let bound = self.base + self.slope * i128::from(end);
            let excess = tree.maximum().unwrap_or(bound) - bound;
            if excess > 0 {
                let excess = (excess + self.scale - 1) / self.scale;
                let excess = i64::try_from(excess).unwrap_or(i64::MAX).min(charge.hits);
                tree.add(at, -i128::from(excess) * self.scale, offset);
                charge.hits -= excess;
                over += excess;
            }
        }
        over
    }
}

fn sorted_starts(starts: impl Iterator<Item = i64>) -> Vec<i64> {
    let mut sorted_starts: Vec<_> = starts.collect();
    sorted_starts.sort_unstable();
    sorted_starts.dedup();
    sorted_starts
}
