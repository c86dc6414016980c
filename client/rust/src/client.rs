//! The client of Envoy's rate limit service.

use std::{sync::Arc, time::Duration};

use sluicegate_proto::envoy::service::ratelimit::v3::{
    RateLimitResponse, rate_limit_service_client::RateLimitServiceClient,
};
use tonic::{Request, Response, Status, transport::Channel};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::{
    Builder, Check, CheckError, Code, ConnectError, Endpoint, Verdict, acquire::Schedules,
    connect::DEADLINE_MAX,
};

/// Name of the listener, for errors of calls that probably reached another listener.
const LISTENER: &str = "the gRPC listener";

/// A client of a rate limit service.
///
/// Clones are cheap and share the connection: use one client for each service, and clones. After a broken
/// connection, calls in flight fail and the next call opens another.
#[derive(Clone, Debug)]
pub struct Client {
    channel: Channel,
    endpoint: Arc<Endpoint>,
    deadline: Duration,
    pub(crate) schedules: Arc<Schedules>,
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
        Self { channel, endpoint: Arc::new(endpoint), deadline, schedules: Arc::default() }
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
    /// The call failed. It may have been counted, so it is not retried. Or the service allowed the request without
    /// applying a [`LimitOverride`](crate::LimitOverride).
    pub async fn check(&self, check: Check) -> Result<Verdict, CheckError> {
        let overrides = check.override_flags();
        let mut request = Request::new(check.into());
        request.set_timeout(self.deadline);
        let mut service = RateLimitServiceClient::new(self.channel.clone());
        let response = self.respond(service.should_rate_limit(request)).await?;
        verdict(&overrides, response)
    }

    /// Whether the service reports by gRPC's health checking protocol that it serves.
    ///
    /// It opens a connection if there is none, so that the first check need not.
    ///
    /// # Errors
    /// The call failed.
    pub async fn is_serving(&self) -> Result<bool, CheckError> {
        // All services of the server.
        let mut request = Request::new(HealthCheckRequest { service: String::new() });
        request.set_timeout(self.deadline);
        let mut service = HealthClient::new(self.channel.clone());
        let response = self.respond(service.check(request)).await?;
        Ok(response.status() == ServingStatus::Serving)
    }

    async fn respond<T>(
        &self,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, CheckError> {
        // tonic's own timer does not include the time to connect.
        match tokio::time::timeout(self.deadline, call).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(CheckError::new(&status, self.deadline, LISTENER)),
            Err(_) => Err(CheckError::DeadlineExceeded { deadline: self.deadline }),
        }
    }
}

/// The verdict of a response. `overrides` has for each descriptor whether it brought a limit with it.
fn verdict(overrides: &[bool], response: RateLimitResponse) -> Result<Verdict, CheckError> {
    let verdict = Verdict::from(response);
    let is_applied = |at: usize| {
        let status = verdict.statuses.get(at);
        status.is_some_and(|it| it.code == Code::OverLimit || it.limit.is_some())
    };
    let mut overridden = overrides.iter().enumerate().filter(|(_, is_overridden)| **is_overridden);
    if verdict.allowed && !overridden.all(|(at, _)| is_applied(at)) {
        return Err(CheckError::OverrideNotApplied);
    }
    Ok(verdict)
}
