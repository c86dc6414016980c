//! Servers that share their counters.

use std::time::Duration;

use sluicegate_proto::envoy::service::ratelimit::v3::RateLimitRequest;

use crate::{Load, Sluicegate, long_windows, request, until};

/// Servers with the same limits and flags.
#[derive(Debug)]
pub struct Fleet {
    /// Each a process of its own.
    pub servers: Vec<Sluicegate>,
}

impl Fleet {
    /// Starts so many and waits until each has reached its store. The limits have [long windows](long_windows).
    pub async fn start(count: usize, limits: &str, flags: &[&str]) -> Self {
        let limits = long_windows(limits);
        let servers = (0..count).map(|_| Sluicegate::start(&limits, flags));
        let fleet = Self { servers: futures::future::join_all(servers).await };
        fleet.until_well().await;
        fleet
    }

    /// Where they listen.
    #[must_use]
    pub fn addresses(&self) -> Vec<String> {
        self.servers.iter().map(|server| server.grpc.clone()).collect()
    }

    /// Starts callers of all of them, see [`Load::start`].
    pub async fn load(
        &self,
        callers: usize,
        rest: Duration,
        requests: Vec<RateLimitRequest>,
    ) -> Load {
        Load::start(&self.addresses(), callers, rest, requests).await
    }

    /// A metric over all servers, see [`Sluicegate::sum`].
    pub async fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let mut sum = 0.0;
        for server in &self.servers {
            sum += server.sum(name, labels).await;
        }
        sum
    }

    /// Hits that may be charged without an answer that admits them.
    pub async fn stranded(&self) -> f64 {
        let mut stranded = 0.0;
        for server in &self.servers {
            stranded += server.stranded().await;
        }
        stranded
    }

    /// Waits until every server can ask its store about any counter.
    pub async fn until_well(&self) {
        until("the store to be well", || async {
            (self.sum("sluicegate_store_degraded", &[]).await == 0.0).then_some(())
        })
        .await;
    }

    /// Remaining hits of a descriptor in the domain `api`, as the first server reports.
    ///
    /// # Panics
    /// It has none.
    pub async fn remaining(&self, entries: &[(&str, &str)]) -> usize {
        let mut peek = request(&[entries]);
        peek.descriptors[0].hits_addend = Some(0);
        let answer = self.servers[0].should_rate_limit(peek).await.unwrap();
        let status = &answer.statuses[0];
        assert!(status.current_limit.is_some(), "{answer:?}");
        status.limit_remaining.try_into().unwrap()
    }
}
