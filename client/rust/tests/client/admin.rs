//! The admin client against an admin service with scripted answers.

use sluicegate_client::{AdminClient, CheckError, InvalidToken};
use sluicegate_client_testkit::{
    admin::{start, unmatched_response},
    service::{Service, client_of, response_with_limit, sample_check},
};
use sluicegate_proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tonic::Status;

fn client(endpoint: &str) -> AdminClient {
    let builder = AdminClient::builder(endpoint.parse().unwrap());
    builder.deadline(std::time::Duration::from_secs(30)).connect_admin_lazy().unwrap()
}

#[tokio::test]
async fn explain_sends_the_request_and_the_token() {
    let (endpoint, received) = start(Ok(unmatched_response(Some(true)))).await;
    let client = client(&endpoint);
    assert_eq!(
        client.explain(sample_check().hits(3)).await.unwrap(),
        unmatched_response(Some(true))
    );
    client.clone().with_token("s3cret").unwrap().explain(sample_check()).await.unwrap();
    let received = received.lock().unwrap();
    let [(bare, first), (with_token, _)] = &received[..] else { panic!("{received:?}") };
    assert_eq!((&*first.domain, first.descriptors.len(), first.hits_addend), ("api", 1, 3));
    assert_eq!(&first.descriptors[0].entries[1].value[..], b"bob");
    assert!(bare.get("authorization").is_none());
    assert_eq!(with_token.get("authorization").unwrap(), "Bearer s3cret");
}

#[tokio::test]
async fn invalid_tokens_are_rejected() {
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
async fn invalid_argument_becomes_invalid_request() {
    let (endpoint, _) = start(Err(Status::invalid_argument("no domain"))).await;
    let error = client(&endpoint).explain(sample_check()).await.unwrap_err();
    assert_eq!(error, CheckError::InvalidRequest { reason: "no domain".to_owned() });
}

#[tokio::test]
async fn wrong_listener_is_named_in_the_error() {
    let envoy = Service::new(response_with_limit(Code::Ok, 9)).start().await;
    let error = client(&envoy.to_string()).explain(sample_check()).await.unwrap_err().to_string();
    assert_eq!(error, "Unimplemented: no such service here; is this the admin listener?");

    let (admin, _) = start(Ok(unmatched_response(None))).await;
    let error =
        client_of(admin.parse().unwrap()).check(sample_check()).await.unwrap_err().to_string();
    assert_eq!(error, "Unimplemented: no such service here; is this the gRPC listener?");
}
