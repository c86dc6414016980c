//! The health that the server reports, over gRPC, HTTP and the admin service.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use sluicegate_store::Stack;

use crate::grpc::Health;

/// The time between two looks at the state of the store.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(200);

/// The health of the server, wherever it is reported.
#[derive(Clone)]
pub(super) struct ServerHealth {
    pub(super) grpc: Health,
    pub(super) admin: Option<Health>,
    /// Whether HTTP reports that the server serves.
    pub(super) http: Arc<AtomicBool>,
}

impl ServerHealth {
    /// Reports whether the server serves.
    pub(super) async fn set(&self, serving: bool) {
        self.http.store(serving, Ordering::Relaxed);
        self.grpc.set(serving).await;
        if let Some(admin) = &self.admin {
            admin.set(serving).await;
        }
    }

    /// Reports the state of the store, until cancelled. If the store is required, the server serves while the store answers.
    pub(super) async fn follow(self, store: Arc<Stack>, is_required: bool) {
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
            tokio::time::sleep(FOLLOW_INTERVAL).await;
        }
    }
}
