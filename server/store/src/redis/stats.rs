//! Counts of calls and connections to Redis, and warnings about servers.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use sluicegate_core::CounterKey;

use super::Address;
use crate::{LogLimit, callback::Callback};

/// The most distinct warnings about servers that are logged as warnings.
const WARNINGS_MAX: usize = 1000;

const MAY_EVICT: &str = "Redis may drop live counters when its memory is full, and their limits start again; set \
                         maxmemory-policy noeviction";

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
    /// Redirections that were not followed: to servers that the cluster does not list, or by a server that is
    /// configured as a single one.
    pub redirections_refused: Count,
    /// How often a counter's key had a value that is not a valid state.
    pub counters_unusable: Count,
    pub(super) on_unusable: Callback<CounterKey>,
    refused_log_limit: LogLimit,
    pub(super) on_call: Callback<Duration>,
    warnings: Mutex<LoggedWarnings>,
}

/// Warnings about servers that were logged. Each is logged as a warning once.
#[derive(Debug, Default)]
struct LoggedWarnings {
    texts: Vec<String>,
    /// Whether it was logged that there are more than [`WARNINGS_MAX`].
    is_overflow_logged: bool,
}

/// How a warning about a server is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WarningLevel {
    /// As a warning: it is new.
    Warn,
    /// At debug level, after one warning that further ones are logged like this.
    DebugAfterNotice,
    /// At debug level: it was logged before, or there are too many.
    Debug,
}

impl LoggedWarnings {
    /// How to log a warning. The caller must log it.
    fn add(&mut self, text: String) -> WarningLevel {
        if self.texts.contains(&text) {
            return WarningLevel::Debug;
        }
        if self.texts.len() < WARNINGS_MAX {
            self.texts.push(text);
            return WarningLevel::Warn;
        }
        if std::mem::replace(&mut self.is_overflow_logged, true) {
            return WarningLevel::Debug;
        }
        WarningLevel::DebugAfterNotice
    }
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
        self.on_call.set(callback);
    }

    /// Sets a callback for each counter whose stored value is not a valid state. Only the first callback
    /// is used.
    pub fn on_unusable(&self, callback: impl Fn(CounterKey) + Send + Sync + 'static) {
        self.on_unusable.set(callback);
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
            tracing::warn!(redis = %address, policy, "{MAY_EVICT}");
        } else {
            tracing::debug!(redis = %address, policy, "{MAY_EVICT}");
        }
    }

    /// Warns of servers and sentinels that cannot report the topology.
    pub(super) fn warn_no_topology(&self, address: &Address, why: &str) {
        if self.is_new_warning(format!("{address} {why}")) {
            tracing::warn!(redis = %address, why, "Redis server or sentinel cannot report the topology");
        } else {
            tracing::debug!(redis = %address, why, "Redis server or sentinel cannot report the topology");
        }
    }

    /// Whether the caller must log a warning as a warning, not at debug level. Logs once that there are too many.
    fn is_new_warning(&self, text: String) -> bool {
        let level = self.warnings.lock().add(text);
        if level == WarningLevel::DebugAfterNotice {
            tracing::warn!(
                warnings = WARNINGS_MAX,
                "too many different warnings about Redis servers; further ones are logged at debug level"
            );
        }
        level == WarningLevel::Warn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_warnings_are_announced_once_and_logged_at_debug_level() {
        let mut warnings = LoggedWarnings::default();
        for number in 0..WARNINGS_MAX {
            assert_eq!(warnings.add(number.to_string()), WarningLevel::Warn);
            assert_eq!(warnings.add(number.to_string()), WarningLevel::Debug);
        }
        assert_eq!(warnings.add("a".to_owned()), WarningLevel::DebugAfterNotice);
        assert_eq!(warnings.add("a".to_owned()), WarningLevel::Debug);
        assert_eq!(warnings.add("b".to_owned()), WarningLevel::Debug);
    }
}
