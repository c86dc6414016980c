//! Counts of calls and connections to Redis, and warnings about servers.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use sluicegate_core::CounterKey;

use super::Address;
use crate::{LogLimit, callback::Callback};

/// The most distinct warnings about servers that are remembered.
const WARNINGS_MAX: usize = 1000;

/// Counts of calls and connections to Redis.
#[derive(Debug, Default)]
pub struct Stats {
    /// Calls sent.
    pub calls: Count,
    /// Connections made.
    pub connections: Count,
    /// Of these, connections that replaced an earlier one.
    pub reconnects: Count,
    /// Connections dropped because of a reply that is malformed or beyond a bound.
    pub replies_rejected: Count,
    /// How often scripts were loaded because a server had lost them.
    pub script_loads: Count,
    /// Redirections to servers that the cluster does not list.
    pub redirections_refused: Count,
    /// How often a counter's key had a value that is not a valid state.
    pub counters_unusable: Count,
    pub(super) unusable: Callback<CounterKey>,
    refused_log_limit: LogLimit,
    pub(super) call_durations: Callback<Duration>,
    /// Warnings about servers that were logged. Each is logged once.
    warnings: Mutex<Vec<String>>,
}

/// A number that only increases.
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
    /// Sets a callback for the duration of each call, from sending to its reply or deadline. Calls that are sent to one
    /// server together count as one. Only the first callback is used.
    pub fn on_call(&self, callback: impl Fn(Duration) + Send + Sync + 'static) {
        self.call_durations.set(callback);
    }

    /// Sets a callback for each counter whose stored value is not a valid state. Only the first callback
    /// is used.
    pub fn on_unusable(&self, callback: impl Fn(CounterKey) + Send + Sync + 'static) {
        self.unusable.set(callback);
    }

    /// Counts a redirection to a server that the cluster does not list.
    pub(super) fn note_refused_redirection(&self, address: &Address) {
        self.redirections_refused.add(1);
        if self.refused_log_limit.try_acquire() {
            tracing::warn!(
                redis = %address,
                "Redis redirects a call to a server outside of its cluster, applying on_failure"
            );
        }
    }

    /// Warns of a server with bounded memory and an eviction policy.
    pub(super) fn warn_of_eviction(&self, address: &Address, policy: &str) {
        if self.is_new_warning(format!("{address} {policy}")) {
            tracing::warn!(
                redis = %address, policy,
                "Redis may drop live counters when its memory is full, and their limits start again; \
                 set maxmemory-policy noeviction"
            );
        }
    }

    /// Warns of servers and sentinels that cannot report the topology.
    pub(super) fn warn_no_topology(&self, address: &Address, why: &str) {
        if self.is_new_warning(format!("{address} {why}")) {
            tracing::warn!(redis = %address, why, "Redis server cannot report the topology");
        } else {
            tracing::debug!(redis = %address, why, "Redis server cannot report the topology");
        }
    }

    /// Whether a warning must be logged: it is new, and fewer than `WARNINGS_MAX` are remembered. Remembers it then.
    fn is_new_warning(&self, what: String) -> bool {
        let mut warnings = self.warnings.lock();
        let is_new = warnings.len() < WARNINGS_MAX && !warnings.contains(&what);
        if is_new {
            warnings.push(what);
        }
        is_new
    }
}
