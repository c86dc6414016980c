//! What happens in a run: made from a seed, and shortened where a run fails.

use std::fmt;

use sluicegate_core::{
    Algorithm, Charge, CounterKey, Limit, OnFailure, Window, store::RefusalScope,
};

use crate::world::Delays;

/// Seconds of a window that no run sees the end of.
const LONG_WINDOW: u64 = 86_400;

/// A deadline that no answer misses unless a fault delays it, in milliseconds.
const EASY_DEADLINE: u64 = 10_000;

/// Which stores there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Counters in the memory of one process.
    Memory,
    /// One Redis server.
    Single,
    /// A Redis Cluster of so many primaries.
    Cluster(usize),
}

/// A counter, and the limits that meet it: the first is its rule's, the others come with requests.
#[derive(Clone, Debug)]
pub(crate) struct CounterPlan {
    pub(crate) key: CounterKey,
    /// What is in the braces of the key, which decides about its slot.
    tag: usize,
    pub(crate) limits: Vec<Limit>,
    pub(crate) on_failure: OnFailure,
}

/// A check of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CheckPlan {
    pub(crate) counter: usize,
    pub(crate) limit: usize,
    pub(crate) take: Charge,
    pub(crate) descriptor: usize,
    pub(crate) scope: RefusalScope,
    pub(crate) on_failure: OnFailure,
}

/// When a caller leaves.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Leaves {
    Never,
    /// After so many milliseconds.
    After(u64),
    /// After its future was polled so often.
    Polls(u32),
}

/// Something that happens.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    Request {
        process: usize,
        checks: Vec<CheckPlan>,
        deadline: u64,
        leaves: Leaves,
    },
    /// Gives back up to so many hits that were charged.
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
    /// The process gets no more requests, and ends.
    Drain {
        process: usize,
    },
    Cut {
        process: usize,
        server: usize,
    },
    Pause {
        server: usize,
        millis: u64,
    },
    Refuse {
        server: usize,
        millis: u64,
        why: &'static str,
    },
    FlushScripts {
        server: usize,
    },
    /// A replica copies what the server has.
    Save {
        server: usize,
    },
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
    /// The slot of a counter moves, a key every so many milliseconds.
    Move {
        counter: usize,
        to: usize,
        millis: u64,
    },
}

/// A run, before it is run.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub(crate) seed: u64,
    pub(crate) kind: Kind,
    /// Whether no window ends in the run.
    pub(crate) is_exact: bool,
    /// Whether nothing fails: then every check has a true answer.
    pub(crate) is_calm: bool,
    pub(crate) processes: usize,
    pub(crate) connections: usize,
    /// Whether connections carry bytes in random parts, and tasks let others run first, now and then.
    pub(crate) unsteady: bool,
    pub(crate) deny_cache_entries: usize,
    pub(crate) delays: Delays,
    pub(crate) counters: Vec<CounterPlan>,
    /// In order, each with its time in milliseconds.
    pub(crate) actions: Vec<(u64, Action)>,
}

