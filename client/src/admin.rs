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
        ExplainRequest, ExplainResponse, GetLogLevelRequest, LogLevel, SetLogLevelRequest,
        admin_service_client::AdminServiceClient,
    },
};
use thiserror::Error;
use tonic::{
    Request, Response, Status,
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

    /// A request that tells the server how long its answer is waited for.
    fn timed<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(self.deadline);
        if let Some(authorization) = &self.authorization {
            request.metadata_mut().insert("authorization", authorization.clone());
        }
        request
    }

    async fn answer<T>(
        &self,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, CheckError> {
        // tonic's own timer starts only when there is a connection.
        match tokio::time::timeout(self.deadline, call).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(CheckError::new(&status, self.deadline, "the admin listener")),
            Err(_) => Err(CheckError::DeadlineExceeded { deadline: self.deadline }),
        }
    }
}
