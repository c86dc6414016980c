//! An admin service whose `Explain` returns a scripted answer and records the requests. Other methods are
//! unimplemented.

use std::sync::{Arc, Mutex};

use sluicegate_proto::sluicegate::admin::v1::{
    self as wire, DescriptorExplanation, ExplainRequest, ExplainResponse, Outcome,
    admin_service_server::{AdminService, AdminServiceServer},
};
use tokio::net::TcpListener;
use tokio_stream::{Pending, wrappers::TcpListenerStream};
use tonic::{Request, Response, Status, metadata::MetadataMap, transport::Server};

/// Received requests: metadata and message.
pub type ReceivedRequests = Arc<Mutex<Vec<(MetadataMap, ExplainRequest)>>>;

#[derive(Clone)]
struct Admin {
    answer: Result<ExplainResponse, Status>,
    received: ReceivedRequests,
}

#[tonic::async_trait]
impl AdminService for Admin {
    async fn explain(
        &self,
        request: Request<ExplainRequest>,
    ) -> Result<Response<ExplainResponse>, Status> {
        let metadata = request.metadata().clone();
        self.received.lock().unwrap().push((metadata, request.into_inner()));
        self.answer.clone().map(Response::new)
    }

    async fn get_log_level(
        &self,
        _request: Request<wire::GetLogLevelRequest>,
    ) -> Result<Response<wire::GetLogLevelResponse>, Status> {
        Err(Status::unimplemented("explains only"))
    }

    async fn set_log_level(
        &self,
        _request: Request<wire::SetLogLevelRequest>,
    ) -> Result<Response<wire::SetLogLevelResponse>, Status> {
        Err(Status::unimplemented("explains only"))
    }

    type ListRulesStream = Pending<Result<wire::ListRulesResponse, Status>>;

    async fn list_rules(
        &self,
        _request: Request<wire::ListRulesRequest>,
    ) -> Result<Response<Self::ListRulesStream>, Status> {
        Err(Status::unimplemented("explains only"))
    }

    async fn peek_counters(
        &self,
        _request: Request<wire::PeekCountersRequest>,
    ) -> Result<Response<wire::PeekCountersResponse>, Status> {
        Err(Status::unimplemented("explains only"))
    }

    type ListCountersStream = Pending<Result<wire::ListCountersResponse, Status>>;

    async fn list_counters(
        &self,
        _request: Request<wire::ListCountersRequest>,
    ) -> Result<Response<Self::ListCountersStream>, Status> {
        Err(Status::unimplemented("explains only"))
    }

    async fn reset_counter(
        &self,
        _request: Request<wire::ResetCounterRequest>,
    ) -> Result<Response<wire::ResetCounterResponse>, Status> {
        Err(Status::unimplemented("explains only"))
    }

    type ResetTenantStream = Pending<Result<wire::ResetTenantResponse, Status>>;

    async fn reset_tenant(
        &self,
        _request: Request<wire::ResetTenantRequest>,
    ) -> Result<Response<Self::ResetTenantStream>, Status> {
        Err(Status::unimplemented("explains only"))
    }

    async fn get_status(
        &self,
        _request: Request<wire::GetStatusRequest>,
    ) -> Result<Response<wire::GetStatusResponse>, Status> {
        Err(Status::unimplemented("explains only"))
    }

    async fn top(
        &self,
        _request: Request<wire::TopRequest>,
    ) -> Result<Response<wire::TopResponse>, Status> {
        Err(Status::unimplemented("explains only"))
    }
}

/// Starts the service. Returns its endpoint and the requests that it receives.
pub async fn start(answer: Result<ExplainResponse, Status>) -> (String, ReceivedRequests) {
    let admin = Admin { answer, received: ReceivedRequests::default() };
    let received = Arc::clone(&admin.received);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let router = Server::builder().add_service(AdminServiceServer::new(admin));
    tokio::spawn(router.serve_with_incoming(TcpListenerStream::new(listener)));
    (endpoint, received)
}

/// An explanation of one descriptor whose domain is not configured.
#[must_use]
pub fn unmatched_response(would_pass: Option<bool>) -> ExplainResponse {
    let descriptor = DescriptorExplanation {
        outcome: Outcome::DomainNotConfigured.into(),
        ..DescriptorExplanation::default()
    };
    ExplainResponse { would_pass, descriptors: vec![descriptor] }
}