impl Scenario {
    /// The run of a seed.
    ///
    /// # Panics
    /// Never: all limits are possible.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let kind = match rng.u32(0..100) {
            0..15 => Kind::Memory,
            15..60 => Kind::Single,
            _ => Kind::Cluster(rng.usize(2..=3)),
        };
        let is_exact = kind == Kind::Memory || rng.u32(0..100) < 85;
        let is_calm = kind == Kind::Memory || rng.u32(0..100) < 55;
        let processes = if kind == Kind::Memory { 1 } else { rng.usize(1..=4) };
        let delays = match rng.u32(0..3) {
            0 => Delays { min: 1, max: 3, slow_one_in: 0, slow_max: 0 },
            1 => Delays { min: 1, max: 5, slow_one_in: 4, slow_max: 100 },
            _ => Delays { min: 5, max: 60, slow_one_in: 10, slow_max: 120 },
        };
        let counters = (0..rng.usize(1..=5)).map(|it| counter(&mut rng, it, is_exact)).collect();
        let mut scenario = Self {
            seed,
            kind,
            is_exact,
            is_calm,
            processes,
            connections: rng.usize(1..=3),
            unsteady: kind != Kind::Memory && rng.u32(0..3) == 0,
            deny_cache_entries: if rng.u32(0..10) == 0 { 0 } else { 1000 },
            delays,
            counters,
            actions: Vec::new(),
        };
        let mut at = 0;
        for _ in 0..rng.usize(15..=50) {
            at += if rng.u32(0..10) < 6 { rng.u64(0..=3) } else { rng.u64(5..=400) };
            scenario.add(&mut rng, at);
        }
        scenario.actions.sort_by_key(|(at, _)| *at);
        scenario
    }

    /// Whether a server forgets its scripts.
    fn flushes(&self) -> bool {
        self.actions.iter().any(|(_, action)| matches!(action, Action::FlushScripts { .. }))
    }

    /// Whether a counter is reset.
    pub(crate) fn resets(&self, number: usize) -> bool {
        let of_it = |it: &Action| matches!(it, Action::Reset { counter, .. } if *counter == number);
        self.actions.iter().any(|(_, action)| of_it(action))
    }

    /// Whether one call settles both counters.
    pub(crate) fn is_on_one_slot(&self, one: usize, other: usize) -> bool {
        !matches!(self.kind, Kind::Cluster(_)) || self.counters[one].tag == self.counters[other].tag
    }

    fn servers(&self) -> usize {
        match self.kind {
            Kind::Memory => 0,
            Kind::Single => 1,
            Kind::Cluster(primaries) => primaries,
        }
    }

    fn add(&mut self, rng: &mut fastrand::Rng, at: u64) {
        let process = some(rng, self.processes);
        let counter = some(rng, self.counters.len());
        let servers = self.servers();
        let deadline = match rng.u32(0..2) {
            0 if !self.is_calm => rng.u64(5..=400),
            _ => EASY_DEADLINE,
        };
        let action = match rng.u32(0..100) {
            0..20 => Action::Refund { process, counter, limit: 0, hits: rng.u64(1..=4), deadline },
            20..23 => Action::Reset { process, counter },
            23..25 => Action::Reload { process },
            25..27 if servers > 1 => {
                let (to, millis) = (rng.usize(0..servers), rng.u64(1..=5));
                Action::Move { counter, to, millis }
            }
            27..35 if servers > 0 && !self.is_calm => self.fault(rng, at),
            35..37 => {
                let micros = rng.i64(-5_000_000..=5_000_000);
                if servers > 0 && rng.bool() {
                    Action::ServerClock { server: rng.usize(0..servers), micros }
                } else {
                    Action::ProcessClock { process, micros }
                }
            }
            // Once: a request whose script is gone again when it is asked for the second time fails.
            37 if servers > 0 && !self.flushes() => {
                Action::FlushScripts { server: rng.usize(0..servers) }
            }
            38 if rng.bool() => Action::Drain { process },
            _ => {
                let leaves = match rng.u32(0..20) {
                    0..3 => Leaves::After(rng.u64(0..=200)),
                    3 => Leaves::Polls(rng.u32(1..=3)),
                    _ => Leaves::Never,
                };
                let checks = self.checks(rng);
                Action::Request { process, checks, deadline, leaves }
            }
        };
        self.actions.push((at, action));
    }

    fn fault(&mut self, rng: &mut fastrand::Rng, at: u64) -> Action {
        let server = rng.usize(0..self.servers());
        match rng.u32(0..5) {
            0 => Action::Pause { server, millis: rng.u64(20..=900) },
            1 => {
                let why =
                    ["OOM command not allowed", "MISCONF errors writing", "BUSY running a script"];
                Action::Refuse { server, millis: rng.u64(20..=900), why: why[rng.usize(0..3)] }
            }
            2 => {
                let behind = rng.u64(0..=300);
                self.actions.push((at.saturating_sub(behind), Action::Save { server }));
                Action::FailOver { server }
            }
            _ => Action::Cut { process: rng.usize(0..self.processes), server },
        }
    }

    fn checks(&self, rng: &mut fastrand::Rng) -> Vec<CheckPlan> {
        let count = if rng.bool() { 1 } else { rng.usize(1..=4) };
        let mut descriptor = 0;
        let mut scope = scope(rng);
        let check = |position: usize| {
            if position > 0 && rng.u32(0..5) > 0 {
                descriptor += 1;
                scope = self::scope(rng);
            }
            let counter = some(rng, self.counters.len());
            let limits = self.counters[counter].limits.len();
            let limit = if rng.u32(0..5) == 0 { rng.usize(0..limits) } else { 0 };
            let hits = match rng.u32(0..20) {
                0 => 0,
                1..13 => 1,
                13..19 => rng.u64(2..=4),
                _ => 20,
            };
            let take = match rng.u32(0..20) {
                0 => Charge::Always { hits, needs: 1 },
                1 => Charge::Always { hits, needs: hits },
                _ => Charge::Exactly(hits),
            };
            let on_failure = self.counters[counter].on_failure;
            CheckPlan { counter, limit, take, descriptor, scope, on_failure }
        };
        (0..count).map(check).collect()
    }
}

