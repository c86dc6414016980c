//! A bound on the log lines of libraries, so that a peer that causes many of them does not fill the log.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tracing::{Event, Level, Metadata, Subscriber, callsite::Identifier};
use tracing_subscriber::layer::{Context, Layer};

use crate::telemetry::count::Count;

/// The most lines of one callsite of a library within [`INTERVAL`].
const LINES_MAX: u64 = 10;

/// The interval in which lines are counted, from the first line.
const INTERVAL: Duration = Duration::from_secs(10);

/// The prefix of the targets of this project.
const OWN: &str = "sluicegate";

/// Counts the lines of libraries by callsite, the place in their source.
#[derive(Debug, Default)]
pub(super) struct LogRate {
    /// Bounded, because libraries have a fixed number of callsites.
    callsites: Mutex<HashMap<Identifier, LineCount>>,
    suppressed: Count,
}

/// The lines of one callsite within one interval.
#[derive(Debug)]
struct LineCount {
    metadata: &'static Metadata<'static>,
    since: Instant,
    count: u64,
}

/// Suppressed lines of one callsite.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SuppressedLines {
    pub(super) target: &'static str,
    pub(super) level: Level,
    pub(super) lines: u64,
}

impl LogRate {
    /// The total number of suppressed lines.
    pub(super) fn suppressed(&self) -> u64 {
        self.suppressed.get()
    }

    /// Removes and returns the suppressed lines of intervals that have ended; with `all`, of the current intervals too.
    pub(super) fn drain(&self, now: Instant, all: bool) -> Vec<SuppressedLines> {
        let mut suppressed = Vec::new();
        self.callsites.lock().retain(|_, lines| {
            let is_over = all || now.saturating_duration_since(lines.since) >= INTERVAL;
            if is_over && lines.count > LINES_MAX {
                let (target, level) = (lines.metadata.target(), *lines.metadata.level());
                suppressed.push(SuppressedLines { target, level, lines: lines.count - LINES_MAX });
            }
            !is_over
        });
        suppressed
    }

    /// Counts a line. Returns whether it is logged.
    fn admit(&self, metadata: &'static Metadata<'static>, now: Instant) -> bool {
        // Debug and trace lines are not bounded: an operator has enabled them.
        if metadata.target().starts_with(OWN) || *metadata.level() > Level::INFO {
            return true;
        }
        let mut callsites = self.callsites.lock();
        let lines = callsites.entry(metadata.callsite()).or_insert(LineCount {
            metadata,
            since: now,
            count: 0,
        });
        lines.count += 1;
        let admitted = lines.count <= LINES_MAX;
        if !admitted {
            self.suppressed.add(1);
        }
        admitted
    }
}

/// The layer that applies the bound to each line.
pub(super) struct LogRateLayer(pub(super) std::sync::Arc<LogRate>);

impl<S: Subscriber> Layer<S> for LogRateLayer {
    fn event_enabled(&self, event: &Event<'_>, _context: Context<'_, S>) -> bool {
        self.0.admit(event.metadata(), Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    /// Logs a number of lines, and returns the number of lines that were admitted.
    fn admitted(rate: &Arc<LogRate>, lines: u64, log: impl Fn()) -> u64 {
        struct Seen(Arc<Count>);
        impl<S: Subscriber> Layer<S> for Seen {
            fn on_event(&self, _event: &Event<'_>, _context: Context<'_, S>) {
                self.0.add(1);
            }
        }
        let seen = Arc::<Count>::default();
        let log_of_test = tracing_subscriber::registry()
            .with(Seen(Arc::clone(&seen)))
            .with(LogRateLayer(Arc::clone(rate)));
        tracing::subscriber::with_default(log_of_test, || (0..lines).for_each(|_| log()));
        seen.get()
    }

    #[test]
    fn lines_of_libraries_are_bounded_and_suppressed_ones_counted() {
        let rate = Arc::<LogRate>::default();
        let warn = || tracing::warn!(target: "h2::proto", "reset");
        assert_eq!(admitted(&rate, LINES_MAX + 7, warn), LINES_MAX);
        assert_eq!(admitted(&rate, 3, || tracing::error!(target: "h2::proto", "other")), 3);
        assert_eq!(rate.suppressed(), 7);

        let now = Instant::now();
        assert_eq!(rate.drain(now, false), []);
        let suppressed = [SuppressedLines { target: "h2::proto", level: Level::WARN, lines: 7 }];
        assert_eq!(rate.drain(now + INTERVAL, false), suppressed);
        assert_eq!(rate.drain(now + INTERVAL, true), []);
        assert_eq!(admitted(&rate, LINES_MAX + 2, warn), LINES_MAX, "another interval");
        assert_eq!(rate.drain(now, true).len(), 1);
        assert_eq!(rate.suppressed(), 9);
    }

    #[test]
    fn own_lines_and_debug_lines_are_not_bounded() {
        let rate = Arc::<LogRate>::default();
        let many = LINES_MAX * 3;
        assert_eq!(
            admitted(&rate, many, || tracing::info!(target: "sluicegate::audit", "a")),
            many
        );
        assert_eq!(admitted(&rate, many, || tracing::warn!(target: "sluicegate_store", "b")), many);
        assert_eq!(admitted(&rate, many, || tracing::debug!(target: "h2", "c")), many);
    }
}
