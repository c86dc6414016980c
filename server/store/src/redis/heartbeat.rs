//! Heartbeats announce this replica to the others, and count the live replicas.
//!
//! One sorted set in Redis has every live replica with its expiry, by Redis' clock.
//! The set expires with the last of them.

use std::{
    collections::VecDeque,
    num::NonZeroU32,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{slots::key_slot, topology::Topology};
use crate::{LiveReplicas, clock};

/// Interval of heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);

/// Interval of heartbeats while Redis does not answer.
const HEARTBEAT_RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// How long a replica counts as live after a heartbeat.
const LIFETIME: Duration = Duration::from_secs(5);

/// A reply with more replicas than this is rejected.
const REPLICAS_MAX: u32 = 10_000;

const SCRIPT: &str = include_str!("../../../../lua/heartbeat.lua");

/// The latest counts of replicas, without a failed heartbeat in between.
#[derive(Debug, Default)]
struct RecentCounts(VecDeque<(Instant, NonZeroU32)>);

impl RecentCounts {
    /// Adds a count. Returns the highest count within the last [`LIFETIME`], or `None` if the counts do not go back so
    /// far. If Redis restarts empty, or its clock jumps forwards, the other replicas are missing until their next
    /// heartbeat.
    fn add(&mut self, now: Instant, count: NonZeroU32) -> Option<NonZeroU32> {
        self.0.push_back((now, count));
        // One older count stays, to show how far they go back.
        while self.0.get(1).is_some_and(|(at, _)| now - *at >= LIFETIME) {
            self.0.pop_front();
        }
        let (first, _) = self.0.front()?;
        let is_complete = now - *first >= LIFETIME;
        is_complete.then(|| self.0.iter().map(|(_, count)| *count).max()).flatten()
    }
}

/// The heartbeats of this replica.
pub(super) struct Heartbeat {
    key: Vec<u8>,
    slot: u16,
    name: String,
    topology: Arc<Topology>,
}

impl Heartbeat {
    /// A replica of the installation with this key prefix.
    pub(super) fn new(prefix: &[u8], topology: Arc<Topology>) -> Self {
        let key = [prefix, b"s1:replicas"].concat();
        let slot = key_slot(&key);
        let name = format!("{}-{:016x}", std::process::id(), fastrand::u64(..));
        Self { key, slot, name, topology }
    }

    /// Sends heartbeats until cancelled, and updates the number of replicas.
    pub(super) async fn run(self, replicas: Option<LiveReplicas>) {
        let mut counts = RecentCounts::default();
        loop {
            let Some(live) = self.send().await else {
                counts = RecentCounts::default();
                tokio::time::sleep(HEARTBEAT_RETRY_INTERVAL).await;
                continue;
            };
            let count = counts.add(clock::now(), live);
            if let Some(replicas) = &replicas {
                replicas.set(count.unwrap_or_else(|| live.max(replicas.get())));
            }
            tokio::time::sleep(HEARTBEAT_INTERVAL).await;
        }
    }

    /// Sends one heartbeat. Returns the number of live replicas.
    async fn send(&self) -> Option<NonZeroU32> {
        let lifetime = LIFETIME.as_millis().to_string();
        let arguments = [
            b"EVAL".as_slice(),
            SCRIPT.as_bytes(),
            b"1",
            &self.key,
            self.name.as_bytes(),
            lifetime.as_bytes(),
        ];
        let map = self.topology.slot_map();
        let live = map.owner(self.slot)?.query(&arguments).await?.as_integer()?;
        NonZeroU32::new(u32::try_from(live).ok().filter(|live| *live <= REPLICAS_MAX)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lower_count_applies_after_a_lifetime() {
        let began = clock::now();
        let mut counts = RecentCounts::default();
        let mut add = |seconds, count| {
            let now = began + Duration::from_secs(seconds);
            counts.add(now, NonZeroU32::new(count).unwrap()).map(NonZeroU32::get)
        };
        assert_eq!([add(0, 1), add(1, 3), add(4, 3)], [None; 3]);
        assert_eq!([add(5, 3), add(6, 4)], [Some(3), Some(4)]);
        // The clock of Redis jumps: all replicas but one are missing for a moment.
        assert_eq!([add(7, 1), add(8, 4)], [Some(4); 2]);
        assert_eq!(
            [add(9, 2), add(12, 2), add(13, 2), add(14, 2)],
            [Some(4), Some(4), Some(4), Some(2)]
        );
    }
}
