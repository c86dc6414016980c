//! Requests that are refused because a bound is exceeded. They are counted for each bound, and logged at intervals,
//! because the cause may be the configuration of the callers.

use std::time::Duration;

use sluicegate_core::{
    TooLarge,
    request::{DESCRIPTORS_MAX, ENTRIES_MAX},
    rules::SEARCHED_BYTES_MAX,
};
use sluicegate_store::LogLimit;

use super::count::Count;

/// The shortest time between two warnings about the same bound.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// A bound on requests. A request that exceeds it is refused, not answered with an error, because values of end users
/// can exceed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefusalBound {
    /// Descriptors of a request.
    Descriptors,
    /// Entries of a descriptor.
    Entries,
    /// Bytes of the domain, keys and values of a request.
    Bytes,
    /// Bytes of a message.
    MessageBytes,
    /// Bytes that are searched for patterns.
    SearchedBytes,
    /// Large requests that are decided or wait.
    LargeRequests,
    /// Bytes of messages that have not fully arrived, on all connections.
    WaitingBytes,
    /// Bytes of messages that have not fully arrived, on one connection.
    WaitingBytesPerConnection,
    /// Bytes of all HTTP bodies in progress.
    BodyBytes,
}

/// Why a request is refused without a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefusalReason {
    /// A bound is exceeded.
    OverBound(RefusalBound),
    /// There are too many requests in flight.
    Shed,
}

impl RefusalReason {
    /// The `source` in the decision log.
    pub(super) const fn source(self) -> &'static str {
        match self {
            Self::OverBound(_) => "bound",
            Self::Shed => "shed",
        }
    }
}

impl RefusalBound {
    /// All bounds.
    pub(crate) const ALL: [Self; 9] = [
        Self::Descriptors,
        Self::Entries,
        Self::Bytes,
        Self::MessageBytes,
        Self::SearchedBytes,
        Self::LargeRequests,
        Self::WaitingBytes,
        Self::WaitingBytesPerConnection,
        Self::BodyBytes,
    ];

    /// The name in metrics, logs and traces.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Descriptors => "descriptors",
            Self::Entries => "entries",
            Self::Bytes => "bytes",
            Self::MessageBytes => "message_bytes",
            Self::SearchedBytes => "searched_bytes",
            Self::LargeRequests => "large_requests",
            Self::WaitingBytes => "waiting_bytes",
            Self::WaitingBytesPerConnection => "waiting_bytes_per_connection",
            Self::BodyBytes => "body_bytes",
        }
    }
}

impl From<TooLarge> for RefusalBound {
    fn from(error: TooLarge) -> Self {
        match error {
            TooLarge::Descriptors => Self::Descriptors,
            TooLarge::Entries => Self::Entries,
            TooLarge::Bytes => Self::Bytes,
        }
    }
}

/// The values of the bounds that settings or other modules define.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RefusalBoundValues {
    pub(crate) request_bytes: usize,
    pub(crate) message_bytes: usize,
    pub(crate) large_requests: usize,
    pub(crate) waiting_bytes: usize,
    pub(crate) waiting_bytes_per_connection: usize,
    pub(crate) body_bytes: usize,
}

impl RefusalBoundValues {
    const fn value(self, bound: RefusalBound) -> usize {
        match bound {
            RefusalBound::Descriptors => DESCRIPTORS_MAX,
            RefusalBound::Entries => ENTRIES_MAX,
            RefusalBound::Bytes => self.request_bytes,
            RefusalBound::MessageBytes => self.message_bytes,
            RefusalBound::SearchedBytes => SEARCHED_BYTES_MAX,
            RefusalBound::LargeRequests => self.large_requests,
            RefusalBound::WaitingBytes => self.waiting_bytes,
            RefusalBound::WaitingBytesPerConnection => self.waiting_bytes_per_connection,
            RefusalBound::BodyBytes => self.body_bytes,
        }
    }
}

/// Counts requests that are refused because of bounds.
#[derive(Debug)]
pub(crate) struct OverBoundCounts {
    values: RefusalBoundValues,
    counts: [OverBoundCount; RefusalBound::ALL.len()],
}

/// Counts requests that are refused because of one bound.
#[derive(Debug)]
struct OverBoundCount {
    count: Count,
    warnings: LogLimit,
}

impl OverBoundCounts {
    pub(crate) fn new(values: RefusalBoundValues) -> Self {
        let new = |_| OverBoundCount {
            count: Count::default(),
            warnings: LogLimit::every(WARNING_INTERVAL),
        };
        Self { values, counts: RefusalBound::ALL.map(new) }
    }

    /// Counts a request, and logs a warning at most once a minute.
    pub(crate) fn count(&self, bound: RefusalBound) {
        let Some((_, over)) = self.each().find(|(it, _)| *it == bound) else { return };
        over.count.add(1);
        if over.warnings.try_acquire() {
            tracing::warn!(
                bound = bound.name(),
                max = self.values.value(bound),
                refused_total = over.count.get(),
                "requests exceed a bound and are refused; check the rate limit actions of the callers, or raise the \
                 bound if it is a flag"
            );
        }
    }

    /// Calls `observe` with the name and the count of each bound.
    pub(super) fn for_each(&self, mut observe: impl FnMut(&'static str, u64)) {
        self.each().for_each(|(bound, over)| observe(bound.name(), over.count.get()));
    }

    fn each(&self) -> impl Iterator<Item = (RefusalBound, &OverBoundCount)> {
        RefusalBound::ALL.into_iter().zip(&self.counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bound_has_its_own_count() {
        let bounds = OverBoundCounts::new(RefusalBoundValues::default());
        for bound in [RefusalBound::Bytes, RefusalBound::Entries, RefusalBound::Bytes] {
            bounds.count(bound);
        }
        let mut counts = Vec::new();
        bounds.for_each(|name, count| counts.push((name, count)));
        counts.retain(|(_, count)| *count > 0);
        assert_eq!(counts, [("entries", 1), ("bytes", 2)]);
    }
}
