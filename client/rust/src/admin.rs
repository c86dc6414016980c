//! A client of the admin service.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use sluicegate_proto::{
    envoy::service::ratelimit::v3::RateLimitRequest,
    sluicegate::admin::v1::{
        DescriptorCounters, ExplainRequest, ExplainResponse, GetLogLevelRequest, GetStatusRequest,
        GetStatusResponse, ListCountersRequest, ListCountersResponse, ListRulesRequest,
        ListRulesResponse, LogLevel, PeekCountersRequest, PeekCountersResponse,
        ResetCounterRequest, ResetCounterResponse, ResetTenantRequest, ResetTenantResponse,
        SetLogLevelRequest, TopRequest, TopResponse, admin_service_client::AdminServiceClient,
        reset_counter_request::Counters,
    },
};
use thiserror::Error;
use tonic::{
    Request, Response, Status, Streaming,
    metadata::{Ascii, MetadataValue},
    transport::Channel,
};

use crate::{Builder, Check, CheckError, Endpoint};

/// Maximum size of a response message. Explanations of many descriptors are larger than tonic's default of 4 MiB.
const RESPONSE_BYTES_MAX: usize = 64 << 20;

/// A client of Sluicegate's admin listener.
///
/// Methods return the response messages of `sluicegate.admin.v1`. Clones are cheap and share the connection.
#[derive(Clone, Debug)]
pub struct AdminClient {
    service: AdminServiceClient<Channel>,
    endpoint: Arc<Endpoint>,
    deadline: Duration,
    authorization: Option<MetadataValue<Ascii>>,
}

/// Why a token cannot be sent.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum InvalidToken {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The token is empty, or has characters other than visible ASCII.
    #[error("a token is visible ASCII without spaces")]
    Text,
}

impl AdminClient {
    /// Settings for [`Builder::connect_admin_lazy`].
    pub fn builder(endpoint: Endpoint) -> Builder {
        Builder::new(endpoint)
    }

    pub(crate) fn new(channel: Channel, endpoint: Endpoint, deadline: Duration) -> Self {
        let service =
            AdminServiceClient::new(channel).max_decoding_message_size(RESPONSE_BYTES_MAX);
        Self { service, endpoint: Arc::new(endpoint), deadline, authorization: None }
    }

