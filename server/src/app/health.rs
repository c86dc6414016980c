//! The health that the server reports over gRPC, HTTP and the admin listener.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use sluicegate_store::Stack;

use crate::grpc::ListenerHealth;

/// The interval at which the state of the store is read.
const STORE_INTERVAL: Duration = Duration::from_millis(200);

/// The health of the server, on all listeners.
#[derive(Clone)]
pub(super) struct ServerHealth {
    pub(super) grpc: ListenerHealth,
    pub(super) admin: Option<ListenerHealth>,
    /// Whether `/healthcheck` reports that the server is serving.
    pub(super) http: Arc<AtomicBool>,
}

impl ServerHealth {
    /// Sets the health on all listeners.
    pub(super) async fn set(&self, serving: bool) {
        self.http.store(serving, Ordering::Relaxed);
        self.grpc.set(serving).await;
        if let Some(admin) = &self.admin {
            admin.set(serving).await;
        }
    }

    /// Reports the state of the store under the health name `store`, until cancelled. If `is_required`, the health
    /// of the server and its services follows the store too, on all listeners.
    pub(super) async fn follow_store(self, store: Arc<Stack>, is_required: bool) {
        let mut reported = None;
        loop {
            let serving = !store.is_degraded();
            if reported != Some(serving) {
                self.grpc.set_store(serving).await;
                if is_required {
                    self.set(serving).await;
                }
                reported = Some(serving);
            }
            tokio::time::sleep(STORE_INTERVAL).await;
        }
    }
}
