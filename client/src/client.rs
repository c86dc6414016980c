//! The client.

use std::{sync::Arc, time::Duration};

use sluicegate_proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tonic::{Request, transport::Channel};

use crate::{
    Builder, Check, CheckError, ConnectError, Endpoint, Verdict, connect::LONGEST_DEADLINE,
};

/// A connection to a rate limit service.
///
/// Clones are cheap and share the connection, so there is one for each service and clones wherever they
/// are needed. A connection that breaks is opened again by the next call; the calls that were on it fail.
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
    /// The endpoint is not one, or cannot be reached now.
    pub async fn connect(endpoint: &str) -> Result<Self, ConnectError> {
        Self::builder(endpoint.parse()?).connect().await
    }

    /// Settings of a client to be.
    pub fn builder(endpoint: Endpoint) -> Builder {
        Builder::new(endpoint)
    }

    pub(crate) fn new(channel: Channel, endpoint: Endpoint, deadline: Duration) -> Self {
        let endpoint = Arc::new(endpoint);
        Self { service: RateLimitServiceClient::new(channel), endpoint, deadline }
    }

    /// Where the service is.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// A clone with another deadline, see [`Builder::deadline`].
    #[must_use]
    pub fn with_deadline(&self, deadline: Duration) -> Self {
        Self { deadline: deadline.min(LONGEST_DEADLINE), ..self.clone() }
    }

    /// Asks once.
    ///
    /// # Errors
    /// There is no verdict. The call may have been counted all the same, which is why it is not retried.
    pub async fn check(&self, check: Check) -> Result<Verdict, CheckError> {
        let mut request = Request::new(check.into());
        request.set_timeout(self.deadline);
        let mut service = self.service.clone();
        // tonic's own timer starts only when there is a connection.
        match tokio::time::timeout(self.deadline, service.should_rate_limit(request)).await {
            Ok(Ok(response)) => Ok(response.into_inner().into()),
            Ok(Err(status)) => Err(CheckError::new(&status, self.deadline, "the gRPC listener")),
            Err(_) => Err(CheckError::DeadlineExceeded { deadline: self.deadline }),
        }
    }
}
