//! Resets of counters. Each is audit-logged.
//!
//! They run in their own tasks: if the caller disconnects, resets that were sent to the store are still completed and
//! logged.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use sluicegate_core::CounterKey;
use sluicegate_proto::sluicegate::admin::v1 as wire;
use sluicegate_store::{InspectError, RESET_MAX, ResetMode, Stack};
use thiserror::Error;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::{Code, Status};

use super::{
    CounterNames,
    caller::Caller,
    message_stream::Sender,
    store_calls::{PROGRESS_INTERVAL, status_code},
    tenant::Tenant,
};
use crate::telemetry::{AUDIT_TARGET, Metrics};

/// The most counters that a dry run counts.
const DRY_RUN_COUNT_MAX: usize = 1_000_000;

/// The time for resets to end and be logged when the process stops.
pub(crate) const END_TIMEOUT: Duration = Duration::from_secs(2);

/// The time for the store to answer resets when the process stops.
const LAST_ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// Resets counters. Clones share the resets in progress.
#[derive(Clone)]
pub(crate) struct Resets {
    store: Arc<Stack>,
    metrics: Arc<Metrics>,
    names: CounterNames,
    tasks: TaskTracker,
    ending: CancellationToken,
}

/// Why a reset ended early.
#[derive(Debug, Error)]
enum ResetAborted {
    #[error(transparent)]
    Inspect(#[from] InspectError),
    #[error("the caller has disconnected")]
    CallerGone,
    #[error("the server is stopping")]
    ServerStopping,
}

/// The fields that all audit lines of a reset have.
struct AuditedReset<'a> {
    caller: &'a Caller,
    domain: Option<&'a str>,
    dry_run: bool,
}

/// Writes an audit line about a reset, with further fields and a message.
macro_rules! audit {
    ($level:ident, $reset:expr, $($fields_and_message:tt)*) => {{
        let reset: &AuditedReset<'_> = $reset;
        tracing::$level!(
            target: AUDIT_TARGET,
            caller = %reset.caller,
            certificate = reset.caller.certificate(),
            domain = reset.domain,
            dry_run = reset.dry_run,
            $($fields_and_message)*
        );
    }};
}

pub(super) const fn reset_mode(dry_run: bool) -> ResetMode {
    if dry_run { ResetMode::DryRun } else { ResetMode::Delete }
}

impl Resets {
    pub(super) fn new(store: Arc<Stack>, metrics: Arc<Metrics>, names: CounterNames) -> Self {
        let (tasks, ending) = (TaskTracker::new(), CancellationToken::new());
        Self { store, metrics, names, tasks, ending }
    }

    /// Ends resets of tenants after their current step, and waits at most [`END_TIMEOUT`] until all resets are logged.
    pub(crate) async fn end(&self) {
        self.ending.cancel();
        self.tasks.close();
        if tokio::time::timeout(END_TIMEOUT, self.tasks.wait()).await.is_err() {
            tracing::warn!(target: AUDIT_TARGET, resets = self.tasks.len(), "resets were aborted");
        }
    }

    /// Resets counters one by one, even if the caller disconnects.
    ///
    /// # Errors
    /// The store is unavailable. The error contains the number of counters that were reset before.
    pub(super) async fn reset_counters(
        &self,
        caller: Caller,
        domain: Option<String>,
        keys: Vec<CounterKey>,
        mode: ResetMode,
    ) -> Result<Vec<wire::ResetCounterResult>, Status> {
        let resets = self.clone();
        let task = async move { resets.reset_each(&caller, domain.as_deref(), &keys, mode).await };
        let done = self.tasks.spawn(task).await;
        done.map_err(|error| Status::internal(error.to_string()))?
    }

    async fn reset_each(
        &self,
        caller: &Caller,
        domain: Option<&str>,
        keys: &[CounterKey],
        mode: ResetMode,
    ) -> Result<Vec<wire::ResetCounterResult>, Status> {
        let audited = &AuditedReset { caller, domain, dry_run: mode == ResetMode::DryRun };
        let mut results: Vec<wire::ResetCounterResult> = Vec::new();
        for key in keys {
            let counter = self.names.counter(key);
            let was_used = match self.reset(std::slice::from_ref(key), mode).await {
                Ok(count) => count > 0,
                Err(error) => {
                    let done = results.iter().filter(|it| it.was_used).count() as u64;
                    match error {
                        InspectError::NotRun(_) | InspectError::NotAllowed { .. } => {
                            audit!(warn, audited, counter, %error, "counter not reset");
                        }
                        InspectError::Unknown(_) => {
                            audit!(warn, audited, counter, %error, "counter may have been reset");
                        }
                    }
                    return Err(status(&error.into(), done, mode));
                }
            };
            self.count(u64::from(was_used), mode);
            let counters = u64::from(was_used);
            audit!(info, audited, counter, counters, "counter reset");
            results.push(wire::ResetCounterResult {
                counter_key: self.names.prefix().name(key),
                was_used,
            });
        }
        Ok(results)
    }

