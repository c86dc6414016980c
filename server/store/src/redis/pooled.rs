//! A connection of a server's pool, and the detection of a server that does not reply on it.

use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use super::pipeline::CommandSender;
use crate::clock;

/// A connection is abandoned after this number of consecutive calls without a reply, if the first of them timed out at
/// least [`SILENCE`] ago. So neither a short pause with many callers nor one caller with a short deadline suffices.
const UNANSWERED_MAX: u32 = 5;
pub(super) const SILENCE: Duration = Duration::from_millis(100);

/// One connection of a pool, as callers use it.
pub(super) struct PooledConnection {
    pub(super) commands: CommandSender,
    /// Consecutive calls without a reply.
    unanswered: AtomicU32,
    /// When the first of them timed out.
    silent_since: AtomicInstant,
    /// Notified when the connection must be abandoned.
    pub(super) abandoned: Notify,
}

impl PooledConnection {
    pub(super) fn new(commands: CommandSender) -> Self {
        Self {
            commands,
            unanswered: AtomicU32::new(0),
            silent_since: AtomicInstant::now(),
            abandoned: Notify::new(),
        }
    }

    /// Records a call that got its reply.
    pub(super) fn note_reply(&self) {
        self.unanswered.store(0, Ordering::Relaxed);
    }

    /// Records a call without a reply by its deadline.
    pub(super) fn note_timeout(&self) {
        let before = self.unanswered.fetch_add(1, Ordering::Relaxed);
        if before == 0 {
            self.silent_since.set();
        }
        if before + 1 >= UNANSWERED_MAX && self.silent_since.is_older_than(SILENCE) {
            self.abandoned.notify_one();
        }
    }
}

/// An instant that many threads can read and set, in milliseconds.
pub(super) struct AtomicInstant {
    start: Instant,
    /// Milliseconds after `start`.
    millis: AtomicU64,
}

impl AtomicInstant {
    pub(super) fn now() -> Self {
        Self { start: clock::now(), millis: AtomicU64::new(0) }
    }

    /// Sets it to the present.
    pub(super) fn set(&self) {
        self.millis.store(self.elapsed(), Ordering::Relaxed);
    }

    pub(super) fn is_older_than(&self, span: Duration) -> bool {
        let age = self.elapsed().saturating_sub(self.millis.load(Ordering::Relaxed));
        Duration::from_millis(age) >= span
    }

    fn elapsed(&self) -> u64 {
        u64::try_from((clock::now() - self.start).as_millis()).unwrap_or(u64::MAX)
    }
}
