//! Replicas that share their counters.

use std::time::Duration;

use sluicegate_proto::envoy::service::ratelimit::v3::RateLimitRequest;

use crate::{Load, Sluicegate, long_windows, request, until};

/// Replicas with the same limits and flags.
#[derive(Debug)]
pub struct Fleet {
    /// The replicas, each in its own process.
    pub servers: Vec<Sluicegate>,
}

impl Fleet {
    /// Starts `count` replicas and waits until each can reach its store. The limits have [long windows](long_windows).
    pub async fn start(count: usize, limits: &str, flags: &[&str]) -> Self {
        let limits = long_windows(limits);
        let servers = (0..count).map(|_| Sluicegate::start(&limits, flags));
        let fleet = Self { servers: futures::future::join_all(servers).await };
        fleet.until_available().await;
        fleet
    }

    /// The gRPC addresses of the replicas.
    #[must_use]
    pub fn addresses(&self) -> Vec<String> {
        self.servers.iter().map(|server| server.grpc.clone()).collect()
    }

    /// Starts callers of all replicas, see [`Load::start`].
    pub async fn load(
        &self,
        callers: usize,
        rest: Duration,
        requests: Vec<RateLimitRequest>,
    ) -> Load {
        Load::start(&self.addresses(), callers, rest, requests).await
    }

    /// The sum of a metric over all replicas, see [`Sluicegate::sum`].
    pub async fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let mut sum = 0.0;
        for server in &self.servers {
            sum += server.sum(name, labels).await;
        }
        sum
    }

    /// Number of hits that may be charged although no answer admitted them.
    pub async fn hits_unknown(&self) -> f64 {
        let mut hits_unknown = 0.0;
        for server in &self.servers {
            hits_unknown += server.hits_unknown().await;
        }
        hits_unknown
    }

    /// Waits until no replica is degraded.
    pub async fn until_available(&self) {
        until("the store to be available", || async {
            (self.sum("sluicegate_store_degraded", &[]).await == 0.0).then_some(())
        })
        .await;
    }

    /// Remaining hits of a descriptor in the domain `api`, as the first replica reports them.
    ///
    /// # Panics
    /// The descriptor has no limit.
    pub async fn remaining(&self, entries: &[(&str, &str)]) -> usize {
        let mut peek = request(&[entries]);
        peek.descriptors[0].hits_addend = Some(0);
        let answer = self.servers[0].should_rate_limit(peek).await.unwrap();
        let status = &answer.statuses[0];
        assert!(status.current_limit.is_some(), "{answer:?}");
        status.limit_remaining.try_into().unwrap()
    }
}
