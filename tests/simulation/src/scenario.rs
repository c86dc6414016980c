//! Scenarios: what happens in a run, generated from a seed.

use std::fmt;

use sluicegate_core::{
    Algorithm, Charge, CounterKey, Limit, OnFailure, Window, store::RefusalScope,
};

use crate::world::Delays;

/// Length in seconds of a window that does not end within a run.
const LONG_WINDOW: u64 = 86_400;

/// Milliseconds to a deadline that no answer misses unless a fault delays it.
const LONG_DEADLINE: u64 = 10_000;

/// The kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// Counters in the memory of one process.
    Memory,
    /// One Redis server.
    Single,
    /// A Redis Cluster with this number of primaries.
    Cluster(usize),
}

/// A counter, and the limits that requests check on it: first the limit of its rule, then limits of overrides.
#[derive(Clone, Debug)]
pub(crate) struct PlannedCounter {
    pub(crate) key: CounterKey,
    /// Number of the key's hash tag, which selects its slot.
    tag: usize,
    pub(crate) limits: Vec<Limit>,
    pub(crate) on_failure: OnFailure,
}

/// A check of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlannedCheck {
    pub(crate) counter: usize,
    pub(crate) limit: usize,
    pub(crate) charge: Charge,
    pub(crate) descriptor: usize,
    pub(crate) scope: RefusalScope,
    pub(crate) on_failure: OnFailure,
}

/// When the caller of a request disconnects.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Disconnect {
    Never,
    /// After this number of milliseconds.
    After(u64),
    /// After this number of polls of the request's future.
    Polls(u32),
}

/// Something that happens in a run.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    Request {
        process: usize,
        checks: Vec<PlannedCheck>,
        deadline: u64,
        disconnect: Disconnect,
    },
    /// Refunds up to `hits` that were charged.
    Refund {
        process: usize,
        counter: usize,
        limit: usize,
        hits: u64,
        deadline: u64,
    },
    Reset {
        process: usize,
        counter: usize,
    },
    Reload {
        process: usize,
    },
    /// The process drains: it gets no more requests, and ends.
    Drain {
        process: usize,
    },
    /// Connections between the process and the server are cut.
    Cut {
        process: usize,
        server: usize,
    },
    /// The server does not respond.
    Pause {
        server: usize,
        millis: u64,
    },
    /// The server replies with an error to all commands that access keys.
    RejectCommands {
        server: usize,
        millis: u64,
        error: &'static str,
    },
    FlushScripts {
        server: usize,
    },
    /// A Redis replica copies the keys of the server.
    Replicate {
        server: usize,
    },
    /// A Redis replica is promoted in place of the server.
    FailOver {
        server: usize,
    },
    /// The clock of a server is set.
    ServerClock {
        server: usize,
        micros: i64,
    },
    /// The wall clock of a process is set.
    ProcessClock {
        process: usize,
        micros: i64,
    },
    /// The slot of the counter moves to another server, one key every `millis`.
    Move {
        counter: usize,
        to: usize,
        millis: u64,
    },
}

/// Everything that decides a run.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub(crate) seed: u64,
    pub(crate) kind: StoreKind,
    /// Whether no window ends within the run, so that counts must be exact.
    pub(crate) is_one_window: bool,
    /// Whether nothing fails, so that the store answers every check.
    pub(crate) is_fault_free: bool,
    pub(crate) processes: usize,
    pub(crate) connections: usize,
    /// Whether connections carry bytes in random parts, and requests and connections let other tasks run first at
    /// random.
    pub(crate) is_jittery: bool,
    pub(crate) deny_cache_entries: usize,
    pub(crate) delays: Delays,
    pub(crate) counters: Vec<PlannedCounter>,
    /// The actions in order, each with its time in milliseconds.
    pub(crate) actions: Vec<(u64, Action)>,
}

