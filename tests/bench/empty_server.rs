//! The baseline: a tonic server with the same messages that decodes a request and returns a constant.

use sluicegate_proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse,
    rate_limit_response::{Code, DescriptorStatus, RateLimit, rate_limit::Unit},
    rate_limit_service_server::{RateLimitService, RateLimitServiceServer},
};
use tokio::net::TcpListener;
use tonic::{
    Request, Response, Status,
    transport::{Server, server::TcpIncoming},
};

/// Answers that all hits may pass.
struct Empty;

#[tonic::async_trait]
impl RateLimitService for Empty {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let status = DescriptorStatus {
            code: Code::Ok.into(),
            current_limit: Some(RateLimit {
                requests_per_unit: 4_000_000_000,
                unit: Unit::Day.into(),
                ..RateLimit::default()
            }),
            limit_remaining: 3_999_999_999,
            duration_until_reset: Some(prost_types::Duration { seconds: 40_000, nanos: 0 }),
            ..DescriptorStatus::default()
        };
        Ok(Response::new(RateLimitResponse {
            overall_code: Code::Ok.into(),
            statuses: vec![status; request.get_ref().descriptors.len()],
            ..RateLimitResponse::default()
        }))
    }
}

/// Serves on a free port, without end, with tonic's defaults.
#[tokio::main]
pub(crate) async fn serve() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("serving at {}", listener.local_addr().unwrap());
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let service = RateLimitServiceServer::new(Empty);
    Server::builder().add_service(service).serve_with_incoming(incoming).await.unwrap();
}
