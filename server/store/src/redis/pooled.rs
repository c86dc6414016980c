//! A connection of a server's pool, and when it is given up for silence.

use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use super::pipeline::Commands;
use crate::clock;

/// Calls in a row without an answer, and for how long there must have been none, after which a connection
/// is no longer used. A short pause under many callers, or one caller in a hurry, is no reason.
const UNANSWERED_MAX: u32 = 5;
pub(super) const SILENCE: Duration = Duration::from_millis(100);

/// One connection of a pool, as callers see it.
pub(super) struct PooledConnection {
    pub(super) commands: Commands,
    /// Calls in a row without an answer.
    unanswered: AtomicU32,
    /// When the first of them was given up.
    silent_since: Mark,
    /// Wakes the task that keeps the connection, to drop it.
    pub(super) given_up: Notify,
}

impl PooledConnection {
    pub(super) fn new(commands: Commands) -> Self {
        Self {
            commands,
            unanswered: AtomicU32::new(0),
            silent_since: Mark::now(),
            given_up: Notify::new(),
        }
    }

    pub(super) fn answered(&self) {
        self.unanswered.store(0, Ordering::Relaxed);
    }

    pub(super) fn not_answered(&self) {
        let before = self.unanswered.fetch_add(1, Ordering::Relaxed);
        if before == 0 {
            self.silent_since.set();
        }
        if before + 1 >= UNANSWERED_MAX && self.silent_since.is_older_than(SILENCE) {
            self.given_up.notify_one();
        }
    }
}

/// A moment that many threads may look at and move.
pub(super) struct Mark {
    began: Instant,
    /// Milliseconds since then.
    after: AtomicU64,
}

impl Mark {
    pub(super) fn now() -> Self {
        Self { began: clock::now(), after: AtomicU64::new(0) }
    }

    pub(super) fn set(&self) {
        self.after.store(self.elapsed(), Ordering::Relaxed);
    }

    pub(super) fn is_older_than(&self, span: Duration) -> bool {
        let age = self.elapsed().saturating_sub(self.after.load(Ordering::Relaxed));
        Duration::from_millis(age) >= span
    }

    fn elapsed(&self) -> u64 {
        u64::try_from((clock::now() - self.began).as_millis()).unwrap_or(u64::MAX)
    }
}
