//! The upstream service behind Envoy.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use axum::{Router, http::HeaderMap, response::IntoResponse};
use tokio::{net::TcpListener, task::JoinHandle};

/// An HTTP service in this process. It copies the request's header x-cost to the response.
#[derive(Debug)]
pub struct Upstream {
    /// The address of the service.
    pub address: SocketAddr,
    requests: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Upstream {
    /// Starts the service on a free port.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&requests);
        let answer = |request: HeaderMap| async move {
            count.fetch_add(1, Ordering::Relaxed);
            let cost = request.get("x-cost").map(|cost| ("x-cost", cost.clone()));
            (HeaderMap::from_iter(cost.map(|(name, cost)| (name.parse().unwrap(), cost))), "hello")
                .into_response()
        };
        let router = Router::new().fallback(answer);
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, requests, task }
    }

    /// Number of requests that Envoy has forwarded.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.task.abort();
    }
}
