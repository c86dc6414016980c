//! An attack on a running server, and checks that every attack must pass.

#![expect(clippy::print_stdout, reason = "memory is reported, too")]

use std::{cell::Cell, collections::BTreeMap, time::Duration};

use futures::future::join_all;
use sluicegate_proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tokio::time::sleep;
use tonic::transport::Channel;

use crate::{HealthyClient, Sluicegate, hit, until};

/// How long the healthy client runs before memory is measured for the first time.
const WARM_UP: Duration = Duration::from_millis(200);

/// Memory that the process may keep after the attackers have left: allocator pages of running threads, and
/// code that ran for the first time. Blocking threads end, and free their pages, after 10 s without work.
const KEPT_MAX: u64 = 24 << 20;

/// Number of concurrent calls that make the server allocate.
const BURST: usize = 64;

/// Gauges of the resources that callers use.
const OCCUPIED: [&str; 6] = [
    "sluicegate_connections_open",
    "sluicegate_connections_pending",
    "sluicegate_grpc_streaming_calls",
    "sluicegate_grpc_waiting_bytes",
    "sluicegate_grpc_waiting_calls",
    "sluicegate_requests_in_flight",
];

/// An attack with a healthy client beside it, from before the attackers come until after they have left.
#[derive(Debug)]
pub struct Attack {
    name: String,
    growth_max: u64,
    channel: Channel,
    client: HealthyClient,
    /// Resident memory before the attack, in bytes.
    memory: u64,
    before: Occupied,
}

/// Resources that callers use.
#[derive(Debug)]
struct Occupied {
    files: usize,
    /// By series.
    gauges: BTreeMap<String, f64>,
}

impl Occupied {
    async fn measure(server: &Sluicegate) -> Self {
        let (_, metrics) = server.get("/metrics").await;
        let gauge = |line: &str| {
            let (series, value) = line.rsplit_once(' ')?;
            let (name, _) = series.split_once('{').unwrap_or((series, ""));
            OCCUPIED.contains(&name).then(|| (series.to_owned(), value.parse().unwrap()))
        };
        Self {
            files: server.process.open_files(),
            gauges: metrics.lines().filter_map(gauge).collect(),
        }
    }

    /// The resources of which more are in use than `before`.
    fn beyond(&self, before: &Self) -> Vec<String> {
        let files = (self.files > before.files)
            .then(|| format!("{} open files, {} before", self.files, before.files));
        let gauges = self.gauges.iter().filter_map(|(series, value)| {
            let known = before.gauges.get(series).copied().unwrap_or_default();
            (*value > known).then(|| format!("{series} {value}, {known} before"))
        });
        files.into_iter().chain(gauges).collect()
    }
}

impl Attack {
    /// Starts a healthy client on a connection of its own, and measures what the server needs without attackers. Memory
    /// may grow by less than `growth_max` bytes during the attack.
    pub async fn start(name: &str, server: &Sluicegate, growth_max: u64) -> Self {
        let before = Occupied::measure(server).await;
        Self::begin(name, server, growth_max, before, server.channel().await).await
    }

    /// The same with a healthy client on this open connection, for example one with TLS.
    pub async fn start_on(
        channel: Channel,
        name: &str,
        server: &Sluicegate,
        growth_max: u64,
    ) -> Self {
        let before = Occupied::measure(server).await;
        Self::begin(name, server, growth_max, before, channel).await
    }

    async fn begin(
        name: &str,
        server: &Sluicegate,
        growth_max: u64,
        before: Occupied,
        channel: Channel,
    ) -> Self {
        let client = HealthyClient::start_on(channel.clone());
        sleep(WARM_UP).await;
        // The first page allocates memory that is not the attackers'.
        server.get("/metrics").await;
        let memory = server.process.resident_bytes();
        server.process.reset_peak();
        Self { name: name.to_owned(), growth_max, channel, client, memory, before }
    }

    /// Ends a step of the attack and begins the next: checks the growth of memory and the calls of the healthy client
    /// since the last check.
    ///
    /// # Panics
    /// Memory has grown by too much, or a call was not decided.
    pub async fn check(&mut self, server: &Sluicegate, step: &str) {
        let next = HealthyClient::start_on(self.channel.clone());
        let name = format!("{}: {step}", self.name);
        self.assert_growth(server, &name);
        server.process.reset_peak();
        std::mem::replace(&mut self.client, next).stop().await.assert_all_decided(&name);
    }

    /// Ends the attack after the attackers have left, and waits until memory, descriptors and places are released.
    ///
    /// # Panics
    /// A resource is not released, memory has grown by too much, or a call of the healthy client was not decided.
    pub async fn end(self, server: &Sluicegate) {
        self.assert_growth(server, &self.name);
        let kept = until(&format!("memory to be released after {}", self.name), async || {
            let kept = server.process.resident_bytes().saturating_sub(self.memory);
            if kept < KEPT_MAX {
                return Some(kept);
            }
            // A thread reclaims memory that other threads freed only when it allocates.
            join_all((0..BURST).map(|_| {
                let mut client = RateLimitServiceClient::new(self.channel.clone());
                async move { client.should_rate_limit(hit("healthy", "client")).await.unwrap() }
            }))
            .await;
            None
        })
        .await;
        println!("{}: {} KiB kept", self.name, kept >> 10);
        self.client.stop().await.assert_all_decided(&self.name);
        drop(self.channel);
        let printed = Cell::new(Vec::new());
        until(&format!("places to be released after {}", self.name), async || {
            let beyond = Occupied::measure(server).await.beyond(&self.before);
            let is_done = beyond.is_empty();
            if printed.replace(beyond.clone()) != beyond {
                println!("{}: {beyond:?}", self.name);
            }
            is_done.then_some(())
        })
        .await;
    }

    /// Ends the attack before the attackers have left. Does not check that resources are released.
    ///
    /// # Panics
    /// Memory has grown by too much, or a call of the healthy client was not decided.
    pub async fn end_beside_attackers(self, server: &Sluicegate) {
        self.assert_growth(server, &self.name);
        self.client.stop().await.assert_all_decided(&self.name);
    }

    fn assert_growth(&self, server: &Sluicegate, name: &str) {
        let growth = server.process.peak_resident_bytes().saturating_sub(self.memory);
        println!(
            "{name}: {} KiB of memory at first, at most {} KiB more",
            self.memory >> 10,
            growth >> 10
        );
        assert!(growth < self.growth_max, "{name}: memory has grown by {growth} bytes");
    }
}
