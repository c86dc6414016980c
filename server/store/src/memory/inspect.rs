//! Scanning and resetting counters. A step locks one shard and examines a bounded number of its buckets.

use sluicegate_core::{CounterKey, key::TenantKeys};

use super::{Memory, locked_shards, shard::ScanPosition};
use crate::{Clock, Inspect, InspectError, ResetMode, SCAN_STEP_MAX, ScanStep};

/// Where a scan of the memory store continues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    shard: usize,
    position: ScanPosition,
}

impl<C: Clock> Inspect for Memory<C> {
    type Cursor = Cursor;

    async fn reset(&self, keys: &[CounterKey], mode: ResetMode) -> Result<u64, InspectError> {
        let now = self.clock.read().steady;
        let reset = keys.iter().filter(|key| {
            let number = locked_shards::shard_number(key, self.shards.len() as u64);
            let shard = usize::try_from(number).ok().and_then(|number| self.shards.get(number));
            shard.is_some_and(|shard| match mode {
                ResetMode::Delete => shard.lock().remove(key, now),
                ResetMode::DryRun => shard.lock().contains(key, now),
            })
        });
        Ok(reset.count() as u64)
    }

    async fn scan(
        &self,
        tenant: &TenantKeys,
        from: Option<Cursor>,
    ) -> Result<ScanStep<Cursor>, InspectError> {
        let Cursor { shard: number, position } = from.unwrap_or_default();
        let Some(shard) = self.shards.get(number) else {
            return Ok(ScanStep { found: Vec::new(), next: None });
        };
        let now = self.clock.read().steady;
        let (found, next) =
            shard.lock().scan(position, SCAN_STEP_MAX, now, |key| tenant.contains(key));
        let next = match next {
            Some(position) => Some(Cursor { shard: number, position }),
            None if number + 1 < self.shards.len() => {
                Some(Cursor { shard: number + 1, position: ScanPosition::default() })
            }
            None => None,
        };
        Ok(ScanStep { found, next })
    }
}
