//! Results and errors of a call.

use std::time::Duration;

use sluicegate_client::{CheckError, Client, Code, GrpcCode, Unit};
use sluicegate_proto::envoy::{
    config::core::v3::HeaderValue,
    service::ratelimit::v3::{
        RateLimitResponse,
        rate_limit_response::{self, DescriptorStatus},
    },
};
use tonic::Status;

use sluicegate_client_testkit::service::{
    Answer, Service, client_of, free_address, response_with_limit, sample_check,
};

async fn error_of(status: Status) -> CheckError {
    let client = client_of(Service::new(Answer::Error(status)).start().await);
    client.check(sample_check()).await.unwrap_err()
}

#[tokio::test]
async fn allowed() {
    let service = Service::new(response_with_limit(rate_limit_response::Code::Ok, 9));
    let client = Client::connect(&service.start().await.to_string()).await.unwrap();
    let verdict =
        client.with_deadline(Duration::from_secs(30)).check(sample_check().hits(3)).await.unwrap();

    assert!(verdict.allowed);
    assert_eq!(verdict.retry_after(), None);
    let [status] = &verdict.statuses[..] else { panic!("{verdict:?}") };
    assert_eq!((status.code, status.remaining), (Code::Ok, 9));
    assert_eq!(status.until_reset, Some(Duration::from_secs(42)));
    let limit = status.limit.as_ref().unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit), (10, Some(Unit::Minute)));
    assert_eq!((limit.unit_multiplier, limit.name.as_str()), (1, "per user"));
}

#[tokio::test]
async fn refused() {
    let service = Service::new(response_with_limit(rate_limit_response::Code::OverLimit, 0));
    let verdict = client_of(service.start().await).check(sample_check()).await.unwrap();

    assert!(!verdict.allowed);
    assert_eq!(verdict.statuses[0].code, Code::OverLimit);
    assert_eq!(verdict.retry_after(), Some(Duration::from_secs(42)));
}

#[tokio::test]
async fn unlimited_is_not_the_same_as_no_limit() {
    let status =
        |limit_remaining| DescriptorStatus { limit_remaining, ..DescriptorStatus::default() };
    let service = Service::new(Answer::Response(RateLimitResponse {
        statuses: vec![status(u32::MAX), status(0)],
        ..RateLimitResponse::default()
    }));
    let verdict = client_of(service.start().await).check(sample_check()).await.unwrap();

    let unlimited: Vec<bool> =
        verdict.statuses.iter().map(sluicegate_client::Status::is_unlimited).collect();
    assert_eq!(unlimited, [true, false]);
}

#[tokio::test]
async fn headers_and_body_are_bytes() {
    let text =
        HeaderValue { key: "x-a".to_owned(), value: "1".to_owned(), ..HeaderValue::default() };
    let raw = HeaderValue {
        key: "x-b".to_owned(),
        raw_value: b"\xff"[..].into(),
        ..HeaderValue::default()
    };
    let service = Service::new(Answer::Response(RateLimitResponse {
        response_headers_to_add: vec![text],
        request_headers_to_add: vec![raw],
        raw_body: b"slow down"[..].into(),
        ..RateLimitResponse::default()
    }));
    let verdict = client_of(service.start().await).check(sample_check()).await.unwrap();

    let [text] = &verdict.response_headers_to_add[..] else { panic!("{verdict:?}") };
    assert_eq!((text.name.as_str(), &text.value[..]), ("x-a", &b"1"[..]));
    let [raw] = &verdict.request_headers_to_add[..] else { panic!("{verdict:?}") };
    assert_eq!((raw.name.as_str(), &raw.value[..]), ("x-b", &b"\xff"[..]));
    assert_eq!(&verdict.raw_body[..], b"slow down");
}

#[tokio::test]
async fn check_ends_at_its_deadline_without_an_answer() {
    let service = Service::new(Answer::Never);
    let deadline = Duration::from_millis(50);
    let client = client_of(service.start().await).with_deadline(deadline);

    let error = client.check(sample_check()).await.unwrap_err();
    assert_eq!(error, CheckError::DeadlineExceeded { deadline });
    assert_eq!(error.to_string(), "no answer within 50ms");
    assert!(service.take_requests().len() <= 1, "retried");
}

#[tokio::test]
async fn check_ends_at_its_deadline_during_the_tls_handshake() {
    // The kernel accepts the connection; the TLS handshake is never answered.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("https://{}", listener.local_addr().unwrap());
    let deadline = Duration::from_millis(50);
    let certified = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, certified.cert.pem()).unwrap();
    let client = Client::builder(endpoint.parse().unwrap())
        .tls_ca_file(ca)
        .connect_timeout(Duration::from_secs(30))
        .deadline(deadline)
        .connect_lazy()
        .unwrap();

    let error = client.check(sample_check()).await.unwrap_err();
    assert_eq!(error, CheckError::DeadlineExceeded { deadline });
}

#[tokio::test]
async fn unreachable_service_is_unavailable() {
    let client = client_of(format!("http://{}", free_address().await).parse().unwrap());
    let CheckError::Unavailable { reason } = client.check(sample_check()).await.unwrap_err() else {
        panic!("another error");
    };
    assert!(reason.contains("refused"), "{reason}");
}

#[tokio::test]
async fn rejected_request_carries_the_message_of_the_service() {
    assert_eq!(
        error_of(Status::invalid_argument("domain must not be empty")).await,
        CheckError::InvalidRequest { reason: "domain must not be empty".to_owned() }
    );
}

#[tokio::test]
async fn other_errors_keep_their_code() {
    assert_eq!(
        error_of(Status::internal("store failed")).await,
        CheckError::Other { code: GrpcCode::Internal, reason: "store failed".to_owned() }
    );
}

#[tokio::test]
async fn failed_calls_are_not_retried() {
    let service = Service::new(Answer::Error(Status::unavailable("draining")));
    let client = client_of(service.start().await);
    assert_eq!(
        client.check(sample_check()).await,
        Err(CheckError::Unavailable { reason: "draining".to_owned() })
    );
    assert_eq!(service.take_requests().len(), 1);
}
