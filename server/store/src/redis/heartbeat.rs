//! Tells the other replicas that this one lives, and counts them.
//!
//! One sorted set holds every live replica with the time, by Redis' clock, at which it is taken for dead.
//! The set expires with the last of them.

use std::{
    num::NonZeroU32,
    sync::Arc,
    time::{Duration, Instant},
};

use fred::types::Value;

use super::topology::Topology;
use crate::LiveReplicas;

/// How often a replica says that it lives.
const INTERVAL: Duration = Duration::from_secs(1);

/// How often it tries to while Redis does not answer.
const UNHEARD_INTERVAL: Duration = Duration::from_millis(200);

/// How long it is believed.
const LIFE: Duration = Duration::from_secs(5);

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
        let slot = fred::util::redis_keyslot(&key);
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
        let life = i64::try_from(LIFE.as_millis()).ok()?;
        let args = vec![
            BEAT.into(),
            Value::Integer(1),
            Value::Bytes(self.key.clone().into()),
            self.name.as_str().into(),
            Value::Integer(life),
        ];
        let map = self.topology.map();
        let alive = map.owner(self.slot)?.ask("EVAL", args).await?.as_i64()?;
        NonZeroU32::new(u32::try_from(alive).ok()?)
    }
}