    /// Sends this token with each call, unencrypted if the endpoint is plain HTTP.
    ///
    /// # Errors
    /// The token is empty, or has characters other than visible ASCII.
    pub fn with_token(mut self, token: &str) -> Result<Self, InvalidToken> {
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(InvalidToken::Text);
        }
        let mut value: MetadataValue<Ascii> =
            format!("Bearer {token}").parse().map_err(|_| InvalidToken::Text)?;
        value.set_sensitive(true);
        self.authorization = Some(value);
        Ok(self)
    }

    /// Sends the first line of this file as token with each call. The file is read once.
    ///
    /// # Errors
    /// The file cannot be read, or its first line is not a valid token.
    pub fn with_token_file(self, path: impl AsRef<Path>) -> Result<Self, InvalidToken> {
        let path = path.as_ref();
        let text = fs::read_to_string(path)
            .map_err(|source| InvalidToken::File { path: path.to_owned(), source })?;
        self.with_token(text.lines().next().unwrap_or_default().trim())
    }

    /// The endpoint of the admin listener.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Explains a request. Charges nothing.
    ///
    /// # Errors
    /// The call failed.
    pub async fn explain(&self, check: Check) -> Result<ExplainResponse, CheckError> {
        let RateLimitRequest { domain, descriptors, hits_addend } = check.into();
        let request =
            self.request_with_deadline(ExplainRequest { domain, descriptors, hits_addend });
        let mut service = self.service.clone();
        self.respond(service.explain(request)).await
    }

    /// Returns the log level.
    ///
    /// # Errors
    /// The call failed.
    pub async fn log_level(&self) -> Result<LogLevel, CheckError> {
        let mut service = self.service.clone();
        let answer =
            self.respond(service.get_log_level(self.request_with_deadline(GetLogLevelRequest {})));
        Ok(answer.await?.log_level.unwrap_or_default())
    }

    /// Changes the log level, until the server ends or for a duration. `level` has the form of the server's
    /// `--log-level`.
    ///
    /// # Errors
    /// The call failed, or `level` is not valid.
    pub async fn set_log_level(
        &self,
        level: &str,
        duration: Option<Duration>,
    ) -> Result<LogLevel, CheckError> {
        // A duration beyond the message's range becomes the longest one.
        let longest = prost_types::Duration { seconds: i64::MAX, nanos: 0 };
        let duration = duration.map(|span| span.try_into().unwrap_or(longest));
        let request =
            self.request_with_deadline(SetLogLevelRequest { level: level.to_owned(), duration });
        let mut service = self.service.clone();
        Ok(self.respond(service.set_log_level(request)).await?.log_level.unwrap_or_default())
    }

    /// Lists the rules in force, in the order of their files: those of `domain`, or of all domains if it is empty,
    /// with paths that begin with `path_prefix`.
    ///
    /// # Errors
    /// The call failed.
    pub async fn rules(
        &self,
        domain: &str,
        path_prefix: &str,
    ) -> Result<ResponseStream<ListRulesResponse>, CheckError> {
        let (domain, path_prefix) = (domain.to_owned(), path_prefix.to_owned());
        let request = self.request(ListRulesRequest { domain, path_prefix });
        let mut service = self.service.clone();
        let stream = self.respond(service.list_rules(request)).await?;
        Ok(self.stream(stream))
    }

    /// Returns the state of the counters of a check's descriptors. Charges nothing.
    ///
    /// # Errors
    /// The call failed.
    pub async fn peek(&self, check: Check) -> Result<PeekCountersResponse, CheckError> {
        let RateLimitRequest { domain, descriptors, .. } = check.into();
        let request = self.request_with_deadline(PeekCountersRequest { domain, descriptors });
        let mut service = self.service.clone();
        self.respond(service.peek_counters(request)).await
    }

    /// Lists the counters of a tenant, at most `limit`; 0 for the server's default. Charges nothing.
    ///
    /// # Errors
    /// The call failed.
    pub async fn list_tenant_counters(
        &self,
        domain: &str,
        tenant: &[u8],
        limit: u32,
    ) -> Result<ResponseStream<ListCountersResponse>, CheckError> {
        let tenant = tenant.to_vec().into();
        let request =
            self.request(ListCountersRequest { domain: domain.to_owned(), tenant, limit });
        let mut service = self.service.clone();
        let stream = self.respond(service.list_counters(request)).await?;
        Ok(self.stream(stream))
    }

    /// Resets the counters of the first descriptor of a check: all of them if `limit_name` is empty, otherwise only
    /// that of the limit with this name.
    ///
    /// # Errors
    /// The call failed. Counters may have been reset.
    pub async fn reset_descriptor(
        &self,
        check: Check,
        limit_name: &str,
        dry_run: bool,
    ) -> Result<ResetCounterResponse, CheckError> {
        let RateLimitRequest { domain, descriptors, .. } = check.into();
        let limit_name = limit_name.to_owned();
        let descriptor = descriptors.into_iter().next();
        let counters = DescriptorCounters { domain, descriptor, limit_name };
        self.reset(Counters::Descriptor(counters), dry_run).await
    }

    /// Resets the counter with this key, as in explanations and lists of counters.
    ///
    /// # Errors
    /// The call failed. The counter may have been reset.
    pub async fn reset_counter_by_key(
        &self,
        counter_key: &str,
        dry_run: bool,
    ) -> Result<ResetCounterResponse, CheckError> {
        self.reset(Counters::CounterKey(counter_key.to_owned()), dry_run).await
    }

    async fn reset(
        &self,
        counters: Counters,
        dry_run: bool,
    ) -> Result<ResetCounterResponse, CheckError> {
        let request =
            self.request_with_deadline(ResetCounterRequest { counters: Some(counters), dry_run });
        let mut service = self.service.clone();
        self.respond(service.reset_counter(request)).await
    }

    /// Resets every counter of a tenant in a domain, step by step. Each message reports the progress. Dropping the
    /// stream stops the reset.
    ///
    /// # Errors
    /// The call failed.
    pub async fn reset_tenant(
        &self,
        domain: &str,
        tenant: &[u8],
        dry_run: bool,
    ) -> Result<ResponseStream<ResetTenantResponse>, CheckError> {
        let (domain, tenant) = (domain.to_owned(), tenant.to_vec().into());
        let request = self.request(ResetTenantRequest { domain, tenant, dry_run });
        let mut service = self.service.clone();
        let stream = self.respond(service.reset_tenant(request)).await?;
        Ok(self.stream(stream))
    }

    /// Returns the status of the server and its store.
    ///
    /// # Errors
    /// The call failed.
    pub async fn status(&self) -> Result<GetStatusResponse, CheckError> {
        let request = self.request_with_deadline(GetStatusRequest {});
        let mut service = self.service.clone();
        self.respond(service.get_status(request)).await
    }

    /// Lists the counters that refuse most.
    ///
    /// # Errors
    /// The call failed.
    pub async fn top(&self, request: TopRequest) -> Result<TopResponse, CheckError> {
        let request = self.request_with_deadline(request);
        let mut service = self.service.clone();
        self.respond(service.top(request)).await
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(authorization) = &self.authorization {
            request.metadata_mut().insert("authorization", authorization.clone());
        }
        request
    }

    /// A request with the token, and the deadline in `grpc-timeout`. Streams get no `grpc-timeout`, because the
    /// deadline applies to each of their messages.
    fn request_with_deadline<T>(&self, message: T) -> Request<T> {
        let mut request = self.request(message);
        request.set_timeout(self.deadline);
        request
    }

    async fn respond<T>(
        &self,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, CheckError> {
        within(self.deadline, call).await.map(Response::into_inner)
    }

    const fn stream<T>(&self, stream: Streaming<T>) -> ResponseStream<T> {
        ResponseStream { stream, deadline: self.deadline }
    }
}

/// The messages of a streaming call.
#[derive(Debug)]
pub struct ResponseStream<T> {
    stream: Streaming<T>,
    deadline: Duration,
}

impl<T> ResponseStream<T> {
    /// The next message; `None` after the last one. The client's deadline applies to each.
    ///
    /// # Errors
    /// The message did not arrive.
    pub async fn next(&mut self) -> Result<Option<T>, CheckError> {
        within(self.deadline, self.stream.message()).await
    }
}

/// Awaits a call or a message of a stream, at most until the deadline.
async fn within<T>(
    deadline: Duration,
    call: impl Future<Output = Result<T, Status>>,
) -> Result<T, CheckError> {
    // tonic's own timer starts only when there is a connection.
    match tokio::time::timeout(deadline, call).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(status)) => Err(CheckError::new(&status, deadline, "the admin listener")),
        Err(_) => Err(CheckError::DeadlineExceeded { deadline }),
    }
}
