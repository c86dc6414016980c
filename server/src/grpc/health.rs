//! The gRPC health service of a listener.

use tonic_health::{ServingStatus, server::HealthReporter};

/// A health name for liveness probes: SERVING as long as the process responds, also during a drain and without its
/// store.
pub(super) const LIVENESS: &str = "liveness";

/// A health name for the store: SERVING as long as the store answers, so that no failure policy applies.
pub(super) const STORE: &str = "store";

/// Sets the health of a listener.
#[derive(Clone)]
pub(crate) struct ListenerHealth {
    reporter: HealthReporter,
    /// The names of the server and its services.
    names: &'static [&'static str],
}

impl ListenerHealth {
    pub(crate) const fn new(reporter: HealthReporter, names: &'static [&'static str]) -> Self {
        Self { reporter, names }
    }

    /// Sets the health of the server and its services.
    pub(crate) async fn set(&self, serving: bool) {
        for name in self.names {
            self.reporter.set_service_status(*name, status(serving)).await;
        }
    }

    /// Sets the health of the store.
    pub(crate) async fn set_store(&self, serving: bool) {
        self.reporter.set_service_status(STORE, status(serving)).await;
    }

    /// Ends all Watch calls. They would otherwise never complete.
    pub(crate) async fn end_watch_calls(&mut self) {
        for name in self.names.iter().chain(&[LIVENESS, STORE]) {
            self.reporter.clear_service_status(name).await;
        }
    }
}

const fn status(serving: bool) -> ServingStatus {
    if serving { ServingStatus::Serving } else { ServingStatus::NotServing }
}
