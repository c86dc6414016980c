//! Resets of counters. Each is logged with its caller.
//!
//! They run in their own tasks: if the caller gives up, resets that were sent to the store are still completed and logged.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use sluicegate_core::CounterKey;
use sluicegate_proto::sluicegate::admin::v1 as wire;
use sluicegate_store::{RESET_MAX, Reset, Stack, Unavailable};
use thiserror::Error;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::{Code, Status};

use super::{
    Names,
    caller::Caller,
    message_stream::Sender,
    store::{PROGRESS_INTERVAL, code},
    tenant::Tenant,
};
use crate::telemetry::{AUDIT, Telemetry};

/// The most counters that a dry run counts exactly.
const TOLD_APART_MAX: usize = 1_000_000;

/// How long resets may take to end and be logged when the process ends.
pub(crate) const END_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the store may take then to answer resets.
const LAST_ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// What resets counters. Clones share what is being done.
#[derive(Clone)]
pub(crate) struct Resets {
    store: Arc<Stack>,
    telemetry: Arc<Telemetry>,
    names: Names,
    tasks: TaskTracker,
    ending: CancellationToken,
}

/// Why a tenant's reset has ended early.
#[derive(Debug, Error)]
enum ResetAborted {
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    #[error("the caller has disconnected")]
    CallerGone,
    #[error("the server stops")]
    Stops,
}

pub(super) const fn reset_of(dry_run: bool) -> Reset {
    if dry_run { Reset::DryRun } else { Reset::Now }
}

impl Resets {
    pub(super) fn new(store: Arc<Stack>, telemetry: Arc<Telemetry>, names: Names) -> Self {
        let (tasks, ending) = (TaskTracker::new(), CancellationToken::new());
        Self { store, telemetry, names, tasks, ending }
    }

    /// Ends resets in progress after their current step, and waits until they are logged.
    pub(crate) async fn end(&self) {
        self.ending.cancel();
        self.tasks.close();
        if tokio::time::timeout(END_TIMEOUT, self.tasks.wait()).await.is_err() {
            tracing::warn!(target: AUDIT, resets = self.tasks.len(), "resets were cut off");
        }
    }

    /// Resets counters one by one, also when the caller has disconnected.
    ///
    /// # Errors
    /// The store is unavailable; the error has the number of counters that were reset before.
    pub(super) async fn counters(
        &self,
        caller: Caller,
        domain: Option<String>,
        keys: Vec<CounterKey>,
        reset: Reset,
    ) -> Result<Vec<wire::ResetCounterResult>, Status> {
        let resets = self.clone();
        let task = async move { resets.each(&caller, domain.as_deref(), &keys, reset).await };
        let done = self.tasks.spawn(task).await;
        done.map_err(|error| Status::internal(error.to_string()))?
    }

    async fn each(
        &self,
        caller: &Caller,
        domain: Option<&str>,
        keys: &[CounterKey],
        reset: Reset,
    ) -> Result<Vec<wire::ResetCounterResult>, Status> {
        let certificate = caller.certificate();
        let dry_run = reset == Reset::DryRun;
        let mut results: Vec<wire::ResetCounterResult> = Vec::new();
        for key in keys {
            let counter = self.names.counter(key);
            let was_used = match self.reset(std::slice::from_ref(key), reset).await {
                Ok(count) => count > 0,
                Err(error) => {
                    let done = results.iter().filter(|it| it.was_used).count() as u64;
                    match error {
                        Unavailable::NotRun(_) | Unavailable::NotAllowed { .. } => tracing::warn!(
                            target: AUDIT, %caller, certificate, domain, counter, dry_run, %error,
                            "counter not reset"
                        ),
                        Unavailable::Unknown(_) => tracing::warn!(
                            target: AUDIT, %caller, certificate, domain, counter, dry_run, %error,
                            "counter may have been reset"
                        ),
                    }
                    return Err(status(&error.into(), done, reset));
                }
            };
            self.count(u64::from(was_used), reset);
            tracing::info!(
                target: AUDIT, %caller, certificate, domain, counter,
                counters = u64::from(was_used), dry_run, "counter reset"
            );
            results.push(wire::ResetCounterResult {
                counter_key: self.names.prefix().name(key),
                was_used,
            });
        }
        Ok(results)
    }

    /// Starts to reset every counter of a tenant, until that is done, the caller has disconnected, or the server
    /// stops. Then the permit is released.
    pub(super) fn start_tenant(
        &self,
        caller: Caller,
        tenant: Tenant,
        reset: Reset,
        sender: Sender<wire::ResetTenantResponse>,
        permit: Option<OwnedSemaphorePermit>,
    ) {
        let resets = self.clone();
        self.tasks.spawn(async move {
            let last = resets.tenant(&caller, &tenant, reset, &sender).await;
            drop(permit);
            tokio::select! {
                biased;
                _gone = sender.send(last) => {}
                () = resets.ending.cancelled() => {}
            }
        });
    }

