//! Callers that send requests without a pause until they are stopped.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use sluicegate_proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, rate_limit_response::Code, rate_limit_service_client::RateLimitServiceClient,
};
use tokio::task::JoinSet;
use tonic::{Code as GrpcCode, transport::Channel};

use crate::until;

/// Connections to each server. Callers share them, as they share those of a proxy.
const CONNECTIONS: usize = 2;

/// Running callers. Each sends its next request after the answer to the one before.
#[derive(Debug)]
pub struct Load {
    callers: JoinSet<Vec<Asked>>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    admitted: AtomicUsize,
    refused: AtomicUsize,
    stop: AtomicBool,
}

/// A request and its answer.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// Position in the list of requests.
    pub request: usize,
    /// The time at which the request was sent, since the Unix epoch.
    pub sent: Duration,
    /// The time at which the answer arrived, since the Unix epoch.
    pub received: Duration,
    /// The answer.
    pub answer: Result<Code, GrpcCode>,
}

impl Asked {
    /// Whether the request was allowed.
    #[must_use]
    pub fn is_admitted(&self) -> bool {
        self.answer == Ok(Code::Ok)
    }
}

impl Load {
    /// Starts `callers`, spread over the servers. Each repeats all requests in turn, with a pause after each.
    pub async fn start(
        servers: &[String],
        callers: usize,
        rest: Duration,
        requests: Vec<RateLimitRequest>,
    ) -> Self {
        let mut connections = Vec::new();
        for server in servers.iter().cycle().take(servers.len() * CONNECTIONS) {
            let endpoint = Channel::from_shared(format!("http://{server}")).unwrap();
            connections.push(RateLimitServiceClient::new(endpoint.connect().await.unwrap()));
        }
        let (requests, counts) = (Arc::new(requests), Arc::new(Counts::default()));
        let mut tasks = JoinSet::new();
        for (caller, connection) in connections.iter().cycle().take(callers).enumerate() {
            let (requests, counts) = (Arc::clone(&requests), Arc::clone(&counts));
            tasks.spawn(ask(connection.clone(), requests, caller, rest, counts));
        }
        Self { callers: tasks, counts }
    }

    /// Requests admitted so far.
    #[must_use]
    pub fn admitted(&self) -> usize {
        self.counts.admitted.load(Relaxed)
    }

    /// Requests refused so far.
    #[must_use]
    pub fn refused(&self) -> usize {
        self.counts.refused.load(Relaxed)
    }

    /// Waits until `more` further requests are admitted.
    pub async fn admits(&self, more: usize) {
        let wanted = self.admitted() + more;
        let admitted = || async { (self.admitted() >= wanted).then_some(()) };
        until("requests to be admitted", admitted).await;
    }

    /// Waits until `more` further requests are refused.
    pub async fn refuses(&self, more: usize) {
        let wanted = self.refused() + more;
        let refused = || async { (self.refused() >= wanted).then_some(()) };
        until("requests to be refused", refused).await;
    }

    /// Stops the callers after their current answers. Returns all requests with answers.
    pub async fn stop(self) -> Vec<Asked> {
        self.counts.stop.store(true, Relaxed);
        self.callers.join_all().await.concat()
    }
}

async fn ask(
    mut connection: RateLimitServiceClient<Channel>,
    requests: Arc<Vec<RateLimitRequest>>,
    first: usize,
    rest: Duration,
    counts: Arc<Counts>,
) -> Vec<Asked> {
    let mut asked = Vec::new();
    // Callers start at different requests.
    for request in (0..requests.len()).cycle().skip(first % requests.len()) {
        if counts.stop.load(Relaxed) {
            break;
        }
        let sent = now();
        let answer = connection.should_rate_limit(requests[request].clone()).await;
        let answer = answer.map(|answer| answer.into_inner().overall_code());
        let answer = answer.map_err(|status| status.code());
        asked.push(Asked { request, sent, received: now(), answer });
        match answer {
            Ok(Code::Ok) => counts.admitted.fetch_add(1, Relaxed),
            _ => counts.refused.fetch_add(1, Relaxed),
        };
        if !rest.is_zero() {
            tokio::time::sleep(rest).await;
        }
    }
    asked
}

/// The wall clock: all processes of a machine share it.
fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}
