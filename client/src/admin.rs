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
        ExplainRequest, ExplainResponse, admin_service_client::AdminServiceClient,
    },
};
use thiserror::Error;
use tonic::{
    Request,
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
        let mut request = Request::new(ExplainRequest { domain, descriptors, hits_addend });
        request.set_timeout(self.deadline);
        if let Some(authorization) = &self.authorization {
            request.metadata_mut().insert("authorization", authorization.clone());
        }
        let mut service = self.service.clone();
        // tonic's own timer starts only when there is a connection.
        match tokio::time::timeout(self.deadline, service.explain(request)).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(CheckError::new(&status, self.deadline, "the admin listener")),
            Err(_) => Err(CheckError::DeadlineExceeded { deadline: self.deadline }),
        }
    }
}
