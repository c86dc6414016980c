//! The client of Envoy's rate limit service.

use std::{sync::Arc, time::Duration};

use sluicegate_proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tonic::{Request, transport::Channel};

use crate::{Builder, CallError, Check, ConnectError, Endpoint, Verdict, connect::DEADLINE_MAX};

/// A client of a rate limit service.
///
/// Clones are cheap and share the connection: use one client for each service, and clones. After a broken
/// connection, calls in flight fail and the next call opens another.
#[derive(Clone, Debug)]
pub struct Client {
    service: RateLimitServiceClient<Channel>,
    endpoint: Arc<Endpoint>,
    deadline: Duration,
}

impl Client {
    /// Connects to `http://HOST:PORT`, `https://HOST:PORT` (with the system's certificate authorities) or
    /// `unix:PATH`.
    ///
    /// # Errors
    /// The endpoint is not valid, or cannot be reached.
    pub async fn connect(endpoint: &str) -> Result<Self, ConnectError> {
        Self::builder(endpoint.parse()?).connect().await
    }

    /// Settings for a client.
    pub fn builder(endpoint: Endpoint) -> Builder {
        Builder::new(endpoint)
    }

    pub(crate) fn new(channel: Channel, endpoint: Endpoint, deadline: Duration) -> Self {
        let endpoint = Arc::new(endpoint);
        Self { service: RateLimitServiceClient::new(channel), endpoint, deadline }
    }

    /// The endpoint of the service.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// A clone with another deadline, see [`Builder::deadline`].
    #[must_use]
    pub fn with_deadline(&self, deadline: Duration) -> Self {
        Self { deadline: deadline.min(DEADLINE_MAX), ..self.clone() }
    }

    /// Sends a request, once.
    ///
    /// # Errors
    /// The call failed. It may have been counted, so it is not retried.
    pub async fn check(&self, check: Check) -> Result<Verdict, CallError> {
        let mut request = Request::new(check.into());
        request.set_timeout(self.deadline);
        let mut service = self.service.clone();
        // tonic's own timer does not include the time to connect.
        match tokio::time::timeout(self.deadline, service.should_rate_limit(request)).await {
            Ok(Ok(response)) => Ok(response.into_inner().into()),
            Ok(Err(status)) => Err(CallError::new(&status, self.deadline, "the gRPC listener")),
            Err(_) => Err(CallError::DeadlineExceeded { deadline: self.deadline }),
        }
    }
}
