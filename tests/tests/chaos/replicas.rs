//! Replicas of the service, which can be killed and restarted.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use fastrand::Rng;
use futures::future::join_all;
use nix::sys::signal::Signal;
use sluicegate_proto::envoy::service::ratelimit::v3::{
    rate_limit_response::Code, rate_limit_service_client::RateLimitServiceClient,
};
use sluicegate_tests::{Fleet, Sluicegate, until};
use tonic::transport::Channel;

use crate::{
    record::{Killed, Life, Record},
    traffic::{limits, unused_counters},
};

/// Number of replicas.
const REPLICAS: usize = 4;

/// Long enough for a healthy cluster, and short enough that failure policies answer during a pause.
const DECISION_TIMEOUT: [&str; 2] = ["--decision-timeout", "50ms"];

const NO_DENY_CACHE: [&str; 2] = ["--deny-cache-entries", "0"];

/// The replicas, which faults start, pause and kill.
#[derive(Debug)]
pub(crate) struct Replicas {
    store: String,
    fleet: Fleet,
    callable: Arc<Callable>,
    /// Unknown hits that killed processes had counted.
    unknown: f64,
}

/// The replicas that can be called.
#[derive(Debug, Default)]
pub(crate) struct Callable(Mutex<Vec<Callee>>);

/// A replica that can be called.
#[derive(Clone, Debug)]
pub(crate) struct Callee {
    pub(crate) life: Life,
    pub(crate) client: RateLimitServiceClient<Channel>,
}

impl Callable {
    /// A random one, if there is any.
    pub(crate) fn pick(&self, random: &mut Rng) -> Option<Callee> {
        random.choice(self.0.lock().unwrap_or_else(PoisonError::into_inner).iter()).cloned()
    }

    async fn add(&self, life: Life, server: &Sluicegate) {
        let client = server.connect().await;
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Callee { life, client });
    }

    /// Removes a replica, and returns its process.
    fn remove(&self, replica: usize) -> Life {
        let mut callees = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let place = callees.iter().position(|it| it.life.replica == replica).unwrap();
        callees.remove(place).life
    }
}

impl Replicas {
    /// Starts the replicas with a store.
    pub(crate) async fn start(store: &str) -> Self {
        let servers = join_all((0..REPLICAS).map(|replica| start(store, replica))).await;
        let fleet = Fleet { servers };
        fleet.until_available().await;
        let callable = Arc::new(Callable::default());
        for (replica, server) in fleet.servers.iter().enumerate() {
            callable.add(Life { replica, number: 0 }, server).await;
        }
        Self { store: store.to_owned(), fleet, callable, unknown: 0.0 }
    }

    /// The replicas that can be called.
    pub(crate) fn callable(&self) -> Arc<Callable> {
        Arc::clone(&self.callable)
    }

    /// Kills a replica some time after it had nothing to settle, and restarts it. Returns a description.
    pub(crate) async fn kill(
        &mut self,
        replica: usize,
        delay: Duration,
        absence: Duration,
        record: &Record,
    ) -> String {
        let replica = replica % REPLICAS;
        let server = &mut self.fleet.servers[replica];
        let settled = until_settled(server, record).await;
        self.unknown += server.hits_unknown().await;
        tokio::time::sleep(delay).await;
        let at = record.now();
        server.process.signal(Signal::SIGKILL);
        server.process.ended().await;
        assert_sound(server);
        let life = self.callable.remove(replica);
        record.note(|entries| entries.killed.push((life, Killed { settled, at })));
        tokio::time::sleep(absence).await;
        *server = start(&self.store, replica).await;
        self.callable.add(Life { number: life.number + 1, ..life }, server).await;
        format!("replica {replica} was killed, and started again after {absence:?}")
    }

    /// Pauses a replica. Returns a description.
    pub(crate) async fn pause(&self, replica: usize, pause: Duration) -> String {
        let replica = replica % REPLICAS;
        let process = &self.fleet.servers[replica].process;
        process.signal(Signal::SIGSTOP);
        tokio::time::sleep(pause).await;
        process.signal(Signal::SIGCONT);
        format!("replica {replica} paused for {pause:?}")
    }

    /// Unknown hits as counted by all replicas, including killed processes.
    pub(crate) async fn unknown(&self) -> f64 {
        self.unknown + self.fleet.hits_unknown().await
    }

    /// Waits until no replica has anything to settle.
    pub(crate) async fn until_settled(&self, record: &Record) {
        for server in &self.fleet.servers {
            until_settled(server, record).await;
        }
    }

    /// Asserts that no replica has panicked, and that each admits hits on unused counters of every Redis server.
    pub(crate) async fn assert_sound(&self) {
        for (replica, server) in self.fleet.servers.iter().enumerate() {
            assert_sound(server);
            for counter in unused_counters(replica) {
                // The replica's deadline is short for a busy machine.
                until("a hit to be admitted", || async {
                    let answer = server.should_rate_limit(counter.request(1)).await.unwrap();
                    (answer.overall_code() == Code::Ok).then_some(())
                })
                .await;
            }
        }
    }
}

/// Waits until a replica has settled all requests, late replies and refunds. Returns a time at which that was so.
async fn until_settled(server: &Sluicegate, record: &Record) -> Duration {
    until("the replica to have settled all", || async {
        let now = record.now();
        let settling = server.metric("sluicegate_split_requests_settling").await
            + server.metric("sluicegate_settlements_pending").await;
        (settling == 0.0).then_some(now)
    })
    .await
}

fn assert_sound(server: &Sluicegate) {
    let log = server.process.output();
    assert!(!log.contains("panicked"), "{log}");
}

/// Starts a replica. Every other one has no deny cache.
async fn start(store: &str, replica: usize) -> Sluicegate {
    let own = ["--store", store, DECISION_TIMEOUT[0], DECISION_TIMEOUT[1]];
    let more = if replica.is_multiple_of(2) { &NO_DENY_CACHE[..] } else { &[] };
    Sluicegate::start(&limits(), &[&own, more].concat()).await
}

/// Starts a replica with a long deadline, which reads the counters after the run.
pub(crate) async fn reader(store: &str) -> Sluicegate {
    let flags = ["--store", store, "--decision-timeout", "5s"];
    let servers = vec![Sluicegate::start(&limits(), &[&flags[..], &NO_DENY_CACHE].concat()).await];
    let mut fleet = Fleet { servers };
    fleet.until_available().await;
    fleet.servers.remove(0)
}
