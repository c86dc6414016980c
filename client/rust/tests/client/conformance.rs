//! The cases that all clients share, see `client/conformance/README.md`.

use std::{convert::Infallible, fs, path::Path, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty, Full};
use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage};
use serde_json::Value;
use sluicegate_client::{
    Check, CheckError, Client, Descriptor, LimitOverride, Verdict,
    tower::{FailureMode, RateLimit},
};
use sluicegate_client_testkit::service::{Answer, Service, client_of};
use sluicegate_proto::{
    TEXT_FILE_DESCRIPTOR_SET, envoy::service::ratelimit::v3::RateLimitResponse,
};
use tower::{ServiceBuilder, ServiceExt as _, service_fn};

/// Number of cases when this test was written. They only become more.
const CASES_MIN: usize = 31;

#[tokio::test]
async fn every_conformance_case_holds() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance/answers.json");
    let cases: Vec<Value> = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    assert!(cases.len() >= CASES_MIN, "{} cases", cases.len());
    for case in &cases {
        let name = case["name"].as_str().unwrap();
        let service = Service::new(Answer::Response(message(&case["answer"])));
        let client = client_of(service.start().await);
        let overrides = case["overrides"].as_array().unwrap();
        let descriptors: Vec<Descriptor> = overrides
            .iter()
            .map(|is_overridden| {
                let descriptor = Descriptor::from([("key", "value")]);
                if is_overridden.as_bool().unwrap() {
                    let window = Duration::from_secs(15 * 60);
                    descriptor.limit(LimitOverride::per_window(5, window))
                } else {
                    descriptor
                }
            })
            .collect();
        let result = client.check(Check::new("domain").descriptors(descriptors.clone())).await;
        expect_verdict(name, case, &result);
        expect_response(name, &case["http"], &client, descriptors).await;
    }
}

/// A message in protobuf's JSON mapping.
fn message(json: &Value) -> RateLimitResponse {
    let pool = DescriptorPool::decode(TEXT_FILE_DESCRIPTOR_SET).unwrap();
    let name = "envoy.service.ratelimit.v3.RateLimitResponse";
    let descriptor = pool.get_message_by_name(name).unwrap();
    let message = DynamicMessage::deserialize(descriptor, json.clone()).unwrap();
    RateLimitResponse::decode(message.encode_to_vec().as_slice()).unwrap()
}

fn expect_verdict(name: &str, case: &Value, result: &Result<Verdict, CheckError>) {
    if let Some(error) = case["verdict"]["error"].as_str() {
        assert_eq!(error, "override_not_applied", "{name}");
        assert_eq!(*result, Err(CheckError::OverrideNotApplied), "{name}");
        return;
    }
    let verdict = result.as_ref().unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(Some(verdict.allowed), case["verdict"]["allowed"].as_bool(), "{name}");
    let retry_after = case["retryAfterMs"].as_u64().map(Duration::from_millis);
    assert_eq!(verdict.retry_after(), retry_after, "{name}");
}

async fn expect_response(
    name: &str,
    expected: &Value,
    client: &Client,
    descriptors: Vec<Descriptor>,
) {
    let limit = RateLimit::new(client, "domain").failure_mode(FailureMode::Closed);
    let handler = service_fn(async |_: Request<Empty<Bytes>>| {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    });
    let service =
        ServiceBuilder::new().layer(limit.layer(move |_| descriptors.clone())).service(handler);
    let response = service.oneshot(Request::new(Empty::new())).await.unwrap();
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();

    let status = expected["status"].as_u64().unwrap();
    assert_eq!(head.status, StatusCode::from_u16(status.try_into().unwrap()).unwrap(), "{name}");
    for (header, value) in expected["headers"].as_object().unwrap() {
        let expected: Vec<&str> = value.as_str().into_iter().collect();
        assert_eq!(values(&head.headers, header), expected, "{name}: {header}");
    }
    if let Some(expected) = expected["body"].as_str() {
        let json = |text: &[u8]| serde_json::from_slice::<Value>(text).ok();
        match json(expected.as_bytes()) {
            Some(expected) => assert_eq!(json(&body), Some(expected), "{name}"),
            None => assert_eq!(body, expected, "{name}"),
        }
    }
}

fn values<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a str> {
    headers.get_all(name).iter().map(|value| value.to_str().unwrap()).collect()
}
