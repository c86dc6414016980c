//! A well-behaved client that runs beside an attack.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use sluicegate_proto::envoy::service::ratelimit::v3::{
    rate_limit_response::Code, rate_limit_service_client::RateLimitServiceClient,
};
use tokio::{
    sync::oneshot,
    task::JoinHandle,
    time::{MissedTickBehavior, interval, timeout},
};
use tonic::transport::Channel;

use crate::{Sluicegate, hit};

/// Time between two calls: 40 a second.
const PERIOD: Duration = Duration::from_millis(25);

/// The time after which a call counts as unanswered.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// A client that sends 40 calls a second over one connection, each after the answer to the one before.
#[derive(Debug)]
pub struct HealthyClient {
    stop: oneshot::Sender<()>,
    task: JoinHandle<HealthReport>,
}

/// The results of a [`HealthyClient`].
#[derive(Debug)]
pub struct HealthReport {
    /// The number of calls.
    pub calls: u64,
    /// Answers other than OK.
    pub failures: Vec<String>,
    latencies: Histogram<u64>,
}

impl HealthyClient {
    /// Starts a client of the gRPC listener that sends hits on `healthy=client` in the domain `api`, which the
    /// server's limits must let pass.
    pub async fn start(server: &Sluicegate) -> Self {
        Self::start_on(server.channel().await)
    }

    /// Starts the same client on this connection, for example one with TLS.
    #[must_use]
    pub fn start_on(channel: Channel) -> Self {
        let (stop, stopped) = oneshot::channel();
        Self { stop, task: tokio::spawn(run(RateLimitServiceClient::new(channel), stopped)) }
    }

    /// Stops the client after its first call, at the earliest, and returns its results.
    ///
    /// # Panics
    /// The client has panicked.
    pub async fn stop(self) -> HealthReport {
        let _running = self.stop.send(());
        self.task.await.unwrap()
    }
}

async fn run(
    mut client: RateLimitServiceClient<Channel>,
    mut stopped: oneshot::Receiver<()>,
) -> HealthReport {
    let mut report =
        HealthReport { calls: 0, failures: Vec::new(), latencies: Histogram::new(3).unwrap() };
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            _ = &mut stopped, if report.calls > 0 => return report,
            _ = ticks.tick() => {}
        }
        let started = Instant::now();
        let call = client.should_rate_limit(hit("healthy", "client"));
        let failure = match timeout(CALL_TIMEOUT, call).await {
            Ok(Ok(answer)) if answer.get_ref().overall_code == i32::from(Code::Ok) => None,
            Ok(Ok(answer)) => Some(format!("{answer:?}")),
            Ok(Err(status)) => Some(status.to_string()),
            Err(elapsed) => Some(elapsed.to_string()),
        };
        report.calls += 1;
        let micros = u64::try_from(started.elapsed().as_micros()).unwrap();
        report.latencies.record(micros).unwrap();
        report.failures.extend(failure);
    }
}

impl HealthReport {
    /// Prints the latencies, and checks that there were calls and that every call was decided with OK.
    ///
    /// # Panics
    /// A call failed or was refused, or there were no calls.
    #[expect(clippy::print_stdout, reason = "latencies are reported, not asserted")]
    pub fn assert_all_decided(&self, attack: &str) {
        let at = |quantile| Duration::from_micros(self.latencies.value_at_quantile(quantile));
        println!(
            "{attack}: {} healthy calls, p50 {:?}, p99 {:?}, max {:?}",
            self.calls,
            at(0.5),
            at(0.99),
            at(1.0)
        );
        assert!(self.calls > 0, "{attack}: the healthy client made no calls");
        let first = self.failures.first();
        let failed = self.failures.len();
        assert!(first.is_none(), "{attack}: {failed} of {} calls: {first:?}", self.calls);
    }
}