impl Scenario {
    /// The scenario of a seed.
    ///
    /// # Panics
    /// A generated limit is not valid, which is a bug of the generator.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let kind = match rng.u32(0..100) {
            0..15 => StoreKind::Memory,
            15..60 => StoreKind::Single,
            _ => StoreKind::Cluster(rng.usize(2..=3)),
        };
        let is_one_window = kind == StoreKind::Memory || rng.u32(0..100) < 85;
        let is_fault_free = kind == StoreKind::Memory || rng.u32(0..100) < 55;
        let processes = if kind == StoreKind::Memory { 1 } else { rng.usize(1..=4) };
        let delays = match rng.u32(0..3) {
            0 => Delays { min: 1, max: 3, slow_one_in: 0, slow_max: 0 },
            1 => Delays { min: 1, max: 5, slow_one_in: 4, slow_max: 100 },
            _ => Delays { min: 5, max: 60, slow_one_in: 10, slow_max: 120 },
        };
        let counters =
            (0..rng.usize(1..=5)).map(|it| random_counter(&mut rng, it, is_one_window)).collect();
        let mut scenario = Self {
            seed,
            kind,
            is_one_window,
            is_fault_free,
            processes,
            connections: rng.usize(1..=3),
            is_jittery: kind != StoreKind::Memory && rng.u32(0..3) == 0,
            deny_cache_entries: if rng.u32(0..10) == 0 { 0 } else { 1000 },
            delays,
            counters,
            actions: Vec::new(),
        };
        let mut at = 0;
        for _ in 0..rng.usize(15..=50) {
            at += if rng.u32(0..10) < 6 { rng.u64(0..=3) } else { rng.u64(5..=400) };
            scenario.add_random_action(&mut rng, at);
        }
        scenario.actions.sort_by_key(|(at, _)| *at);
        scenario
    }

    /// Whether the scripts of a server are flushed.
    fn flushes_scripts(&self) -> bool {
        self.actions.iter().any(|(_, action)| matches!(action, Action::FlushScripts { .. }))
    }

    /// Whether the counter with this number is reset.
    pub(crate) fn resets(&self, number: usize) -> bool {
        let of_it = |it: &Action| matches!(it, Action::Reset { counter, .. } if *counter == number);
        self.actions.iter().any(|(_, action)| of_it(action))
    }

    /// Whether both counters are on one slot, so that one call settles them.
    pub(crate) fn are_on_one_slot(&self, one: usize, other: usize) -> bool {
        !matches!(self.kind, StoreKind::Cluster(_))
            || self.counters[one].tag == self.counters[other].tag
    }

    fn servers(&self) -> usize {
        match self.kind {
            StoreKind::Memory => 0,
            StoreKind::Single => 1,
            StoreKind::Cluster(primaries) => primaries,
        }
    }

    /// Adds a random action.
    fn add_random_action(&mut self, rng: &mut fastrand::Rng, at: u64) {
        let process = skewed_index(rng, self.processes);
        let counter = skewed_index(rng, self.counters.len());
        let servers = self.servers();
        let deadline = match rng.u32(0..2) {
            0 if !self.is_fault_free => rng.u64(5..=400),
            _ => LONG_DEADLINE,
        };
        let action = match rng.u32(0..100) {
            0..20 => Action::Refund { process, counter, limit: 0, hits: rng.u64(1..=4), deadline },
            20..23 => Action::Reset { process, counter },
            23..25 => Action::Reload { process },
            25..27 if servers > 1 => {
                let (to, millis) = (rng.usize(0..servers), rng.u64(1..=5));
                Action::Move { counter, to, millis }
            }
            27..35 if servers > 0 && !self.is_fault_free => self.random_fault(rng, at),
            35..37 => {
                let micros = rng.i64(-5_000_000..=5_000_000);
                if servers > 0 && rng.bool() {
                    Action::ServerClock { server: rng.usize(0..servers), micros }
                } else {
                    Action::ProcessClock { process, micros }
                }
            }
            // At most once in a run, because a request fails if its script is missing in the second call too.
            37 if servers > 0 && !self.flushes_scripts() => {
                Action::FlushScripts { server: rng.usize(0..servers) }
            }
            38 if rng.bool() => Action::Drain { process },
            _ => {
                let disconnect = match rng.u32(0..20) {
                    0..3 => Disconnect::After(rng.u64(0..=200)),
                    3 => Disconnect::Polls(rng.u32(1..=3)),
                    _ => Disconnect::Never,
                };
                let checks = self.random_checks(rng);
                Action::Request { process, checks, deadline, disconnect }
            }
        };
        self.actions.push((at, action));
    }

    /// A random fault.
    fn random_fault(&mut self, rng: &mut fastrand::Rng, at: u64) -> Action {
        let server = rng.usize(0..self.servers());
        match rng.u32(0..5) {
            0 => Action::Pause { server, millis: rng.u64(20..=900) },
            1 => {
                let errors =
                    ["OOM command not allowed", "MISCONF errors writing", "BUSY running a script"];
                let (millis, error) = (rng.u64(20..=900), errors[rng.usize(0..3)]);
                Action::RejectCommands { server, millis, error }
            }
            2 => {
                let lag = rng.u64(0..=300);
                self.actions.push((at.saturating_sub(lag), Action::Replicate { server }));
                Action::FailOver { server }
            }
            _ => Action::Cut { process: rng.usize(0..self.processes), server },
        }
    }

    /// The checks of a random request.
    fn random_checks(&self, rng: &mut fastrand::Rng) -> Vec<PlannedCheck> {
        let count = if rng.bool() { 1 } else { rng.usize(1..=4) };
        let mut descriptor = 0;
        let mut scope = random_scope(rng);
        let check = |position: usize| {
            if position > 0 && rng.u32(0..5) > 0 {
                descriptor += 1;
                scope = random_scope(rng);
            }
            let counter = skewed_index(rng, self.counters.len());
            let limits = self.counters[counter].limits.len();
            let limit = if rng.u32(0..5) == 0 { rng.usize(0..limits) } else { 0 };
            let hits = match rng.u32(0..20) {
                0 => 0,
                1..13 => 1,
                13..19 => rng.u64(2..=4),
                _ => 20,
            };
            let charge = match rng.u32(0..20) {
                0 => Charge::Always { hits, needs: 1 },
                1 => Charge::Always { hits, needs: hits },
                _ => Charge::IfAllowed(hits),
            };
            let on_failure = self.counters[counter].on_failure;
            PlannedCheck { counter, limit, charge, descriptor, scope, on_failure }
        };
        (0..count).map(check).collect()
    }
}

