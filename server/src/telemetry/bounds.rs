//! Requests that are denied because they exceed a bound: counted by the bound, and logged now and then, because a
//! misconfigured Envoy sends them too.

use std::time::Duration;

use sluicegate_core::{
    TooLarge,
    request::{DESCRIPTORS_MAX, ENTRIES_MAX},
    rules::SEARCHED_MAX,
};
use sluicegate_store::LogLimit;

use super::count::Count;

/// How often there is a warning about the same bound at most.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// A bound on requests that values of end users can exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bound {
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
    /// Bytes of messages that have not arrived as a whole.
    WaitingBytes,
    /// Bytes of those of one connection.
    WaitingBytesPerConnection,
    /// Bytes of all HTTP bodies that are being read.
    BodyBytes,
}

impl Bound {
    /// Every bound.
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

impl From<TooLarge> for Bound {
    fn from(error: TooLarge) -> Self {
        match error {
            TooLarge::Descriptors => Self::Descriptors,
            TooLarge::Entries => Self::Entries,
            TooLarge::Bytes => Self::Bytes,
        }
    }
}

/// The values of the bounds that are settings or constants elsewhere.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BoundValues {
    pub(crate) request_bytes: usize,
    pub(crate) message_bytes: usize,
    pub(crate) large_requests: usize,
    pub(crate) waiting_bytes: usize,
    pub(crate) waiting_bytes_per_connection: usize,
    pub(crate) body_bytes: usize,
}

impl BoundValues {
    const fn of(self, bound: Bound) -> usize {
        match bound {
            Bound::Descriptors => DESCRIPTORS_MAX,
            Bound::Entries => ENTRIES_MAX,
            Bound::Bytes => self.request_bytes,
            Bound::MessageBytes => self.message_bytes,
            Bound::SearchedBytes => SEARCHED_MAX,
            Bound::LargeRequests => self.large_requests,
            Bound::WaitingBytes => self.waiting_bytes,
            Bound::WaitingBytesPerConnection => self.waiting_bytes_per_connection,
            Bound::BodyBytes => self.body_bytes,
        }
    }
}

/// Counts requests that exceed bounds.
#[derive(Debug)]
pub(crate) struct OverBounds {
    values: BoundValues,
    of: [OverBound; Bound::ALL.len()],
}

/// Counts requests that exceed one bound.
#[derive(Debug)]
struct OverBound {
    count: Count,
    warnings: LogLimit,
}

impl OverBounds {
    pub(crate) fn new(values: BoundValues) -> Self {
        let over =
            |_| OverBound { count: Count::default(), warnings: LogLimit::every(WARNING_INTERVAL) };
        Self { values, of: Bound::ALL.map(over) }
    }

    /// Counts a request, and warns about it at most once a minute.
    pub(crate) fn note(&self, bound: Bound) {
        let Some((_, over)) = self.each().find(|(of, _)| *of == bound) else { return };
        over.count.add(1);
        if over.warnings.allows() {
            tracing::warn!(
                bound = bound.name(),
                max = self.values.of(bound),
                denied_total = over.count.get(),
                "requests exceed a bound and are denied; check the rate limit actions of the callers, or raise the \
                 bound if it is a flag"
            );
        }
    }

    /// Shows each bound and how many requests exceeded it.
    pub(super) fn show(&self, mut show: impl FnMut(&'static str, u64)) {
        self.each().for_each(|(bound, over)| show(bound.name(), over.count.get()));
    }

    fn each(&self) -> impl Iterator<Item = (Bound, &OverBound)> {
        Bound::ALL.into_iter().zip(&self.of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bound_is_counted_for_itself() {
        let bounds = OverBounds::new(BoundValues::default());
        for bound in [Bound::Bytes, Bound::Entries, Bound::Bytes] {
            bounds.note(bound);
        }
        let mut shown = Vec::new();
        bounds.show(|name, count| shown.push((name, count)));
        shown.retain(|(_, count)| *count > 0);
        assert_eq!(shown, [("entries", 1), ("bytes", 2)]);
    }
}
