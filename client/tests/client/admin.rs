//! The admin client and `sluicectl explain` against an admin service that answers as it is told.

use std::sync::{Arc, Mutex};

use sluicegate_client::{AdminClient, CheckError, InvalidToken};
use sluicegate_proto::{
    envoy::service::ratelimit::v3::rate_limit_response::Code,
    sluicegate::admin::v1::{
        self as wire, DescriptorExplanation, ExplainRequest, ExplainResponse, Outcome,
        admin_service_server::{AdminService, AdminServiceServer},
    },
};
use tokio::net::TcpListener;
use tokio_stream::{Pending, wrappers::TcpListenerStream};
use tonic::{Request, Response, Status, metadata::MetadataMap, transport::Server};

use crate::service::{Service, limited, patient, question};

/// What it was asked: the metadata and the message.
type Asked = Arc<Mutex<Vec<(MetadataMap, ExplainRequest)>>>;

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
async fn start(answer: Result<ExplainResponse, Status>) -> (String, Asked) {
    let admin = Admin { answer, asked: Asked::default() };
    let asked = Arc::clone(&admin.asked);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let router = Server::builder().add_service(AdminServiceServer::new(admin));
    tokio::spawn(router.serve_with_incoming(TcpListenerStream::new(listener)));
    (endpoint, asked)
}

fn unmatched(would_pass: Option<bool>) -> ExplainResponse {
    let descriptor = DescriptorExplanation {
        outcome: Outcome::DomainNotConfigured.into(),
        ..DescriptorExplanation::default()
    };
    ExplainResponse { would_pass, descriptors: vec![descriptor] }
}

fn client(endpoint: &str) -> AdminClient {
    let builder = AdminClient::builder(endpoint.parse().unwrap());
    builder.deadline(std::time::Duration::from_secs(30)).connect_admin_lazy().unwrap()
}

#[tokio::test]
async fn the_question_arrives_with_the_token() {
    let (endpoint, asked) = start(Ok(unmatched(Some(true)))).await;
    let client = client(&endpoint);
    assert_eq!(client.explain(question().hits(3)).await.unwrap(), unmatched(Some(true)));
    client.clone().with_token("s3cret").unwrap().explain(question()).await.unwrap();
    let asked = asked.lock().unwrap();
    let [(bare, first), (with_token, _)] = &asked[..] else { panic!("{asked:?}") };
    assert_eq!((&*first.domain, first.descriptors.len(), first.hits_addend), ("api", 1, 3));
    assert_eq!(&first.descriptors[0].entries[1].value[..], b"bob");
    assert!(bare.get("authorization").is_none());
    assert_eq!(with_token.get("authorization").unwrap(), "Bearer s3cret");
}

#[tokio::test]
async fn what_is_no_token_is_not_sent() {
    let client = client("http://127.0.0.1:1");
    for token in ["", "two words", "nö", "line\n"] {
        let error = client.clone().with_token(token).unwrap_err();
        assert!(matches!(error, InvalidToken::Text), "{token:?}: {error}");
    }
    let error = client.clone().with_token_file("/nowhere/token").unwrap_err();
    assert_eq!(error.to_string(), "cannot read /nowhere/token");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "  good \r\nsecond line").unwrap();
    client.with_token_file(file.path()).unwrap();
}

#[tokio::test]
async fn errors_are_told_apart() {
    let (endpoint, _) = start(Err(Status::invalid_argument("no domain"))).await;
    let error = client(&endpoint).explain(question()).await.unwrap_err();
    assert_eq!(error, CheckError::InvalidRequest { reason: "no domain".to_owned() });
}

#[tokio::test]
async fn the_listener_that_envoy_asks_is_not_the_admin_listener() {
    let envoy = Service::new(limited(Code::Ok, 9)).start().await;
    let error = client(&envoy.to_string()).explain(question()).await.unwrap_err().to_string();
    assert_eq!(error, "Unimplemented: no such service here; is this the admin listener?");

    let (admin, _) = start(Ok(unmatched(None))).await;
    let error = patient(admin.parse().unwrap()).check(question()).await.unwrap_err().to_string();
    assert_eq!(error, "Unimplemented: no such service here; is this the gRPC listener?");
}

#[cfg(feature = "cli")]
mod command {
    use std::process::Command;

    use super::*;

    async fn explain(server: &str, more: &[&str]) -> (Option<i32>, String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluicectl"));
        command.env_clear().env("SLUICEGATE_ADMIN_SERVER", server);
        command.args(["explain", "--domain", "api", "--descriptor", "tenant=acme"]).args(more);
        let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    }

    #[tokio::test]
    async fn the_exit_code_says_whether_the_hits_would_pass() {
        for (would_pass, code, first) in [
            (Some(true), 0, "would pass"),
            (Some(false), 1, "would be refused"),
            (None, 3, "explained from files: no counter was asked"),
        ] {
            let (endpoint, _) = start(Ok(unmatched(would_pass))).await;
            let (exit, out, err) = explain(&endpoint, &[]).await;
            assert_eq!((exit, err.as_str()), (Some(code), ""));
            let rest = "  (no entries)\n    no limit applies: no limits file has this domain\n";
            assert_eq!(out, format!("{first}\n{rest}"));
        }
        let (endpoint, _) = start(Err(Status::unauthenticated("who are you"))).await;
        let (exit, out, err) = explain(&endpoint, &[]).await;
        assert_eq!((exit, out.as_str()), (Some(3), ""));
        assert_eq!(err, format!("error: {endpoint}: Unauthenticated: who are you\n"));
    }

    #[tokio::test]
    async fn a_wrong_command_line_is_2() {
        for (arguments, message) in [
            (&["--token-file", "/nowhere/token"][..], "cannot read /nowhere/token"),
            (&["--tls-server-name", "x"], "need an https:// endpoint"),
            (&["--admin-server", "localhost:8082"], "must start with http://"),
            (
                &["--admin-server", "http://limiter.example:8082", "--token-file", "token"],
                "the token would cross the network unencrypted to http://limiter.example:8082",
            ),
        ] {
            let (code, out, err) = explain("http://127.0.0.1:1", arguments).await;
            assert_eq!((code, out.as_str()), (Some(2), ""), "{arguments:?}");
            assert!(err.starts_with("error: ") && err.contains(message), "{err}");
        }
    }

    #[tokio::test]
    async fn help_teaches() {
        let (code, out, _) = explain("http://127.0.0.1:1", &["--help"]).await;
        assert_eq!(code, Some(0));
        for part in ["Try it:", "Exit codes:", "SLUICEGATE_ADMIN_SERVER", "http://127.0.0.1:8082"] {
            assert!(out.contains(part), "{part}: {out}");
        }
    }
}