    async fn tenant(
        &self,
        caller: &Caller,
        tenant: &Tenant,
        reset: Reset,
        sender: &Sender<wire::ResetTenantResponse>,
    ) -> Result<wire::ResetTenantResponse, Status> {
        let certificate = caller.certificate();
        let (domain, name) = (&*tenant.domain, self.names.tenant(&tenant.value));
        let dry_run = reset == Reset::DryRun;
        // Whatever becomes of the process, it is known that this has begun.
        tracing::info!(
            target: AUDIT, %caller, certificate, domain, tenant = name, dry_run, "tenant reset begins"
        );
        let mut progress = wire::ResetTenantResponse::default();
        let outcome = self.every_counter(tenant, reset, sender, &mut progress).await;
        let counters = progress.counters;
        match outcome {
            Ok(()) => {
                tracing::info!(
                    target: AUDIT, %caller, certificate, domain, tenant = name, counters, dry_run,
                    "tenant reset"
                );
                Ok(progress)
            }
            Err(error) => {
                tracing::warn!(
                    target: AUDIT, %caller, certificate, domain, tenant = name, counters, dry_run, %error,
                    "tenant not reset as a whole"
                );
                Err(status(&error, counters, reset))
            }
        }
    }

    async fn every_counter(
        &self,
        tenant: &Tenant,
        reset: Reset,
        sender: &Sender<wire::ResetTenantResponse>,
        progress: &mut wire::ResetTenantResponse,
    ) -> Result<(), ResetAborted> {
        // Names may be long, and there may be many.
        let mut seen = HashSet::<u64>::new();
        let (mut from, mut is_first) = (None, true);
        let mut told = Instant::now();
        loop {
            if sender.is_closed() {
                return Err(ResetAborted::CallerGone);
            }
            let step = tokio::select! {
                biased;
                () = self.ending.cancelled() => return Err(ResetAborted::Stops),
                step = self.store.step(&tenant.owner, from) => step?,
            };
            from = step.next;
            match reset {
                Reset::Now => {
                    if std::mem::take(&mut is_first) {
                        // The store answers. Hits from before must not be debited after their counter was looked for.
                        self.store.reset_local(&tenant.owner).await?;
                    }
                    for some in step.found.chunks(RESET_MAX) {
                        let count = self.reset(some, reset).await?;
                        progress.counters += count;
                        self.count(count, reset);
                    }
                }
                Reset::DryRun => {
                    seen.extend(step.found.iter().map(CounterKey::hash64));
                    progress.counters = seen.len() as u64;
                    if seen.len() > TOLD_APART_MAX {
                        progress.more = true;
                        break;
                    }
                }
            }
            if told.elapsed() >= PROGRESS_INTERVAL {
                told = Instant::now();
                sender.tell(*progress);
            }
            // Memory waits for nothing, and others want to be answered.
            tokio::task::yield_now().await;
            if from.is_none() {
                break;
            }
        }
        if reset == Reset::Now {
            self.store.reset_local(&tenant.owner).await?;
        }
        progress.complete = true;
        Ok(())
    }

    /// Resets counters. When the process ends, the store's answer is waited for a while, and no longer.
    async fn reset(&self, keys: &[CounterKey], reset: Reset) -> Result<u64, Unavailable> {
        let late = async {
            self.ending.cancelled().await;
            tokio::time::sleep(LAST_ANSWER_TIMEOUT).await;
        };
        tokio::select! {
            biased;
            outcome = self.store.reset(keys, reset) => outcome,
            () = late => Err(Unavailable::Unknown("the server stops".to_owned())),
        }
    }

    fn count(&self, counters: u64, reset: Reset) {
        if reset == Reset::Now {
            self.telemetry.counters_reset.add(counters);
        }
    }
}

fn status(error: &ResetAborted, done: u64, reset: Reset) -> Status {
    let code = match error {
        ResetAborted::Unavailable(error) => code(error),
        ResetAborted::CallerGone | ResetAborted::Stops => Code::Unavailable,
    };
    let message = match (reset, error) {
        (Reset::DryRun, _) => error.to_string(),
        (Reset::Now, ResetAborted::Unavailable(Unavailable::Unknown(_))) => {
            format!("{error}; {done} counters were reset before, and more may have been reset")
        }
        (Reset::Now, _) => format!("{error}; {done} counters were reset before"),
    };
    Status::new(code, message)
}
