//! The faults of a run and their times, derived from a seed.

use std::time::Duration;

use fastrand::Rng;

use crate::{
    record::SETTLING,
    traffic::{Counter, hot_counter},
};

/// Maximum pause. No node may be marked as failed, because such a failover may lose writes.
const PAUSE_MAX: Duration = Duration::from_millis(500);
const _: () = assert!(PAUSE_MAX.as_millis() * 5 < NODE_TIMEOUT.as_millis());

/// Number of primaries of a new cluster, which come before its replicas.
const PRIMARIES: usize = 3;

/// Minimum interval of failovers. Nodes take over in turn, because a node cannot take over again within four node
/// timeouts, and a cluster that tries blocks writes for seconds.
const FAILOVER_INTERVAL: Duration = Duration::from_secs(4);
const _: () =
    assert!(FAILOVER_INTERVAL.as_millis() * 2 * PRIMARIES as u128 > 4 * NODE_TIMEOUT.as_millis());

/// `cluster-node-timeout`, after which a cluster marks a node as failed.
pub(crate) const NODE_TIMEOUT: Duration = Duration::from_secs(5);

/// A fault that begins at a time of the run, or when the previous one of its sequence has ended.
#[derive(Clone, Debug)]
pub(crate) struct Event<F> {
    pub(crate) at: Duration,
    pub(crate) fault: F,
}

/// A fault of Redis.
#[derive(Clone, Debug)]
pub(crate) enum RedisFault {
    /// A replica takes over from its primary, and loses nothing.
    FailOver { node: usize },
    /// A node is paused.
    Pause { node: usize, pause: Duration },
    /// A counter's slot moves to another primary. A node may be paused during the move.
    Move { counter: Counter, to: usize, pause: Option<(usize, Duration)> },
    /// The script cache of a node is flushed.
    FlushScripts { node: usize },
}

/// A fault of a replica of the service.
#[derive(Clone, Debug)]
pub(crate) enum ReplicaFault {
    /// The replica is killed some time after it had nothing to settle, and restarted later.
    Kill { replica: usize, delay: Duration, absence: Duration },
    /// The replica is paused.
    Pause { replica: usize, pause: Duration },
}

/// Two sequences of faults that run concurrently. In each sequence, faults follow one another.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    pub(crate) redis: Vec<Event<RedisFault>>,
    pub(crate) replicas: Vec<Event<ReplicaFault>>,
}

impl Schedule {
    /// The faults of a run of this duration. Indexes of nodes and replicas are used modulo their number.
    pub(crate) fn new(mut random: Rng, span: Duration) -> Self {
        let mut next_primary = PRIMARIES..;
        let mut next_failover = Duration::ZERO;
        let redis = sequence(&mut random, span, 300..1_500, |random, at| {
            let node = random.usize(..);
            match random.u8(0..12) {
                0..=2 if at >= next_failover => {
                    next_failover = at + FAILOVER_INTERVAL;
                    RedisFault::FailOver { node: next_primary.next().unwrap() }
                }
                0..=4 => RedisFault::Pause { node, pause: pause(random) },
                5..=9 => {
                    let counter = hot_counter(random, at);
                    let pause = random.bool().then(|| (random.usize(..), pause(random)));
                    RedisFault::Move { counter, to: node, pause }
                }
                _ => RedisFault::FlushScripts { node },
            }
        });
        let replicas = sequence(&mut random, span, 1_000..4_000, |random, _| {
            let replica = random.usize(..);
            if random.u8(0..3) == 0 {
                let delay = random_millis(random, 0..millis(SETTLING));
                ReplicaFault::Kill { replica, delay, absence: pause(random) }
            } else {
                ReplicaFault::Pause { replica, pause: pause(random) }
            }
        });
        Self { redis, replicas }
    }
}

fn pause(random: &mut Rng) -> Duration {
    random_millis(random, 20..millis(PAUSE_MAX))
}

fn millis(duration: Duration) -> u64 {
    duration.as_millis().try_into().unwrap()
}

fn random_millis(random: &mut Rng, range: std::ops::Range<u64>) -> Duration {
    Duration::from_millis(random.u64(range))
}

/// A sequence of faults with random intervals, in milliseconds.
fn sequence<F>(
    random: &mut Rng,
    span: Duration,
    between: std::ops::Range<u64>,
    mut fault: impl FnMut(&mut Rng, Duration) -> F,
) -> Vec<Event<F>> {
    let mut events = Vec::new();
    let mut at = Duration::ZERO;
    loop {
        at += random_millis(random, between.clone());
        if at >= span {
            return events;
        }
        events.push(Event { at, fault: fault(random, at) });
    }
}
