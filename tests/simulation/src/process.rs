//! A simulated process: its store stack, its clock, and its requests in flight.

use std::{
    num::{NonZeroU32, NonZeroUsize},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use sluicegate_core::{Time, defect_fixes::DefectFix};
use sluicegate_store::{
    Clock, ClockTimes, Clocks, MemorySettings, RedisStackSettings, Stack,
    redis::{Deployment, KeyPrefix, Password, RedisConnectionSettings, RedisSettings},
};
use tokio::time::Instant;

use crate::{
    network::Network,
    scenario::{Scenario, StoreKind},
    world::{SimulatedServers, World},
};

/// The time of all clocks when a run starts: six hours after a midnight, in microseconds since the Unix epoch.
pub(crate) const START: u64 = (20_000 * 24 + 6) * 3_600 * 1_000_000;

/// The most counters in the memory of a process: more than a run uses.
const COUNTERS_MAX: usize = 1000;

/// A simulated process of the server.
pub(crate) struct Process {
    pub(crate) stack: Arc<Stack>,
    pub(crate) clock: Arc<ProcessClock>,
    /// Number of its requests and resets in flight.
    pub(crate) in_flight: Arc<AtomicUsize>,
    /// Whether it drains: it gets no more requests, and ends.
    pub(crate) is_draining: AtomicBool,
}

impl Process {
    /// Starts the process with this number.
    pub(crate) fn start(scenario: &Scenario, world: &World, number: usize) -> Self {
        let clock = Arc::new(ProcessClock { began: Instant::now(), skew: AtomicI64::new(0) });
        Self {
            stack: Arc::new(stack(scenario, world, number, &clock)),
            clock,
            in_flight: Arc::default(),
            is_draining: AtomicBool::new(false),
        }
    }
}

/// The store stack of a process.
fn stack(scenario: &Scenario, world: &World, process: usize, clock: &Arc<ProcessClock>) -> Stack {
    let clocks = Clocks { memory: Arc::<ProcessClock>::clone(clock), redis: None };
    let local = MemorySettings { counters_max: COUNTERS_MAX };
    if scenario.kind == StoreKind::Memory {
        return Stack::memory(local, clocks);
    }
    let deployment = match scenario.kind {
        StoreKind::Cluster(primaries) => {
            Deployment::Cluster((0..primaries).map(SimulatedServers::address).collect())
        }
        StoreKind::Memory | StoreKind::Single => Deployment::Single(SimulatedServers::address(0)),
    };
    let (world, is_jittery) = (world.clone(), scenario.is_jittery);
    let connection = RedisConnectionSettings {
        username: None,
        password: Password::None,
        tls: None,
        database: 0,
        connect_timeout: Duration::from_secs(2),
        connector: Some(Arc::new(Network { world, process, is_jittery })),
    };
    let redis = RedisSettings {
        deployment,
        connection,
        connections: NonZeroUsize::new(scenario.connections).unwrap(),
        connections_max: 100,
        key_prefix: KeyPrefix::default(),
    };
    let settings = RedisStackSettings {
        redis,
        deny_cache_entries: scenario.deny_cache_entries,
        local,
        fallback_counters: if DefectFix::FallbackStartsWarm.is_active() { COUNTERS_MAX } else { 0 },
        replicas: NonZeroU32::new(u32::try_from(scenario.processes).unwrap()),
    };
    Stack::redis(settings, clocks).unwrap()
}

/// Counts a request in flight until it is dropped.
pub(crate) struct InFlight(Arc<AtomicUsize>);

impl InFlight {
    pub(crate) fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The clock of a process. Its wall clock can be set.
#[derive(Debug)]
pub(crate) struct ProcessClock {
    began: Instant,
    /// Microseconds by which the wall clock is ahead.
    pub(crate) skew: AtomicI64,
}

impl Clock for ProcessClock {
    fn read(&self) -> ClockTimes {
        let steady = START + u64::try_from(self.began.elapsed().as_micros()).unwrap();
        let wall = steady.saturating_add_signed(self.skew.load(Ordering::Relaxed));
        ClockTimes { wall: Time::from_micros(wall), steady: Time::from_micros(steady) }
    }
}
