//! A rate limit service that answers as it is told and keeps what it was asked.

use std::{
    net::SocketAddr,
    path::Path,
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

/// What the service says.
#[derive(Clone, Debug)]
pub enum Answer {
    /// This response.
    Response(RateLimitResponse),
    /// An error.
    Error(Status),
    /// Nothing, ever.
    Never,
}

/// A service, for as long as the test's runtime lasts.
#[derive(Clone, Debug)]
pub struct Service {
    answer: Answer,
    asked: Arc<Mutex<Vec<(MetadataMap, RateLimitRequest)>>>,
}

impl Service {
    /// A service with this answer.
    #[must_use]
    pub fn new(answer: Answer) -> Self {
        Self { answer, asked: Arc::default() }
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

    /// What was asked since the last look.
    pub fn asked(&self) -> Vec<(MetadataMap, RateLimitRequest)> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

#[tonic::async_trait]
impl RateLimitService for Service {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let metadata = request.metadata().clone();
        self.asked.lock().unwrap().push((metadata, request.into_inner()));
        match &self.answer {
            Answer::Response(response) => Ok(Response::new(response.clone())),
            Answer::Error(status) => Err(status.clone()),
            Answer::Never => std::future::pending().await,
        }
    }
}

/// One limit of ten a minute, with so many left.
#[must_use]
pub fn limited(code: Code, left: u32) -> Answer {
    let status = DescriptorStatus {
        code: code.into(),
        current_limit: Some(RateLimit {
            name: "per user".to_owned(),
            requests_per_unit: 10,
            unit: Unit::Minute.into(),
            unit_multiplier: None,
        }),
        limit_remaining: left,
        duration_until_reset: "42s".parse().ok(),
        quota: None,
    };
    Answer::Response(RateLimitResponse {
        overall_code: code.into(),
        statuses: vec![status],
        ..RateLimitResponse::default()
    })
}

/// A question about one descriptor.
pub fn question() -> Check {
    Check::new("api").descriptor([("tenant", "acme"), ("user", "bob")])
}

/// A client that waits long enough for a machine with other things to do.
#[must_use]
pub fn patient(endpoint: Endpoint) -> Client {
    Client::builder(endpoint).deadline(std::time::Duration::from_secs(30)).connect_lazy().unwrap()
}

/// An address that nothing listens on.
pub async fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}
