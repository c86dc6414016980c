//! What a listener's gRPC health says.

use tonic_health::{ServingStatus, server::HealthReporter};

/// A name under which health is SERVING as long as the process can answer, drained or without its store: for what
/// restarts a process that is not.
pub(super) const LIVENESS: &str = "liveness";

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
        let status = if serving { ServingStatus::Serving } else { ServingStatus::NotServing };
        for name in self.names {
            self.reporter.set_service_status(*name, status).await;
        }
    }

    /// Ends what watches health, which would else outlast every call.
    pub(crate) async fn end(&mut self) {
        for name in self.names.iter().chain(&[LIVENESS]) {
            self.reporter.clear_service_status(name).await;
        }
    }
}
