//! Counts of calls and connections to Redis, and warnings about servers.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use sluicegate_core::CounterKey;

use super::Address;
use crate::{LogLimit, observed::Observed};

/// The most different warnings about servers.
const TOLD_MAX: usize = 1000;

/// Counts of calls and connections to Redis.
#[derive(Debug, Default)]
pub struct Stats {
    /// Calls sent.
    pub calls: Count,
    /// Connections made.
    pub connections: Count,
    /// Of these, the ones in the place of one that stood before.
    pub reconnects: Count,
    /// Connections dropped because of a reply beyond a bound, or of none that could be read.
    pub replies_rejected: Count,
    /// Times that scripts were loaded because a server had lost them.
    pub script_loads: Count,
    /// Redirections to servers that the cluster does not name.
    pub redirections_refused: Count,
    /// Times that something was found under a counter's name that cannot be its state.
    pub counters_unusable: Count,
    pub(super) unusable: Observed<CounterKey>,
    refused_logged: LogLimit,
    pub(super) call_durations: Observed<Duration>,
    /// Warnings about servers, each of which is logged once.
    told: Mutex<Vec<String>>,
}

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    pub(super) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// The number.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Stats {
    /// Sets a listener for the duration of each call, from sending to its reply or deadline; calls to one server that
    /// are sent together are one. Only the first listener is used.
    pub fn on_call(&self, listener: impl Fn(Duration) + Send + Sync + 'static) {
        self.call_durations.tell(listener);
    }

    /// Sets a listener for each counter whose stored value is not a valid state. Only the first listener
    /// is used.
    pub fn on_unusable(&self, listener: impl Fn(CounterKey) + Send + Sync + 'static) {
        self.unusable.tell(listener);
    }

    /// A redirection leads to a server that the cluster does not name.
    pub(super) fn redirection_refused(&self, address: &Address) {
        self.redirections_refused.add(1);
        if self.refused_logged.allows() {
            tracing::warn!(
                redis = %address,
                "Redis redirects a call to a server outside of its cluster, applying on_failure"
            );
        }
    }

    /// Warns of a server with bounded memory and an eviction policy.
    pub(super) fn may_evict(&self, address: &Address, policy: &str) {
        if self.tell(format!("{address} {policy}")) {
            tracing::warn!(
                redis = %address, policy,
                "Redis may drop live counters when its memory is full, and with them forget what was used; \
                 set maxmemory-policy noeviction"
            );
        }
    }

    /// Warns of servers and sentinels that cannot report the topology.
    pub(super) fn unreachable(&self, address: &Address, why: &str) {
        if self.tell(format!("{address} {why}")) {
            tracing::warn!(redis = %address, why, "cannot tell which servers there are");
        } else {
            tracing::debug!(redis = %address, why, "cannot tell which servers there are");
        }
    }

    /// Whether this was not reported before.
    fn tell(&self, what: String) -> bool {
        let mut told = self.told.lock();
        let new = told.len() < TOLD_MAX && !told.contains(&what);
        if new {
            told.push(what);
        }
        new
    }
}
