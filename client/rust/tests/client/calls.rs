//! What a call comes to.

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
    Answer, Service, free_address, limited, patient, question,
};

async fn fails(status: Status) -> CheckError {
    let client = patient(Service::new(Answer::Error(status)).start().await);
    client.check(question()).await.unwrap_err()
}

#[tokio::test]
async fn allowed() {
    let service = Service::new(limited(rate_limit_response::Code::Ok, 9));
    let client = Client::connect(&service.start().await.to_string()).await.unwrap();
    let verdict =
        client.with_deadline(Duration::from_secs(30)).check(question().hits(3)).await.unwrap();

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
    let service = Service::new(limited(rate_limit_response::Code::OverLimit, 0));
    let verdict = patient(service.start().await).check(question()).await.unwrap();

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
    let verdict = patient(service.start().await).check(question()).await.unwrap();

    let unlimited: Vec<bool> =
        verdict.statuses.iter().map(sluicegate_client::Status::is_unlimited).collect();
    assert_eq!(unlimited, [true, false]);
}

#[tokio::test]
async fn headers_come_as_bytes() {
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
    let verdict = patient(service.start().await).check(question()).await.unwrap();

    let [text] = &verdict.response_headers_to_add[..] else { panic!("{verdict:?}") };
    assert_eq!((text.name.as_str(), &text.value[..]), ("x-a", &b"1"[..]));
    let [raw] = &verdict.request_headers_to_add[..] else { panic!("{verdict:?}") };
    assert_eq!((raw.name.as_str(), &raw.value[..]), ("x-b", &b"\xff"[..]));
    assert_eq!(&verdict.raw_body[..], b"slow down");
}

#[tokio::test]
async fn a_service_that_never_answers_is_not_waited_for() {
    let service = Service::new(Answer::Never);
    let deadline = Duration::from_millis(50);
    let client = patient(service.start().await).with_deadline(deadline);

    let error = client.check(question()).await.unwrap_err();
    assert_eq!(error, CheckError::DeadlineExceeded { deadline });
    assert_eq!(error.to_string(), "no answer within 50ms");
    assert!(service.asked().len() <= 1, "retried");
}

#[tokio::test]
async fn a_service_that_never_accepts_is_not_waited_for() {
    // The kernel accepts; no one speaks TLS or HTTP.
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

    let error = client.check(question()).await.unwrap_err();
    assert_eq!(error, CheckError::DeadlineExceeded { deadline });
}

#[tokio::test]
async fn a_service_that_is_not_there_is_unavailable() {
    let client = patient(format!("http://{}", free_address().await).parse().unwrap());
    let CheckError::Unavailable { reason } = client.check(question()).await.unwrap_err() else {
        panic!("another error");
    };
    assert!(reason.contains("refused"), "{reason}");
}

#[tokio::test]
async fn a_service_that_rejects_the_question_says_why() {
    assert_eq!(
        fails(Status::invalid_argument("domain must not be empty")).await,
        CheckError::InvalidRequest { reason: "domain must not be empty".to_owned() }
    );
}

#[tokio::test]
async fn other_errors_keep_their_code() {
    assert_eq!(
        fails(Status::internal("store is gone")).await,
        CheckError::Other { code: GrpcCode::Internal, reason: "store is gone".to_owned() }
    );
}

#[tokio::test]
async fn nothing_is_retried() {
    let service = Service::new(Answer::Error(Status::unavailable("draining")));
    let client = patient(service.start().await);
    assert_eq!(
        client.check(question()).await,
        Err(CheckError::Unavailable { reason: "draining".to_owned() })
    );
    assert_eq!(service.asked().len(), 1);
}
