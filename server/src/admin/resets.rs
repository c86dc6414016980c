//! Resets of counters: every one of them is told in the log, with who asked for it.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use sluicegate_core::CounterKey;
use sluicegate_proto::sluicegate::admin::v1 as wire;
use sluicegate_store::{Cursor, Reset, Stack, Unavailable};
use tonic::Status;

use super::{Names, caller::Caller, streamed::Sender, tenant::Tenant};
use crate::telemetry::{AUDIT, Telemetry};

/// How often a reset tells how far it has come.
pub(super) const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// The most counters that a dry run tells apart.
const TOLD_APART_MAX: usize = 1_000_000;

/// What resets counters.
#[derive(Clone)]
pub(super) struct Resets {
    pub(super) store: Arc<Stack>,
    pub(super) telemetry: Arc<Telemetry>,
    pub(super) names: Names,
}

pub(super) const fn reset_of(dry_run: bool) -> Reset {
    if dry_run { Reset::DryRun } else { Reset::Now }
}

impl Resets {
    /// Resets counters one by one.
    ///
    /// # Errors
    /// The store cannot be asked; the error tells how many counters were reset before.
    pub(super) async fn counters(
        &self,
        caller: &Caller,
        domain: Option<&str>,
        keys: &[CounterKey],
        reset: Reset,
    ) -> Result<Vec<wire::ResetCounterResult>, Status> {
        let mut results: Vec<wire::ResetCounterResult> = Vec::new();
        for key in keys {
            let counter = self.names.counter(key);
            let was_used = match self.store.reset(std::slice::from_ref(key), reset).await {
                Ok(count) => count > 0,
                Err(error) => {
                    let done = results.iter().filter(|it| it.was_used).count() as u64;
                    tracing::warn!(
                        target: AUDIT, %caller, certificate = caller.certificate(), domain, counter,
                        dry_run = reset == Reset::DryRun, %error, "counter not reset"
                    );
                    return Err(unavailable(&error, done, reset));
                }
            };
            self.count(u64::from(was_used), reset);
            tracing::info!(
                target: AUDIT, %caller, certificate = caller.certificate(), domain, counter,
                counters = u64::from(was_used), dry_run = reset == Reset::DryRun, "counter reset"
            );
            results.push(wire::ResetCounterResult {
                counter_key: self.names.prefix().name(key),
                was_used,
            });
        }
        Ok(results)
    }

    /// Resets every counter of a tenant, until that is done or nobody waits for it any more.
    pub(super) async fn tenant(
        &self,
        caller: &Caller,
        tenant: &Tenant,
        reset: Reset,
        sender: &Sender<wire::ResetTenantResponse>,
    ) {
        let mut progress = wire::ResetTenantResponse::default();
        let outcome = self.every_counter(tenant, reset, sender, &mut progress).await;
        let wire::ResetTenantResponse { counters, complete, .. } = progress;
        let error = outcome.as_ref().err().map(ToString::to_string);
        tracing::info!(
            target: AUDIT, %caller, certificate = caller.certificate(), domain = tenant.domain,
            tenant = self.names.tenant(&tenant.value), counters, complete, error,
            dry_run = reset == Reset::DryRun, "tenant reset"
        );
        let last = outcome.map(|()| progress).map_err(|error| unavailable(&error, counters, reset));
        let _gone = sender.send(last).await;
    }

    async fn every_counter(
        &self,
        tenant: &Tenant,
        reset: Reset,
        sender: &Sender<wire::ResetTenantResponse>,
        progress: &mut wire::ResetTenantResponse,
    ) -> Result<(), Unavailable> {
        let mut seen = HashSet::new();
        let mut cursor = Some(Cursor::Start);
        let mut told = Instant::now();
        while let Some(from) = cursor {
            if sender.is_closed() {
                return Ok(());
            }
            let step = self.store.step(&tenant.owner, from).await?;
            cursor = step.next;
            match reset {
                Reset::Now if step.found.is_empty() => {}
                Reset::Now => {
                    let count = self.store.reset(&step.found, reset).await?;
                    progress.counters += count;
                    self.count(count, reset);
                }
                Reset::DryRun => {
                    seen.extend(step.found);
                    progress.counters = seen.len() as u64;
                    if seen.len() > TOLD_APART_MAX {
                        progress.more = true;
                        break;
                    }
                }
            }
            if told.elapsed() >= PROGRESS_INTERVAL {
                told = Instant::now();
                // Whoever has gone is noticed at the next step.
                let _gone = sender.send(Ok(*progress)).await;
            }
        }
        if reset == Reset::Now {
            self.store.reset_local(&tenant.owner).await?;
        }
        progress.complete = true;
        Ok(())
    }

    fn count(&self, counters: u64, reset: Reset) {
        if reset == Reset::Now {
            self.telemetry.counters_reset.add(counters);
        }
    }
}

fn unavailable(error: &Unavailable, done: u64, reset: Reset) -> Status {
    Status::unavailable(match reset {
        Reset::Now => format!("{error}; {done} counters were reset before"),
        Reset::DryRun => error.to_string(),
    })
}
