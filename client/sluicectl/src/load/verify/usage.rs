//! Upper bounds of the usage of a limit, from the time spans in which hits may have been charged: they show whether a
//! refusal has an explanation.

use std::collections::HashMap;

use sluicegate_core::Algorithm;

use super::bound::{Bound, Charge, RunTime, Span, WindowStart};

/// Percentage by which a bucket may refill slower than its rate: GCRA rounds its emission interval up to a microsecond,
/// and limits for which that is more are rejected.
const ROUNDED_PERCENT: i128 = 1;

/// Maximum usage of a limit over time.
#[derive(Debug)]
pub(super) struct Usage {
    bound: Bound,
    window_start: WindowStart,
    /// Hits by the beginning of their spans.
    charged_from: CumulativeHits,
    /// Hits by the end of their spans.
    charged_by: CumulativeHits,
    /// For aligned windows: the hits that may have been charged to each, by the beginning of their spans.
    windows: HashMap<i64, CumulativeHits>,
    /// For buckets: the level after each charge, if every hit was charged at the end of its span.
    levels: Vec<(RunTime, i128)>,
    /// Temporary charges by the beginning of their spans.
    temporary: CumulativeHits,
    /// Temporary charges by the end of their spans.
    refunded: CumulativeHits,
}

impl Usage {
    /// The maximum usage from these possible charges, and from temporary charges, which were refunded by the end of
    /// their spans.
    pub(super) fn new(
        bound: Bound,
        window_start: WindowStart,
        charges: &[Charge],
        temporary: &[Charge],
    ) -> Self {
        let mut windows = HashMap::<i64, Vec<(RunTime, i64)>>::new();
        if bound.is_aligned() {
            for charge in charges {
                let (first, last) = bound.windows_of(window_start, charge);
                for window in first..=last {
                    windows.entry(window).or_default().push((charge.span.from, charge.hits));
                }
            }
        }
        let mut usage = Self {
            bound,
            window_start,
            charged_from: CumulativeHits::of(charges, |span| span.from),
            charged_by: CumulativeHits::of(charges, |span| span.to),
            windows: windows
                .into_iter()
                .map(|(it, hits)| (it, CumulativeHits::new(hits)))
                .collect(),
            levels: Vec::new(),
            temporary: CumulativeHits::of(temporary, |span| span.from),
            refunded: CumulativeHits::of(temporary, |span| span.to),
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

    /// Whether `needs` hits may have exceeded the limit at some moment of the span.
    pub(super) fn may_refuse(&self, span: Span, needs: i64) -> bool {
        let temporary = self.temporary.up_to(span.to) - self.refunded.up_to(span.from - 1);
        self.max_usage(span).saturating_add(temporary).saturating_add(needs) > self.bound.capacity()
    }

    /// The maximum usage at some moment of the span, without temporary charges.
    fn max_usage(&self, span: Span) -> i64 {
        match self.bound.algorithm() {
            Algorithm::FixedWindow => {
                self.windows_of_span(span).map(|window| self.in_window(window, span.to)).max()
            }
            Algorithm::SlidingWindowLog => {
                let expired = self.charged_by.up_to(span.from.saturating_sub(self.bound.window()));
                Some(self.charged_from.up_to(span.to) - expired)
            }
            Algorithm::SlidingWindowCounter => {
                self.windows_of_span(span).map(|window| self.estimate(window, span)).max()
            }
            Algorithm::TokenBucket | Algorithm::Gcra => {
                let unit = self.unit();
                let level = (self.level(span.from) + unit - 1) / unit;
                let level = i64::try_from(level).unwrap_or(i64::MAX);
                let meanwhile = self.charged_from.up_to(span.to) - self.charged_by.up_to(span.from);
                Some(level.saturating_add(meanwhile))
            }
        }
        .unwrap_or(0)
    }

    fn windows_of_span(&self, span: Span) -> impl Iterator<Item = i64> {
        let (first, last) = self.bound.windows(self.window_start, span);
        first..=last
    }

    fn in_window(&self, window: i64, until: RunTime) -> i64 {
        self.windows.get(&window).map_or(0, |hits| hits.up_to(until))
    }

    fn estimate(&self, window: i64, span: Span) -> i64 {
        let length = self.bound.window();
        let left = (self.window_start.to + (window + 1) * length - span.from).clamp(0, length);
        let share = self.bound.weighted_previous_hits(self.in_window(window - 1, span.to), left);
        self.in_window(window, span.to).saturating_add(share)
    }

    /// Increase of the level per hit. The level falls with each microsecond by what the bucket refills.
    fn unit(&self) -> i128 {
        i128::from(self.bound.window()) * 100
    }

    /// The level at a time, of the charges whose spans have ended.
    fn level(&self, at: RunTime) -> i128 {
        let ended = self.levels.partition_point(|(end, _)| *end <= at);
        let last = ended.checked_sub(1).and_then(|last| self.levels.get(last));
        last.map_or(0, |(end, level)| {
            let refilled = i128::from(self.bound.requests()) * (100 - ROUNDED_PERCENT);
            (level - refilled * i128::from(at - end)).max(0)
        })
    }
}

/// Cumulative hits by time.
#[derive(Debug, Default)]
struct CumulativeHits(Vec<(RunTime, i64)>);

impl CumulativeHits {
    /// The cumulative hits of charges, by the beginning or the end of their spans.
    fn of(charges: &[Charge], moment: impl Fn(Span) -> RunTime) -> Self {
        Self::new(charges.iter().map(|it| (moment(it.span), it.hits)).collect())
    }

    fn new(mut hits: Vec<(RunTime, i64)>) -> Self {
        hits.sort_unstable();
        let mut sum = 0_i64;
        for (_, hits) in &mut hits {
            sum = sum.saturating_add(*hits);
            *hits = sum;
        }
        Self(hits)
    }

    /// Hits at or before this time.
    fn up_to(&self, time: RunTime) -> i64 {
        let before = self.0.partition_point(|(at, _)| *at <= time);
        before.checked_sub(1).and_then(|last| self.0.get(last)).map_or(0, |(_, sum)| *sum)
    }
}
