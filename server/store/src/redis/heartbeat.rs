//! Tells the other replicas that this one lives, and counts them.
//!
//! One sorted set holds every live replica with the time, by Redis' clock, at which it is taken for dead.
//! The set expires with the last of them.

use std::{
    num::NonZeroU32,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{slots::key_slot, topology::Topology};
use crate::LiveReplicas;

/// How often a replica says that it lives.
const INTERVAL: Duration = Duration::from_secs(1);

/// How often it tries to while Redis does not answer.
const UNHEARD_INTERVAL: Duration = Duration::from_millis(200);

/// How long it is believed.
const LIFE: Duration = Duration::from_secs(5);

/// More replicas than this are taken for a mistake of the server's.
const REPLICAS_MAX: u32 = 10_000;

const BEAT: &str = include_str!("../../../../lua/heartbeat.lua");

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

    /// Beats for ever. Shows how many do.
    pub(super) async fn beat(self, replicas: Option<LiveReplicas>) {
        let mut heard_since = None;
        loop {
            let Some(alive) = self.alive().await else {
                heard_since = None;
                tokio::time::sleep(UNHEARD_INTERVAL).await;
                continue;
            };
            let heard_since = *heard_since.get_or_insert_with(Instant::now);
            if let Some(replicas) = &replicas
                // Where Redis comes back empty the others need a moment to be counted again.
                && (alive > replicas.get() || heard_since.elapsed() > LIFE)
            {
                replicas.set(alive);
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
