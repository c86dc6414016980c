//! Reloading limits, TLS files, the admin token and the tenants file when they change, or on SIGHUP.

use std::{error::Error, path::PathBuf, sync::Arc, time::Duration};

use sluicegate_store::Stack;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{App, error::with_causes, listeners::AdminHandle};
use crate::{
    admin,
    limits::Limits,
    listen::Tls,
    reloaded::ReloadOutcome,
    telemetry::{Attempts, Metrics, catalogue},
    usage::TenantsFile,
    watch::Watch,
};

impl App {
    /// Requests a reload of all files.
    pub(super) fn reload(&self) {
        tracing::info!("reloading limits, TLS files, the admin token and usage tenants");
        self.reload_requests.send_replace(());
    }
}

/// Reloads files in the background.
pub(super) struct Reloader {
    poll_interval: Duration,
    background: CancellationToken,
    /// Changes when an operator requests a reload.
    requests: watch::Sender<()>,
}

impl Reloader {
    /// A reloader that runs until `background` is cancelled.
    pub(super) fn new(poll_interval: Duration, background: &CancellationToken) -> Self {
        let (requests, _) = watch::channel(());
        Self { poll_interval, background: background.clone(), requests }
    }

    /// Starts to reload the limits in the background, when their files change.
    pub(super) fn watch_limits(&self, limits: Limits, metrics: &Arc<Metrics>, store: &Arc<Stack>) {
        let (metrics, store) = (Arc::clone(metrics), Arc::clone(store));
        let paths = limits.paths().to_vec();
        self.spawn(&paths, move |requested| {
            if limits.reload(&metrics, requested) {
                store.clear_deny_cache();
            }
        });
    }

    /// Starts to reload the TLS files of the listeners in the background, when they change.
    pub(super) fn watch_tls(&self, listeners: &[Tls], metrics: &Arc<Metrics>) {
        let all = listeners.to_vec();
        metrics.register_gauge(catalogue::TLS_LAST_LOAD_SUCCESSFUL, move || {
            usize::from(!all.iter().any(Tls::is_rejected))
        });
        for tls in listeners {
            let (tls, metrics) = (tls.clone(), Arc::clone(metrics));
            self.spawn(&tls.files(), move |_| {
                report("TLS files", &tls.reload(), &metrics.tls_loads);
            });
        }
    }

    /// Starts to reload the admin token in the background, when its file changes.
    pub(super) fn watch_admin_token(&self, admin: Option<&AdminHandle>, metrics: &Arc<Metrics>) {
        let token = admin.and_then(|admin| admin.token.clone());
        let current = token.clone();
        metrics.register_gauge(catalogue::ADMIN_TOKEN_LAST_LOAD_SUCCESSFUL, move || {
            usize::from(!current.as_ref().is_some_and(admin::Token::is_rejected))
        });
        if let Some(token) = token {
            let metrics = Arc::clone(metrics);
            self.spawn(&[token.path().to_owned()], move |_| {
                report("admin token", &token.reload(), &metrics.admin_token_loads);
            });
        }
    }

    /// Starts to reload the tenants of the usage listener in the background, when their file changes.
    pub(super) fn watch_usage_tenants(&self, tenants: Option<TenantsFile>, metrics: &Arc<Metrics>) {
        let current = tenants.clone();
        metrics.register_gauge(catalogue::USAGE_TENANTS_LAST_LOAD, move || {
            usize::from(!current.as_ref().is_some_and(TenantsFile::is_rejected))
        });
        if let Some(tenants) = tenants {
            let metrics = Arc::clone(metrics);
            self.spawn(&[tenants.path().to_owned()], move |_| {
                report("usage tenants", &tenants.reload(), &metrics.usage_tenants_loads);
            });
        }
    }

    /// The sender that requests a reload of all files.
    pub(super) fn requests(self) -> watch::Sender<()> {
        self.requests
    }

    /// Calls `reload` whenever files may have changed, with whether an operator has requested it.
    fn spawn(&self, files: &[PathBuf], reload: impl Fn(bool) + Send + Sync + 'static) {
        let mut watch = Watch::new(files, self.poll_interval);
        let mut requests = self.requests.subscribe();
        let reload = Arc::new(reload);
        let reloading = async move {
            loop {
                let requested = changed_or_requested(&mut watch, &mut requests).await;
                let reload = Arc::clone(&reload);
                // On a separate thread, because large files take long to compile.
                let reloaded = tokio::task::spawn_blocking(move || reload(requested)).await;
                if let Err(error) = reloaded {
                    tracing::error!(%error, "cannot reload files");
                }
            }
        };
        tokio::spawn(self.background.clone().run_until_cancelled_owned(reloading));
    }
}

/// Waits until files may have changed, or an operator requests a reload. Returns whether an operator has requested it.
async fn changed_or_requested(watch: &mut Watch, requests: &mut watch::Receiver<()>) -> bool {
    tokio::select! {
        () = watch.changed() => false,
        // The sender lives as long as the server.
        Ok(()) = requests.changed() => true,
    }
}

/// Counts and logs the result of a reload, unless the files are unchanged.
fn report<E: Error + 'static>(files: &str, reload: &Result<ReloadOutcome, E>, loads: &Attempts) {
    match reload {
        Ok(ReloadOutcome::Unchanged) => {}
        Ok(ReloadOutcome::Restored) => tracing::info!("{files} restored, equal to those in force"),
        Ok(ReloadOutcome::Replaced) => {
            loads.succeeded();
            tracing::info!("{files} reloaded");
        }
        Err(error) => {
            loads.failed();
            let error = with_causes(error);
            tracing::error!(%error, "{files} rejected, the previous ones stay in force");
        }
    }
}
