//! What a listener's gRPC health says.

use tonic_health::{ServingStatus, server::HealthReporter};

/// A name under which health is SERVING as long as the process can answer, drained or without its store: for what
/// restarts a process that is not.
pub(super) const LIVENESS: &str = "liveness";

/// A name under which health is SERVING as long as the store decides, and no failure policy in its place.
pub(super) const STORE: &str = "store";

/// Health under every name that a listener answers for.
#[derive(Clone)]
pub(crate) struct Health {
    reporter: HealthReporter,
    names: &'static [&'static str],
}

impl Health {
    pub(crate) const fn new(reporter: HealthReporter, names: &'static [&'static str]) -> Self {
        Self { reporter, names }
    }

    /// Sets what is said under every name.
    pub(crate) async fn set(&self, serving: bool) {
        for name in self.names {
            self.reporter.set_service_status(*name, status(serving)).await;
        }
    }

    /// Sets what is said of the store.
    pub(crate) async fn set_store(&self, serving: bool) {
        self.reporter.set_service_status(STORE, status(serving)).await;
    }

    /// Ends what watches health, which would else outlast every call.
    pub(crate) async fn end(&mut self) {
        for name in self.names.iter().chain(&[LIVENESS, STORE]) {
            self.reporter.clear_service_status(name).await;
        }
    }
}

const fn status(serving: bool) -> ServingStatus {
    if serving { ServingStatus::Serving } else { ServingStatus::NotServing }
}
