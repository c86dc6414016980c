//! Callers that do not stop asking.

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

/// Connections to each server; callers share them as they share those of a proxy.
const CONNECTIONS: usize = 2;

/// Callers, each of which sends the next request after an answer.
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
    /// Which of the requests.
    pub request: usize,
    /// When it was sent, since 1970.
    pub sent: Duration,
    /// When the answer was there.
    pub received: Duration,
    /// The answer.
    pub answer: Result<Code, GrpcCode>,
}

impl Asked {
    /// Whether the hits may pass.
    #[must_use]
    pub fn is_admitted(&self) -> bool {
        self.answer == Ok(Code::Ok)
    }
}

impl Load {
    /// Starts so many callers, spread over the servers. Each goes round all the requests, and rests between
    /// two of them.
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

    /// Waits until so many more are admitted.
    pub async fn admits(&self, more: usize) {
        let wanted = self.admitted() + more;
        let admitted = || async { (self.admitted() >= wanted).then_some(()) };
        until("requests to be admitted", admitted).await;
    }

    /// Waits until so many more are refused.
    pub async fn refuses(&self, more: usize) {
        let wanted = self.refused() + more;
        let refused = || async { (self.refused() >= wanted).then_some(()) };
        until("requests to be refused", refused).await;
    }

    /// Lets every caller get its last answer.
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
    // Not all of them begin with the same one.
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

/// The wall clock, which every process of a machine shares.
fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}