/// A random index below `count`. Zero is more likely than the others, so that actions often concern the same process or
/// counter.
fn skewed_index(rng: &mut fastrand::Rng, count: usize) -> usize {
    if rng.u32(0..5) < 2 { 0 } else { rng.usize(0..count) }
}

/// A random scope of refusals.
fn random_scope(rng: &mut fastrand::Rng) -> RefusalScope {
    match rng.u32(0..20) {
        0..2 => RefusalScope::None,
        2..4 => RefusalScope::Quota,
        _ => RefusalScope::Request,
    }
}

/// A random counter.
fn random_counter(rng: &mut fastrand::Rng, number: usize, is_one_window: bool) -> PlannedCounter {
    let algorithm = Algorithm::ALL[rng.usize(0..Algorithm::ALL.len())];
    let seconds = if is_one_window { LONG_WINDOW } else { rng.u64(1..=3) };
    let window = Window::from_seconds(seconds).unwrap();
    let may_be_zero = algorithm != Algorithm::Gcra;
    let mut requests = |least: u32| {
        if may_be_zero && rng.u32(0..20) == 0 { 0 } else { rng.u32(least..=8) }
    };
    let first = requests(1);
    let mut limits = vec![Limit::new(algorithm, first, window, None).unwrap()];
    let other = requests(1);
    // Both limits must have the same rate if usage is stored as time, or refills within the run: with another rate the
    // stored time would mean another number of hits.
    let needs_same_rate =
        algorithm == Algorithm::Gcra || algorithm == Algorithm::TokenBucket && !is_one_window;
    let other = match first {
        1.. if needs_same_rate => Limit::new(algorithm, first, window, Some(other.max(1))),
        0 if needs_same_rate => Limit::new(algorithm, first, window, None),
        _ => Limit::new(algorithm, other, window, None),
    };
    limits.push(other.unwrap());
    let tag = rng.usize(0..4);
    let key = format!("s1:{}:{seconds}:{{t{tag}}}:d:c={number}", algorithm.code());
    let policies = [OnFailure::Allow, OnFailure::Deny, OnFailure::Local, OnFailure::Defer];
    let on_failure = policies[rng.usize(0..policies.len())];
    PlannedCounter { key: CounterKey::from_text(key.as_bytes()).unwrap(), tag, limits, on_failure }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "seed {}: {:?}, {} processes with {} connections to each server, {}{}{}{:?}",
            self.seed,
            self.kind,
            self.processes,
            self.connections,
            if self.is_fault_free { "no faults, " } else { "" },
            if self.deny_cache_entries == 0 { "no deny cache, " } else { "" },
            if self.is_jittery { "jittery, " } else { "" },
            self.delays
        )?;
        for (number, counter) in self.counters.iter().enumerate() {
            let limits: Vec<_> =
                counter.limits.iter().map(|it| (it.requests(), it.capacity())).collect();
            let PlannedCounter { key, on_failure, .. } = counter;
            writeln!(
                f,
                "  counter {number}: {key:?}, requests and capacity {limits:?}, {on_failure:?}"
            )?;
        }
        Ok(())
    }
}
