//! Usage of a counter within a part of a run.

use std::time::Duration;

use sluicegate_core::Limit;

use crate::{
    history::RequestRecord,
    world::{CounterHistory, Snapshot},
};

/// A part of a run, between two events and two times.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) first_event: u64,
    pub(super) begins: Duration,
    /// Hits that have expired by this time do not count.
    pub(super) observed_from: Duration,
    pub(super) last_event: u64,
    pub(super) ends: Duration,
}

impl Span {
    /// From a request to its answer.
    pub(super) fn of(request: &RequestRecord) -> Self {
        Self {
            first_event: request.began.0,
            begins: request.began.1,
            observed_from: request.began.1,
            last_event: request.ended.0,
            ends: request.ended.1,
        }
    }

    /// The snapshots of a counter that applied within the span, each with the next one.
    fn snapshots<'c>(
        &self,
        counter: &'c CounterHistory,
    ) -> impl Iterator<Item = (&'c Snapshot, Option<&'c Snapshot>)> {
        let &Self { first_event, begins, last_event, ends, .. } = self;
        let nexts = counter.snapshots.iter().skip(1).map(Some).chain([None]);
        counter.snapshots.iter().zip(nexts).filter(move |(snapshot, next)| {
            let is_past = next.is_some_and(|it| it.number < first_event || it.at < begins);
            !is_past && snapshot.number <= last_event && snapshot.at <= ends
        })
    }

    /// The most hits that were used at some time.
    pub(super) fn most(&self, counter: &CounterHistory, limit: &Limit) -> u64 {
        let used = self.snapshots(counter).map(|(it, _)| {
            let refunded = if it.number >= self.first_event { it.effect.refunded } else { 0 };
            used(it, limit, it.at.max(self.observed_from)) + refunded
        });
        used.max().unwrap_or(0)
    }

    /// The least hits that were used at some time.
    pub(super) fn least(&self, counter: &CounterHistory, limit: &Limit) -> u64 {
        let used = self.snapshots(counter).map(|(it, next)| {
            let next = next.filter(|it| it.number <= self.last_event && it.at <= self.ends);
            let until = next.map_or(self.ends, |it| it.at);
            used(it, limit, until).saturating_sub(next.map_or(0, |it| it.effect.refunded))
        });
        used.min().unwrap_or(0)
    }
}

/// Hits used at a time, by a snapshot.
fn used(snapshot: &Snapshot, limit: &Limit, time: Duration) -> u64 {
    let passed = u64::try_from(time.saturating_sub(snapshot.at).as_micros()).unwrap();
    snapshot.usage.hits(limit, snapshot.server_time + passed)
}