    /// Starts to reset all counters of a tenant. The reset stops if the caller disconnects or the server stops. The
    /// permit is released at the end.
    pub(super) fn start_tenant_reset(
        &self,
        caller: Caller,
        tenant: Tenant,
        mode: ResetMode,
        sender: Sender<wire::ResetTenantResponse>,
        permit: Option<OwnedSemaphorePermit>,
    ) {
        let resets = self.clone();
        self.tasks.spawn(async move {
            let last = resets.reset_tenant(&caller, &tenant, mode, &sender).await;
            drop(permit);
            tokio::select! {
                biased;
                _gone = sender.send(last) => {}
                () = resets.ending.cancelled() => {}
            }
        });
    }

    async fn reset_tenant(
        &self,
        caller: &Caller,
        tenant: &Tenant,
        mode: ResetMode,
        sender: &Sender<wire::ResetTenantResponse>,
    ) -> Result<wire::ResetTenantResponse, Status> {
        let domain = Some(&*tenant.domain);
        let audited = &AuditedReset { caller, domain, dry_run: mode == ResetMode::DryRun };
        let name = self.names.tenant(&tenant.value);
        // Logged at the beginning too, in case the process is killed during the reset.
        audit!(info, audited, tenant = name, "tenant reset begins");
        let mut progress = wire::ResetTenantResponse::default();
        let outcome = self.reset_all_counters(tenant, mode, sender, &mut progress).await;
        let counters = progress.counters;
        match outcome {
            Ok(()) => {
                audit!(info, audited, tenant = name, counters, "tenant reset");
                Ok(progress)
            }
            Err(error) => {
                audit!(warn, audited, tenant = name, counters, %error, "tenant not completely reset");
                Err(status(&error, counters, mode))
            }
        }
    }

    async fn reset_all_counters(
        &self,
        tenant: &Tenant,
        mode: ResetMode,
        sender: &Sender<wire::ResetTenantResponse>,
        progress: &mut wire::ResetTenantResponse,
    ) -> Result<(), ResetAborted> {
        // Hashes instead of keys, because there may be many long ones.
        let mut seen = HashSet::<u64>::new();
        let (mut from, mut is_first) = (None, true);
        let mut progress_sent = Instant::now();
        loop {
            if sender.is_closed() {
                return Err(ResetAborted::CallerGone);
            }
            let step = tokio::select! {
                biased;
                () = self.ending.cancelled() => return Err(ResetAborted::ServerStopping),
                step = self.store.scan(&tenant.keys, from) => step?,
            };
            from = step.next;
            match mode {
                ResetMode::Delete => {
                    if std::mem::take(&mut is_first) {
                        // Pending debits are dropped before counters are reset, so that they are not debited
                        // afterwards. Not before the first scan, which shows that the store answers.
                        self.store.reset_local(&tenant.keys).await?;
                    }
                    for keys in step.found.chunks(RESET_MAX) {
                        let count = self.reset(keys, mode).await?;
                        progress.counters += count;
                        self.count(count, mode);
                    }
                }
                ResetMode::DryRun => {
                    seen.extend(step.found.iter().map(CounterKey::hash64));
                    progress.counters = seen.len() as u64;
                    if seen.len() > DRY_RUN_COUNT_MAX {
                        progress.more = true;
                        break;
                    }
                }
            }
            if progress_sent.elapsed() >= PROGRESS_INTERVAL {
                progress_sent = Instant::now();
                sender.send_unless_full(*progress);
            }
            // Other tasks must run too, and a step in memory never waits.
            tokio::task::yield_now().await;
            if from.is_none() {
                break;
            }
        }
        if mode == ResetMode::Delete {
            self.store.reset_local(&tenant.keys).await?;
        }
        progress.complete = true;
        Ok(())
    }

    /// Resets counters. When the process stops, waits at most [`LAST_ANSWER_TIMEOUT`] for the store.
    async fn reset(&self, keys: &[CounterKey], mode: ResetMode) -> Result<u64, InspectError> {
        let late = async {
            self.ending.cancelled().await;
            tokio::time::sleep(LAST_ANSWER_TIMEOUT).await;
        };
        tokio::select! {
            biased;
            outcome = self.store.reset(keys, mode) => outcome,
            () = late => Err(InspectError::Unknown("the server is stopping".to_owned())),
        }
    }

    fn count(&self, counters: u64, mode: ResetMode) {
        if mode == ResetMode::Delete {
            self.metrics.counters_reset.add(counters);
        }
    }
}

fn status(error: &ResetAborted, done: u64, mode: ResetMode) -> Status {
    let code = match error {
        ResetAborted::Inspect(error) => status_code(error),
        ResetAborted::CallerGone | ResetAborted::ServerStopping => Code::Unavailable,
    };
    let message = match (mode, error) {
        (ResetMode::DryRun, _) => error.to_string(),
        (ResetMode::Delete, ResetAborted::Inspect(InspectError::Unknown(_))) => {
            format!("{error}; {done} counters were reset before, and more may have been reset")
        }
        (ResetMode::Delete, _) => format!("{error}; {done} counters were reset before"),
    };
    Status::new(code, message)
}
