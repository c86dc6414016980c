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

/// The largest answer. An explanation of many descriptors is long.
const ANSWER_MAX: usize = 64 << 20;

/// A connection to the admin listener of a Sluicegate.
///
/// Its answers are the messages of `sluicegate.admin.v1`, which are this project's own. Clones are cheap and share
/// the connection.
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
        /// Which.
        path: PathBuf,
        /// Why it cannot be read.
        source: io::Error,
    },
    /// Empty, or with something else than visible ASCII in it.
    #[error("a token is visible ASCII without spaces")]
    Text,
}

impl AdminClient {
    /// Settings of a client to be, for [`Builder::connect_admin_lazy`].
    pub fn builder(endpoint: Endpoint) -> Builder {
        Builder::new(endpoint)
    }

    pub(crate) fn new(channel: Channel, endpoint: Endpoint, deadline: Duration) -> Self {
        let service = AdminServiceClient::new(channel).max_decoding_message_size(ANSWER_MAX);
        Self { service, endpoint: Arc::new(endpoint), deadline, authorization: None }
    }

    /// Shows this token with each call, unencrypted where the endpoint is plain HTTP.
    ///
    /// # Errors
    /// It is empty, or holds something else than visible ASCII.
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

    /// Shows the first line of this file with each call. It is read once.
    ///
    /// # Errors
    /// The file cannot be read, or its first line is no token.
    pub fn with_token_file(self, path: impl AsRef<Path>) -> Result<Self, InvalidToken> {
        let path = path.as_ref();
        let text = fs::read_to_string(path)
            .map_err(|source| InvalidToken::File { path: path.to_owned(), source })?;
        self.with_token(text.lines().next().unwrap_or_default().trim())
    }

    /// Where the admin listener is.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Asks why a request would be answered as it would. Nothing is counted.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn explain(&self, check: Check) -> Result<ExplainResponse, CheckError> {
        let RateLimitRequest { domain, descriptors, hits_addend } = check.into();
        let request = self.timed(ExplainRequest { domain, descriptors, hits_addend });
        let mut service = self.service.clone();
        self.answer(service.explain(request)).await
    }

    /// Asks what is logged.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn log_level(&self) -> Result<LogLevel, CheckError> {
        let mut service = self.service.clone();
        let answer = self.answer(service.get_log_level(self.timed(GetLogLevelRequest {})));
        Ok(answer.await?.log_level.unwrap_or_default())
    }

    /// Changes what is logged, for good or for a while. `level` is what the server's `--log-level` takes.
    ///
    /// # Errors
    /// There is no answer, or `level` is no level.
    pub async fn set_log_level(
        &self,
        level: &str,
        duration: Option<Duration>,
    ) -> Result<LogLevel, CheckError> {
        // A span that the wire cannot carry is as good as the longest that it can.
        let longest = prost_types::Duration { seconds: i64::MAX, nanos: 0 };
        let duration = duration.map(|span| span.try_into().unwrap_or(longest));
        let request = self.timed(SetLogLevelRequest { level: level.to_owned(), duration });
        let mut service = self.service.clone();
        Ok(self.answer(service.set_log_level(request)).await?.log_level.unwrap_or_default())
    }

    /// Asks for the rules in force, in the order of their files: of one domain, if it is named, and whose paths begin
    /// with the prefix.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn rules(
        &self,
        domain: &str,
        path_prefix: &str,
    ) -> Result<Answers<ListRulesResponse>, CheckError> {
        let (domain, path_prefix) = (domain.to_owned(), path_prefix.to_owned());
        let request = self.request(ListRulesRequest { domain, path_prefix });
        let mut service = self.service.clone();
        let stream = self.answer(service.list_rules(request)).await?;
        Ok(self.answers(stream))
    }

    /// Asks how the counters stand that the descriptors of a check meet. Nothing is counted.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn peek(&self, check: Check) -> Result<PeekCountersResponse, CheckError> {
        let RateLimitRequest { domain, descriptors, .. } = check.into();
        let request = self.timed(PeekCountersRequest { domain, descriptors });
        let mut service = self.service.clone();
        self.answer(service.peek_counters(request)).await
    }

    /// Asks for the counters of a tenant, at most `limit` of them; 0 for as many as the server likes. Nothing is counted.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn counters(
        &self,
        domain: &str,
        tenant: &[u8],
        limit: u32,
    ) -> Result<Answers<ListCountersResponse>, CheckError> {
        let tenant = tenant.to_vec().into();
        let request =
            self.request(ListCountersRequest { domain: domain.to_owned(), tenant, limit });
        let mut service = self.service.clone();
        let stream = self.answer(service.list_counters(request)).await?;
        Ok(self.answers(stream))
    }

    /// Resets the counters of the first descriptor of a check: that of the limit of this name, or all.
    ///
    /// # Errors
    /// There is no answer. Counters may have been reset.
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

    /// Resets the counter of this name, as explanations and lists of counters tell it.
    ///
    /// # Errors
    /// There is no answer. The counter may have been reset.
    pub async fn reset_counter(
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
        let request = self.timed(ResetCounterRequest { counters: Some(counters), dry_run });
        let mut service = self.service.clone();
        self.answer(service.reset_counter(request)).await
    }

    /// Resets every counter of a tenant in a domain, step by step, and tells how far it has come. Who drops the answers
    /// stops it.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn reset_tenant(
        &self,
        domain: &str,
        tenant: &[u8],
        dry_run: bool,
    ) -> Result<Answers<ResetTenantResponse>, CheckError> {
        let (domain, tenant) = (domain.to_owned(), tenant.to_vec().into());
        let request = self.request(ResetTenantRequest { domain, tenant, dry_run });
        let mut service = self.service.clone();
        let stream = self.answer(service.reset_tenant(request)).await?;
        Ok(self.answers(stream))
    }

    /// Asks how the server and its store do.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn status(&self) -> Result<GetStatusResponse, CheckError> {
        let request = self.timed(GetStatusRequest {});
        let mut service = self.service.clone();
        self.answer(service.get_status(request)).await
    }

    /// Asks who is being limited.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn top(&self, request: TopRequest) -> Result<TopResponse, CheckError> {
        let request = self.timed(request);
        let mut service = self.service.clone();
        self.answer(service.top(request)).await
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(authorization) = &self.authorization {
            request.metadata_mut().insert("authorization", authorization.clone());
        }
        request
    }

    /// A request that tells the server how long its answer is waited for.
    fn timed<T>(&self, message: T) -> Request<T> {
        let mut request = self.request(message);
        request.set_timeout(self.deadline);
        request
    }

    async fn answer<T>(
        &self,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, CheckError> {
        within(self.deadline, call).await.map(Response::into_inner)
    }

    const fn answers<T>(&self, stream: Streaming<T>) -> Answers<T> {
        Answers { stream, deadline: self.deadline }
    }
}

/// An answer that comes in several messages.
#[derive(Debug)]
pub struct Answers<T> {
    stream: Streaming<T>,
    deadline: Duration,
}

impl<T> Answers<T> {
    /// The next message; `None` after the last one. Each is waited for as long as the client waits for an answer.
    ///
    /// # Errors
    /// It does not come.
    pub async fn next(&mut self) -> Result<Option<T>, CheckError> {
        within(self.deadline, self.stream.message()).await
    }
}

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
