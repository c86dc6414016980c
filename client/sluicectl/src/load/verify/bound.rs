//! What a limit admits at most, from when its hits can have been charged.
//!
//! Written from the documentation of the algorithms (`docs/limits.md`), apart from the code that decides. Nothing is known
//! of a hit but that it was charged between its question and its answer, so every bound is one of reasoning about spans:
//!
//! | algorithm | bound | source |
//! |---|---|---|
//! | fixed window | limit × windows, for hits that lie within a range of aligned windows | upstream's counters |
//! | sliding window log | limit × n, for hits that lie within a span shorter than n windows | "in any window" |
//! | sliding window counter | as a fixed window; and hits of the window so far + share of those in the one before | Cloudflare, "How we built rate limiting capable of scaling to millions of domains" (2017) |
//! | token bucket, GCRA | burst + rate × span, for hits that lie within any span | ITU-T I.371, annex A |

use std::collections::BTreeMap;

use sluicegate_core::{Algorithm, Counting, Limit};

use super::tree::Tree;

/// Time in microseconds since the run began; negative before.
pub(super) type Micros = i64;

/// A span of time, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) from: Micros,
    pub(super) to: Micros,
}

impl Span {
    /// The span so much later.
    pub(super) const fn moved(self, by: Micros) -> Self {
        Self { from: self.from + by, to: self.to + by }
    }

    /// What two spans have in common.
    pub(super) fn common(self, other: Self) -> Option<Self> {
        let (from, to) = (self.from.max(other.from), self.to.min(other.to));
        (from <= to).then_some(Self { from, to })
    }
}

/// Hits of one request, and when they were charged: at one moment of the span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Charge {
    pub(super) span: Span,
    pub(super) hits: i64,
    /// Where the aligned window ends that their answer shows.
    pub(super) window_ends: Option<Span>,
}

/// Where window 0 begins: within this span. Window n begins n windows later.
pub(super) type Edge = Span;

/// What is promised of a limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bound {
    algorithm: Algorithm,
    /// Hits that a window or a full bucket holds.
    capacity: i64,
    /// Hits by which a bucket refills in a window.
    requests: i64,
    window: Micros,
    /// Whether hits are admitted as long as anything is left.
    debits: bool,
    /// Whether an answer may show the end of a later window than that in which hits were charged: envoyproxy/ratelimit
    /// names the window, charges it, and works out the time until the reset afterwards.
    shows_late: bool,
}