/// One of so many, the first more often than the others: what meets often shows more.
fn some(rng: &mut fastrand::Rng, count: usize) -> usize {
    if rng.u32(0..5) < 2 { 0 } else { rng.usize(0..count) }
}

fn scope(rng: &mut fastrand::Rng) -> RefusalScope {
    match rng.u32(0..20) {
        0..2 => RefusalScope::None,
        2..4 => RefusalScope::Quota,
        _ => RefusalScope::Request,
    }
}

fn counter(rng: &mut fastrand::Rng, number: usize, is_exact: bool) -> CounterPlan {
    let algorithm = Algorithm::ALL[rng.usize(0..Algorithm::ALL.len())];
    let seconds = if is_exact { LONG_WINDOW } else { rng.u64(1..=3) };
    let window = Window::from_seconds(seconds).unwrap();
    let may_be_none = algorithm != Algorithm::Gcra;
    let mut requests = |least: u32| {
        if may_be_none && rng.u32(0..20) == 0 { 0 } else { rng.u32(least..=8) }
    };
    let first = requests(1);
    let mut limits = vec![Limit::new(algorithm, first, window, None).unwrap()];
    let other = requests(1);
    // Where hits are kept as time, or come back before the run ends, another rate would read them as other hits.
    let is_of_one_rate =
        algorithm == Algorithm::Gcra || algorithm == Algorithm::TokenBucket && !is_exact;
    let other = match first {
        1.. if is_of_one_rate => Limit::new(algorithm, first, window, Some(other.max(1))),
        0 if is_of_one_rate => Limit::new(algorithm, first, window, None),
        _ => Limit::new(algorithm, other, window, None),
    };
    limits.push(other.unwrap());
    let tag = rng.usize(0..4);
    let key = format!("s1:{}:{seconds}:{{t{tag}}}:d:c={number}", algorithm.code());
    let policies = [OnFailure::Allow, OnFailure::Deny, OnFailure::Local, OnFailure::Defer];
    let on_failure = policies[rng.usize(0..policies.len())];
    CounterPlan { key: CounterKey::from_text(key.as_bytes()).unwrap(), tag, limits, on_failure }
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
            if self.is_calm { "no faults, " } else { "" },
            if self.deny_cache_entries == 0 { "no deny cache, " } else { "" },
            if self.unsteady { "unsteady, " } else { "" },
            self.delays
        )?;
        for (number, counter) in self.counters.iter().enumerate() {
            let limits: Vec<_> =
                counter.limits.iter().map(|it| (it.requests(), it.capacity())).collect();
            let CounterPlan { key, on_failure, .. } = counter;
            writeln!(
                f,
                "  counter {number}: {key:?}, requests and capacity {limits:?}, {on_failure:?}"
            )?;
        }
        Ok(())
    }
}
