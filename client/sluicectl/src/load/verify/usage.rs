//! What can have been used of a limit at most, from when hits can have been charged: whether a refusal has a reason.

use std::collections::HashMap;

use sluicegate_core::Algorithm;

use super::bound::{Bound, Charge, Edge, Micros, Span};

/// How much slower than its rate a bucket may refill, in percent: GCRA rounds its interval up to a microsecond, and
/// does not take limits for which that is more.
const ROUNDED_PERCENT: i128 = 1;

/// The most that can have counted against a limit at any moment.
#[derive(Debug)]
pub(super) struct Usage {
    bound: Bound,
    edge: Edge,
    /// Hits by the first moment at which they can have been charged.
    begun: Sums,
    /// Hits by the last.
    ended: Sums,
    /// For aligned windows: the hits that can have been charged in each, by the first moment.
    windows: HashMap<i64, Sums>,
    /// For buckets: how full usage makes one if every hit was charged as late as it can have been, after each.
    levels: Vec<(Micros, i128)>,
    /// Hits that were held for a time, by when that began.
    held: Sums,
    /// The same hits by when it ended.
    returned: Sums,
}

impl Usage {
    /// The usage from these charges, each of which may also not have been made, and from hits that were held for at most
    /// their span and then given back.
    pub(super) fn new(bound: Bound, edge: Edge, charges: &[Charge], held: &[Charge]) -> Self {
        let mut windows = HashMap::<i64, Vec<(Micros, i64)>>::new();
        if bound.is_aligned() {
            for charge in charges {
                let (first, last) = bound.windows_of(edge, charge);
                for window in first..=last {
                    windows.entry(window).or_default().push((charge.span.from, charge.hits));
                }
            }
        }
        let mut usage = Self {
            bound,
            edge,
            begun: Sums::of(charges, |span| span.from),
            ended: Sums::of(charges, |span| span.to),
            windows: windows.into_iter().map(|(it, hits)| (it, Sums::new(hits))).collect(),
            levels: Vec::new(),
            held: Sums::of(held, |span| span.from),
            returned: Sums::of(held, |span| span.to),
        };
        if matches!(bound.algorithm(), Algorithm::TokenBucket | Algorithm::Gcra) {
            let mut ends: Vec<_> = charges.iter().map(|it| (it.span.to, it.hits)).collect();
            ends.sort_unstable();
            for (at, hits) in ends {
                let level = usage.level(at) + i128::from(hits) * usage.unit();
                usage.levels.push((at, level));
            }
        }
        usage
    }

    /// Whether so many hits can have found the limit reached at some moment of the span.
    pub(super) fn may_refuse(&self, span: Span, needs: i64) -> bool {
        let held = self.held.up_to(span.to) - self.returned.up_to(span.from - 1);
        self.most(span).saturating_add(held).saturating_add(needs) > self.bound.capacity()
    }

    /// The most hits that can have counted at some moment of the span, without those that were held.
    fn most(&self, span: Span) -> i64 {
        match self.bound.algorithm() {
            Algorithm::FixedWindow => {
                self.each_window(span).map(|window| self.in_window(window, span.to)).max()
            }
            Algorithm::SlidingWindowLog => {
                let gone = self.ended.up_to(span.from.saturating_sub(self.bound.window()));
                Some(self.begun.up_to(span.to) - gone)
            }
            Algorithm::SlidingWindowCounter => {
                self.each_window(span).map(|window| self.estimate(window, span)).max()
            }
            Algorithm::TokenBucket | Algorithm::Gcra => {
                let unit = self.unit();
                let level = (self.level(span.from) + unit - 1) / unit;
                let level = i64::try_from(level).unwrap_or(i64::MAX);
                let meanwhile = self.begun.up_to(span.to) - self.ended.up_to(span.from);
                Some(level.saturating_add(meanwhile))
            }
        }
        .unwrap_or(0)
    }

    fn each_window(&self, span: Span) -> impl Iterator<Item = i64> {
        let (first, last) = self.bound.windows(self.edge, span);
        first..=last
    }

    fn in_window(&self, window: i64, until: Micros) -> i64 {
        self.windows.get(&window).map_or(0, |hits| hits.up_to(until))
    }

    fn estimate(&self, window: i64, span: Span) -> i64 {
        let length = self.bound.window();
        let left = (self.edge.to + (window + 1) * length - span.from).clamp(0, length);
        let share = self.bound.share(self.in_window(window - 1, span.to), left);
        self.in_window(window, span.to).saturating_add(share)
    }

    /// What one hit adds to a level, which falls by what a microsecond refills.
    fn unit(&self) -> i128 {
        i128::from(self.bound.window()) * 100
    }

    /// The level at a time, of the charges that have ended by then.
    fn level(&self, at: Micros) -> i128 {
        let ended = self.levels.partition_point(|(end, _)| *end <= at);
        let last = ended.checked_sub(1).and_then(|last| self.levels.get(last));
        last.map_or(0, |(end, level)| {
            let refilled = i128::from(self.bound.requests()) * (100 - ROUNDED_PERCENT);
            (level - refilled * i128::from(at - end)).max(0)
        })
    }
}

/// Hits by time.
#[derive(Debug, Default)]
struct Sums(Vec<(Micros, i64)>);

impl Sums {
    /// The hits of the charges by a moment of their spans.
    fn of(charges: &[Charge], moment: impl Fn(Span) -> Micros) -> Self {
        Self::new(charges.iter().map(|it| (moment(it.span), it.hits)).collect())
    }

    fn new(mut hits: Vec<(Micros, i64)>) -> Self {
        hits.sort_unstable();
        let mut sum = 0_i64;
        for (_, hits) in &mut hits {
            sum = sum.saturating_add(*hits);
            *hits = sum;
        }
        Self(hits)
    }

    /// Hits at this time or before.
    fn up_to(&self, time: Micros) -> i64 {
        let before = self.0.partition_point(|(at, _)| *at <= time);
        before.checked_sub(1).and_then(|last| self.0.get(last)).map_or(0, |(_, sum)| *sum)
    }
}