impl Bound {
    pub(super) fn new(limit: &Limit, counting: Counting) -> Self {
        Self {
            algorithm: limit.algorithm(),
            capacity: limit.capacity().into(),
            requests: limit.requests().into(),
            window: i64::from(limit.window().seconds()) * 1_000_000,
            debits: counting == Counting::Debit,
            shows_late: counting == Counting::Upstream,
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

    /// Whether hits that were used come back only when a window ends.
    pub(super) const fn only_uses_up(&self) -> bool {
        matches!(self.algorithm, Algorithm::FixedWindow)
    }

    /// Whether windows are aligned, so that it matters where they begin.
    pub(super) const fn is_aligned(&self) -> bool {
        matches!(self.algorithm, Algorithm::FixedWindow | Algorithm::SlidingWindowCounter)
    }

    /// Where the window ends in which hits were charged, from where their answer says that the counter is reset; `None`
    /// where windows are not aligned. A sliding counter is reset when they no longer count, a window later.
    pub(super) const fn window_end(&self, reset: Span) -> Option<Span> {
        match self.algorithm {
            Algorithm::FixedWindow => Some(reset),
            Algorithm::SlidingWindowCounter => Some(reset.moved(-self.window)),
            Algorithm::SlidingWindowLog | Algorithm::TokenBucket | Algorithm::Gcra => None,
        }
    }

    /// Hits that cannot have been admitted by the limit: in the order of their answers, those that no order and no
    /// instant explains together with the hits before them that can.
    pub(super) fn over(&self, edge: Edge, admitted: &[Charge]) -> i64 {
        self.over_capacity(self.admits_at_most(admitted), edge, admitted)
    }

    /// Of refused hits those that the limit would have admitted beside the others.
    pub(super) fn missed(&self, edge: Edge, others: &[Charge], refused: &[Charge]) -> i64 {
        let capacity = self.admits_at_most(refused);
        let hits: i64 = refused.iter().map(|charge| charge.hits).sum();
        let without = self.over_capacity(capacity, edge, others);
        let with = self.over_capacity(capacity, edge, &[others, refused].concat());
        (hits + without - with).clamp(0, hits)
    }

    /// Hits that a window or a full bucket admits: the last of these charges may have found a single hit left.
    fn admits_at_most(&self, charges: &[Charge]) -> i64 {
        let largest = charges.iter().map(|charge| charge.hits).max().unwrap_or(0);
        match self.capacity {
            // A limit of nothing admits nothing, also where it would admit debits.
            0 => 0,
            capacity if self.debits => (capacity - 1 + largest).max(0),
            capacity => capacity,
        }
    }

    fn over_capacity(&self, capacity: i64, edge: Edge, admitted: &[Charge]) -> i64 {
        let mut charges: Vec<_> = admitted.iter().copied().filter(|it| it.hits > 0).collect();
        charges.sort_by_key(|charge| (charge.span.to, charge.span.from));
        match self.algorithm {
            Algorithm::FixedWindow => self.over_windows(capacity, edge, &mut charges),
            Algorithm::SlidingWindowLog => self.over_log(capacity, &mut charges),
            Algorithm::SlidingWindowCounter => {
                self.over_windows(capacity, edge, &mut charges)
                    + self.over_estimate(capacity, edge, &mut charges)
            }
            Algorithm::TokenBucket | Algorithm::Gcra => {
                let line = Line {
                    scale: self.window.into(),
                    base: i128::from(capacity) * i128::from(self.window),
                    slope: if capacity == 0 { 0 } else { self.requests.into() },
                };
                line.over(&mut charges, |charge| (charge.span.from, charge.span.to))
            }
        }
    }

    /// Hits within windows i to j are at most capacity × (j - i + 1).
    fn over_windows(&self, capacity: i64, edge: Edge, charges: &mut [Charge]) -> i64 {
        let capacity = i128::from(capacity);
        let line = Line { scale: 1, base: capacity, slope: capacity };
        line.over(charges, |charge| self.windows_of(edge, charge))
    }

    /// The first and the last window in which a moment of the span can lie.
    pub(super) fn windows(&self, edge: Edge, span: Span) -> (i64, i64) {
        let first = (span.from - edge.to).div_euclid(self.window);
        (first, (span.to - edge.from).div_euclid(self.window))
    }

    /// The first and the last window to which hits can have been charged.
    pub(super) fn windows_of(&self, edge: Edge, charge: &Charge) -> (i64, i64) {
        let (first, last) = self.windows(edge, charge.span);
        let Some(ends) = charge.window_ends else { return (first, last) };
        // The first window whose end can be as late as the span of ends begins, and the last whose end can be as early as
        // it finishes.
        let shown_first = (ends.from - 1 - edge.to).div_euclid(self.window);
        let shown_last = (ends.to - edge.from).div_euclid(self.window) - 1;
        let shown_first = if self.shows_late { first } else { first.max(shown_first) };
        let shown = (shown_first, last.min(shown_last));
        // Unless the clock was set between.
        if shown.0 <= shown.1 { shown } else { (first, last) }
    }

    /// Hits within a span shorter than n windows are at most capacity × n. Tried for n = 1, 2, 4, … windows.
    fn over_log(&self, capacity: i64, charges: &mut [Charge]) -> i64 {
        let starts = places(charges.iter().map(|charge| charge.span.from));
        let (Some(first), Some(last)) = (starts.first(), charges.last()) else { return 0 };
        let whole = last.span.to - first;
        let mut tree = Tree::new(starts.len());
        let mut over = 0;
        for charge in charges {
            let place = starts.partition_point(|start| *start < charge.span.from);
            tree.add(place, charge.hits.into(), 0);
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
                tree.add(place, -i128::from(excess), 0);
                charge.hits -= excess;
                over += excess;
            }
        }
        over
    }

    /// When the last of some hits of a window was admitted, the estimate with it was at most the capacity: all of them,
    /// and the share of the hits of the window before that a window up to then still reaches.
    fn over_estimate(&self, capacity: i64, edge: Edge, charges: &mut [Charge]) -> i64 {
        charges.sort_by_key(|charge| charge.span.to);
        let mut windows = BTreeMap::<i64, i64>::new();
        let mut over = 0;
        for charge in charges {
            let (window, last) = self.windows_of(edge, charge);
            if window != last {
                continue;
            }
            let before = windows.get(&(window - 1)).copied().unwrap_or(0);
            let end = edge.from + (window + 1) * self.window;
            let left = (end - charge.span.to).clamp(0, self.window);
            let share = self.share(before, left);
            let hits = windows.entry(window).or_default();
            *hits += charge.hits;
            let excess = (*hits + share - capacity).clamp(0, charge.hits);
            *hits -= excess;
            charge.hits -= excess;
            over += excess;
        }
        over
    }

    /// The hits of the window before that still count when so much of this one is left, rounded up as documented.
    pub(super) fn share(&self, before: i64, left: Micros) -> i64 {
        let (share, window) = (i128::from(before) * i128::from(left), i128::from(self.window));
        i64::try_from((share + window - 1) / window).unwrap_or(i64::MAX)
    }
}

/// A bound on the hits within a span that grows evenly with it: `(base + slope × length) / scale`.
struct Line {
    scale: i128,
    base: i128,
    slope: i128,
}

impl Line {
    /// Hits beyond the bound, taken from the charges. `place` tells where the span of one begins and ends.
    ///
    /// Bounds of spans that overlap add up to those of what they have in common and of what they cover together, and hits
    /// to no less. So keeping what fits, in the order of their ends, keeps as many hits as any choice of them.
    fn over(&self, charges: &mut [Charge], place: impl Fn(&Charge) -> (i64, i64)) -> i64 {
        charges.sort_by_key(|charge| place(charge).1);
        let starts = places(charges.iter().map(|charge| place(charge).0));
        let mut tree = Tree::new(starts.len());
        let mut over = 0;
        for charge in charges {
            let (start, end) = place(charge);
            let at = starts.partition_point(|known| *known < start);
            let line = self.slope * i128::from(start);
            tree.add(at, i128::from(charge.hits) * self.scale, line);
            let bound = self.base + self.slope * i128::from(end);
            let excess = tree.largest().unwrap_or(bound) - bound;
            if excess > 0 {
                let excess = (excess + self.scale - 1) / self.scale;
                let excess = i64::try_from(excess).unwrap_or(i64::MAX).min(charge.hits);
                tree.add(at, -i128::from(excess) * self.scale, line);
                charge.hits -= excess;
                over += excess;
            }
        }
        over
    }
}

fn places(starts: impl Iterator<Item = i64>) -> Vec<i64> {
    let mut places: Vec<_> = starts.collect();
    places.sort_unstable();
    places.dedup();
    places
}
