//! The admin client against an admin service that answers as it is told.

use sluicegate_client::{AdminClient, CheckError, InvalidToken};
use sluicegate_client_testkit::{
    admin::{start, unmatched},
    service::{Service, limited, patient, question},
};
use sluicegate_proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tonic::Status;

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
