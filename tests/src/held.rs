//! Calls that stay in progress because the store does not answer.

use sluicegate_proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse, rate_limit_service_client::RateLimitServiceClient,
};
use tokio::task::JoinSet;
use tonic::{Status, transport::Channel};

use crate::{Redis, Sluicegate, until};

/// A Redis that can be paused.
#[derive(Debug)]
pub struct HangingStore {
    redis: Redis,
    url: String,
}

impl HangingStore {
    /// Starts a Redis that is not paused.
    pub async fn start() -> Self {
        let redis = Redis::start().await;
        let url = redis.url();
        Self { redis, url }
    }

    /// The flags of a server that waits for this Redis, as pairs of name and value.
    #[must_use]
    pub fn flags(&self) -> [(&str, &str); 2] {
        [("--store", &self.url), ("--decision-timeout", "1h")]
    }

    /// The flags of [`Self::flags`] as separate arguments.
    #[must_use]
    pub fn arguments(&self) -> [&str; 4] {
        let [store, timeout] = self.flags();
        [store.0, store.1, timeout.0, timeout.1]
    }

    /// Pauses Redis and starts a call, which stays in progress until [`Self::release`].
    ///
    /// # Panics
    /// The server does not use this Redis, or already has calls in progress.
    pub async fn hold(&mut self, server: &Sluicegate, request: RateLimitRequest) -> HeldCall {
        until("the store to be in use", || async {
            (server.metric("sluicegate_store_degraded").await == 0.0).then_some(())
        })
        .await;
        self.redis.pause();
        let client = server.connect().await;
        let mut caller = client.clone();
        let mut task = JoinSet::new();
        task.spawn(async move { Ok(caller.should_rate_limit(request).await?.into_inner()) });
        until("the call to be in progress", || async {
            (server.metric("sluicegate_requests_in_flight").await == 1.0).then_some(())
        })
        .await;
        HeldCall { task, client }
    }

    /// Lets Redis continue.
    pub fn release(&mut self) {
        self.redis.resume();
    }
}

/// A call in progress. Dropping it cancels the call.
#[derive(Debug)]
pub struct HeldCall {
    task: JoinSet<Result<RateLimitResponse, Status>>,
    /// A client on the same connection.
    pub client: RateLimitServiceClient<Channel>,
}

impl HeldCall {
    /// Waits for the answer.
    ///
    /// # Errors
    /// The server answers with an error.
    ///
    /// # Panics
    /// The task of the call has panicked.
    pub async fn answer(mut self) -> Result<RateLimitResponse, Status> {
        self.task.join_next().await.unwrap().unwrap()
    }
}
