//! Stopping the server: drain, completion of calls, last export of telemetry.

use std::time::Duration;

use super::{App, listeners::OTHER_LISTENERS_DRAIN_TIMEOUT};
use crate::telemetry;

/// The time to send the last metrics and traces to a collector.
const TELEMETRY_TIMEOUT: Duration = Duration::from_millis(1500);

impl App {
    /// Stops without the drain delay, because an operator at a terminal is waiting. Calls in progress still have the
    /// drain timeout to complete.
    pub async fn stop_without_delay(mut self) {
        self.drain_delay = Duration::ZERO;
        self.drain_and_stop().await;
    }

    /// Reports NOT_SERVING, serves for the drain delay, then gives calls in progress the drain timeout to complete. The
    /// HTTP, admin and usage listeners stop last, so that the drain can be observed.
    pub async fn drain_and_stop(self) {
        tracing::info!(delay = ?self.drain_delay, "draining");
        self.follow_store.cancel();
        self.health.set(false).await;
        tokio::time::sleep(self.drain_delay).await;
        let mut health = self.health;
        health.grpc.end_watch_calls().await;
        self.grpc.stop("gRPC", self.drain_timeout).await;
        let http = async {
            let usage = async {
                if let Some(usage) = self.usage {
                    usage.stop("usage", OTHER_LISTENERS_DRAIN_TIMEOUT).await;
                }
            };
            tokio::join!(self.http.stop("HTTP", OTHER_LISTENERS_DRAIN_TIMEOUT), usage);
            // After HTTP, whose requests cause refunds too.
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
                traces.shut_down(TELEMETRY_TIMEOUT).await;
            }
        };
        let metrics = async {
            let shutdown = tokio::task::spawn_blocking(move || self.metrics.shut_down());
            if tokio::time::timeout(TELEMETRY_TIMEOUT, shutdown).await.is_err() {
                tracing::warn!("the last metrics were not sent to the collector");
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
        let http = OTHER_LISTENERS_DRAIN_TIMEOUT + FINISH_TIMEOUT;
        let admin = OTHER_LISTENERS_DRAIN_TIMEOUT.max(admin::RESETS_END_TIMEOUT);
        let longest = http.max(admin) + TELEMETRY_TIMEOUT + telemetry::LOG_END_TIMEOUT;
        assert!(longest < Duration::from_secs(seconds.parse().unwrap()), "{longest:?}");
    }
}
