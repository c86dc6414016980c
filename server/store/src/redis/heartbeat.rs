//! Heartbeat: announces this replica to the others, and counts them.
//!
//! One sorted set has every live replica with its expiry, by Redis' clock.
//! The set expires with the last of them.

use std::{
    collections::VecDeque,
    num::NonZeroU32,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{slots::key_slot, topology::Topology};
use crate::{LiveReplicas, clock};

/// How often a replica says that it lives.
const INTERVAL: Duration = Duration::from_secs(1);

/// How often it tries to while Redis does not answer.
const UNHEARD_INTERVAL: Duration = Duration::from_millis(200);

/// How long it is believed.
const LIFE: Duration = Duration::from_secs(5);

/// More replicas than this are taken for a mistake of the server's.
const REPLICAS_MAX: u32 = 10_000;

const BEAT: &str = include_str!("../../../../lua/heartbeat.lua");

/// How many replicas were counted of late, without a break.
#[derive(Debug, Default)]
struct Counts(VecDeque<(Instant, NonZeroU32)>);

impl Counts {
    /// Adds a count. Returns the most within a replica's life, once they are known for as long: where Redis comes back
    /// empty, or its clock jumps forward, the others need a moment to be counted again.
    fn add(&mut self, now: Instant, count: NonZeroU32) -> Option<NonZeroU32> {
        self.0.push_back((now, count));
        // The first of them shows how long they are known.
        while self.0.get(1).is_some_and(|(at, _)| now - *at >= LIFE) {
            self.0.pop_front();
        }
        let (first, _) = self.0.front()?;
        let is_known = now - *first >= LIFE;
        is_known.then(|| self.0.iter().map(|(_, count)| *count).max()).flatten()
    }
}

/// One replica's sign of life.
pub(super) struct Heartbeat {
    key: Vec<u8>,
    slot: u16,
    name: String,
    topology: Arc<Topology>,
}

impl Heartbeat {
    /// A replica of the installation that has this prefix.
    pub(super) fn new(prefix: &[u8], topology: Arc<Topology>) -> Self {
        let key = [prefix, b"s1:replicas"].concat();
        let slot = key_slot(&key);
        let name = format!("{}-{:016x}", std::process::id(), fastrand::u64(..));
        Self { key, slot, name, topology }
    }

    /// Sends heartbeats without end. Publishes the number of replicas.
    pub(super) async fn beat(self, replicas: Option<LiveReplicas>) {
        let mut counts = Counts::default();
        loop {
            let Some(alive) = self.alive().await else {
                counts = Counts::default();
                tokio::time::sleep(UNHEARD_INTERVAL).await;
                continue;
            };
            let count = counts.add(clock::now(), alive);
            if let Some(replicas) = &replicas {
                replicas.set(count.unwrap_or_else(|| alive.max(replicas.get())));
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }

    async fn alive(&self) -> Option<NonZeroU32> {
        let life = LIFE.as_millis().to_string();
        let arguments = [
            b"EVAL".as_slice(),
            BEAT.as_bytes(),
            b"1",
            &self.key,
            self.name.as_bytes(),
            life.as_bytes(),
        ];
        let map = self.topology.map();
        let alive = map.owner(self.slot)?.ask(&arguments).await?.as_integer()?;
        NonZeroU32::new(u32::try_from(alive).ok().filter(|alive| *alive <= REPLICAS_MAX)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lower_count_is_believed_after_a_life() {
        let began = clock::now();
        let mut counts = Counts::default();
        let mut add = |seconds, count| {
            let now = began + Duration::from_secs(seconds);
            counts.add(now, NonZeroU32::new(count).unwrap()).map(NonZeroU32::get)
        };
        assert_eq!([add(0, 1), add(1, 3), add(4, 3)], [None; 3]);
        assert_eq!([add(5, 3), add(6, 4)], [Some(3), Some(4)]);
        // The clock jumps: all but one are gone for a moment.
        assert_eq!([add(7, 1), add(8, 4)], [Some(4); 2]);
        assert_eq!(
            [add(9, 2), add(12, 2), add(13, 2), add(14, 2)],
            [Some(4), Some(4), Some(4), Some(2)]
        );
    }
}
