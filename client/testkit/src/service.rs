//! A rate limit service that returns a scripted answer and records the requests.

use std::{
    fmt,
    net::SocketAddr,
    path::Path,
    pin::Pin,
    sync::{Arc, Mutex},
};

use sluicegate_client::{Check, Client, Endpoint};
use sluicegate_proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse,
    rate_limit_response::{Code, DescriptorStatus, RateLimit, rate_limit::Unit},
    rate_limit_service_server::{RateLimitService, RateLimitServiceServer},
};
use tokio::net::{TcpListener, UnixListener};
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tonic::{
    Request, Response, Status,
    metadata::MetadataMap,
    transport::{Server, ServerTlsConfig},
};

/// The answer of the service to every call.
#[derive(Clone, Debug)]
pub enum Answer {
    /// This response.
    Response(RateLimitResponse),
    /// An error.
    Error(Status),
    /// None: the call never ends.
    Never,
    /// What a function returns for the request.
    Script(Script),
}

type Scripted = Pin<Box<dyn Future<Output = Result<RateLimitResponse, Status>> + Send>>;

/// The function of [`Answer::Script`].
#[derive(Clone)]
pub struct Script(Arc<dyn Fn(RateLimitRequest) -> Scripted + Send + Sync>);

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Script").finish_non_exhaustive()
    }
}

impl Answer {
    /// Answers each request by this function.
    pub fn script<F>(script: impl Fn(RateLimitRequest) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<RateLimitResponse, Status>> + Send + 'static,
    {
        Self::Script(Script(Arc::new(move |request| Box::pin(script(request)))))
    }
}

/// A service, which runs until the test's runtime ends.
#[derive(Clone, Debug)]
pub struct Service {
    answer: Answer,
    received: Arc<Mutex<Vec<(MetadataMap, RateLimitRequest)>>>,
}

impl Service {
    /// A service with this answer.
    #[must_use]
    pub fn new(answer: Answer) -> Self {
        Self { answer, received: Arc::default() }
    }

    /// Starts on a free port.
    pub async fn start(&self) -> Endpoint {
        self.start_on(([127, 0, 0, 1], 0).into()).await
    }

    /// Starts at this address.
    pub async fn start_on(&self, address: SocketAddr) -> Endpoint {
        let listener = TcpListener::bind(address).await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let router = Server::builder().add_service(RateLimitServiceServer::new(self.clone()));
        tokio::spawn(router.serve_with_incoming(TcpListenerStream::new(listener)));
        endpoint.parse().unwrap()
    }

    /// Starts on a free port, with TLS.
    pub async fn start_tls(&self, tls: ServerTlsConfig) -> Endpoint {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("https://{}", listener.local_addr().unwrap());
        let mut server = Server::builder().tls_config(tls).unwrap();
        let router = server.add_service(RateLimitServiceServer::new(self.clone()));
        tokio::spawn(router.serve_with_incoming(TcpListenerStream::new(listener)));
        endpoint.parse().unwrap()
    }

    /// Starts on a unix socket.
    pub fn start_unix(&self, path: &Path) -> Endpoint {
        let listener = UnixListener::bind(path).unwrap();
        let router = Server::builder().add_service(RateLimitServiceServer::new(self.clone()));
        tokio::spawn(router.serve_with_incoming(UnixListenerStream::new(listener)));
        format!("unix:{}", path.display()).parse().unwrap()
    }

    /// Takes the requests that were received since the last call, with their metadata.
    pub fn take_requests(&self) -> Vec<(MetadataMap, RateLimitRequest)> {
        std::mem::take(&mut self.received.lock().unwrap())
    }
}

#[tonic::async_trait]
impl RateLimitService for Service {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let metadata = request.metadata().clone();
        let request = request.into_inner();
        self.received.lock().unwrap().push((metadata, request.clone()));
        match &self.answer {
            Answer::Script(Script(script)) => script(request).await.map(Response::new),
            Answer::Response(response) => Ok(Response::new(response.clone())),
            Answer::Error(status) => Err(status.clone()),
            Answer::Never => std::future::pending().await,
        }
    }
}

/// A response for one descriptor with a limit of ten per minute.
#[must_use]
pub fn response_with_limit(code: Code, remaining: u32) -> Answer {
    let status = DescriptorStatus {
        code: code.into(),
        current_limit: Some(RateLimit {
            name: "per user".to_owned(),
            requests_per_unit: 10,
            unit: Unit::Minute.into(),
            unit_multiplier: None,
        }),
        limit_remaining: remaining,
        duration_until_reset: "42s".parse().ok(),
        quota: None,
    };
    Answer::Response(RateLimitResponse {
        overall_code: code.into(),
        statuses: vec![status],
        ..RateLimitResponse::default()
    })
}

/// A check of one descriptor.
pub fn sample_check() -> Check {
    Check::new("api").descriptor([("tenant", "acme"), ("user", "bob")])
}

/// A lazy client with a deadline of 30 s, so that a busy machine does not fail the test.
#[must_use]
pub fn client_of(endpoint: Endpoint) -> Client {
    Client::builder(endpoint).deadline(std::time::Duration::from_secs(30)).connect_lazy().unwrap()
}

/// A free address of the loopback, without a listener.
pub async fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}
