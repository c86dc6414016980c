//! The end of the server: drain, finish, report what was counted last.

use std::time::Duration;

use super::{App, listeners::LOCAL_DRAIN_TIMEOUT};
use crate::telemetry;

/// How long it may take to send a collector the last metrics and traces.
const TELEMETRY_TIMEOUT: Duration = Duration::from_millis(1500);

impl App {
    /// Stops without the drain delay: an operator at a terminal waits for it. Calls in progress still finish within the
    /// drain timeout.
    pub async fn stop_without_delay(mut self) {
        self.drain_delay = Duration::ZERO;
        self.stop().await;
    }

    /// Reports NOT_SERVING, serves for the drain delay, then lets calls in progress finish within the drain timeout. HTTP and
    /// the admin service stop last, so that the drain can be observed.
    pub async fn stop(self) {
        tracing::info!(delay = ?self.drain_delay, "draining");
        self.follow.cancel();
        self.health.set(false).await;
        tokio::time::sleep(self.drain_delay).await;
        let mut health = self.health;
        health.grpc.end().await;
        self.grpc.stop("gRPC", self.drain_timeout).await;
        let http = async {
            self.http.stop("HTTP", LOCAL_DRAIN_TIMEOUT).await;
            // Refunds of requests over HTTP are sent too.
            self.store.finish().await;
        };
        let admin = async {
            if let Some(admin) = self.admin {
                admin.stop().await;
            }
        };
        tokio::join!(http, admin);
        self.background.cancel();
        let traces = async {
            if let Some(traces) = self.traces {
                traces.finish(TELEMETRY_TIMEOUT).await;
            }
        };
        let metrics = async {
            let end = tokio::task::spawn_blocking(move || self.telemetry.end());
            if tokio::time::timeout(TELEMETRY_TIMEOUT, end).await.is_err() {
                tracing::warn!("the collector does not take what was counted last");
            }
        };
        tokio::join!(traces, metrics);
        telemetry::report_suppressed_log_lines(true);
        tracing::info!("stopped");
    }
}

#[cfg(test)]
mod tests {
    use sluicegate_store::FINISH_TIMEOUT;

    use super::*;
    use crate::admin;

    #[test]
    fn what_comes_after_grpc_fits_into_the_charts_grace_period() {
        let chart = include_str!("../../../helm/templates/_server.tpl");
        let (_, rest) = chart.split_once("add .Values.drain.delaySeconds ").unwrap();
        let (sum, _) = rest.split_once(" -}}").unwrap();
        let seconds = sum.strip_prefix(".Values.drain.timeoutSeconds ").unwrap();
        let http = LOCAL_DRAIN_TIMEOUT + FINISH_TIMEOUT;
        let admin = LOCAL_DRAIN_TIMEOUT.max(admin::RESETS_END_TIMEOUT);
        let longest = http.max(admin) + TELEMETRY_TIMEOUT + telemetry::LOG_END_TIMEOUT;
        assert!(longest < Duration::from_secs(seconds.parse().unwrap()), "{longest:?}");
    }
}
