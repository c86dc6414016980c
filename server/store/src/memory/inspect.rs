//! Counters by name: each shard is locked for a bounded number of them.

use sluicegate_core::{CounterKey, key::TenantKeys};

use super::{Memory, locked, shard};
use crate::{Clock, Inspect, Reset, STEP_MAX, Step, Unavailable};

/// Where a search in memory continues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    shard: usize,
    place: shard::Place,
}

impl<C: Clock> Inspect for Memory<C> {
    type Cursor = Cursor;

    async fn reset(&self, keys: &[CounterKey], reset: Reset) -> Result<u64, Unavailable> {
        let now = self.clock.read().steady;
        let reset = keys.iter().filter(|key| {
            let number = locked::number(key, self.shards.len() as u64);
            let shard = usize::try_from(number).ok().and_then(|number| self.shards.get(number));
            shard.is_some_and(|shard| match reset {
                Reset::Now => shard.lock().remove(key, now),
                Reset::DryRun => shard.lock().holds(key, now),
            })
        });
        Ok(reset.count() as u64)
    }

    async fn step(
        &self,
        owner: &TenantKeys,
        from: Option<Cursor>,
    ) -> Result<Step<Cursor>, Unavailable> {
        let Cursor { shard: number, place } = from.unwrap_or_default();
        let Some(shard) = self.shards.get(number) else {
            return Ok(Step { found: Vec::new(), next: None });
        };
        let now = self.clock.read().steady;
        let (found, next) = shard.lock().keys(place, STEP_MAX, now, |key| owner.contains(key));
        let next = match next {
            Some(place) => Some(Cursor { shard: number, place }),
            None if number + 1 < self.shards.len() => {
                Some(Cursor { shard: number + 1, place: shard::Place::default() })
            }
            None => None,
        };
        Ok(Step { found, next })
    }
}
