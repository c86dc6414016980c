//! An admin service that explains as it is told and keeps what it was asked.

use std::sync::{Arc, Mutex};

use sluicegate_proto::sluicegate::admin::v1::{
    self as wire, DescriptorExplanation, ExplainRequest, ExplainResponse, Outcome,
    admin_service_server::{AdminService, AdminServiceServer},
};
use tokio::net::TcpListener;
use tokio_stream::{Pending, wrappers::TcpListenerStream};
use tonic::{Request, Response, Status, metadata::MetadataMap, transport::Server};

/// What it was asked: the metadata and the message.
pub type Asked = Arc<Mutex<Vec<(MetadataMap, ExplainRequest)>>>;

#[derive(Clone)]
struct Admin {
    answer: Result<ExplainResponse, Status>,
    asked: Asked,
}

#[tonic::async_trait]
impl AdminService for Admin {
    async fn explain(
        &self,
        request: Request<ExplainRequest>,
    ) -> Result<Response<ExplainResponse>, Status> {
        let metadata = request.metadata().clone();
        self.asked.lock().unwrap().push((metadata, request.into_inner()));
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

/// Starts one. Where it is, and what it is asked.
pub async fn start(answer: Result<ExplainResponse, Status>) -> (String, Asked) {
    let admin = Admin { answer, asked: Asked::default() };
    let asked = Arc::clone(&admin.asked);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let router = Server::builder().add_service(AdminServiceServer::new(admin));
    tokio::spawn(router.serve_with_incoming(TcpListenerStream::new(listener)));
    (endpoint, asked)
}

/// An explanation without a rule.
#[must_use]
pub fn unmatched(would_pass: Option<bool>) -> ExplainResponse {
    let descriptor = DescriptorExplanation {
        outcome: Outcome::DomainNotConfigured.into(),
        ..DescriptorExplanation::default()
    };
    ExplainResponse { would_pass, descriptors: vec![descriptor] }
}
