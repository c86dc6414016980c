//! The messages that the service receives.

use std::time::Duration;

use sluicegate_client::{Check, Descriptor, LimitOverride, Unit};
use sluicegate_proto::envoy::{
    extensions::common::ratelimit::v3::{
        RateLimitDescriptor,
        rate_limit_descriptor::{Entry, RateLimitOverride},
    },
    service::ratelimit::v3::{RateLimitRequest, rate_limit_response::Code},
};

use sluicegate_client_testkit::service::{Service, client_of, response_with_limit};

async fn sent(check: Check) -> RateLimitRequest {
    // A refusal, which does not show whether overrides were applied.
    let service = Service::new(response_with_limit(Code::OverLimit, 0));
    client_of(service.start().await).check(check).await.unwrap();
    let mut received = service.take_requests();
    assert_eq!(received.len(), 1);
    received.remove(0).1
}

fn entry(key: &'static str, value: &'static [u8]) -> Entry {
    Entry { key: key.into(), value: value.into() }
}

#[tokio::test]
async fn hits_and_entries_on_the_wire() {
    let check = Check::new("api")
        .descriptor([("tenant", "acme"), ("user", "bob")])
        .descriptor([("path", "")])
        .hits(3);
    let descriptor = |entries| RateLimitDescriptor { entries, ..RateLimitDescriptor::default() };
    assert_eq!(
        sent(check).await,
        RateLimitRequest {
            domain: "api".to_owned(),
            descriptors: vec![
                descriptor(vec![entry("tenant", b"acme"), entry("user", b"bob")]),
                descriptor(vec![entry("path", b"")]),
            ],
            hits_addend: 3,
        }
    );
}

#[tokio::test]
async fn descriptor_options_on_the_wire() {
    let pairs = || [("k", b"\xff\x00")];
    let entries = || vec![entry("k", b"\xff\x00")];
    let check = Check::new("api")
        .descriptor(Descriptor::from(pairs()).peek())
        .descriptor(Descriptor::from(pairs()).refund(5))
        .descriptor(
            Descriptor::from(pairs())
                .limit(LimitOverride::new(7, Unit::Week).unit_multiplier(2))
                .hits(u64::MAX),
        );
    let limit = RateLimitOverride { requests_per_unit: 7, unit: 7, unit_multiplier: Some(2) };
    assert_eq!(
        sent(check).await.descriptors,
        [
            RateLimitDescriptor {
                entries: entries(),
                hits_addend: Some(0),
                ..RateLimitDescriptor::default()
            },
            RateLimitDescriptor {
                entries: entries(),
                hits_addend: Some(5),
                is_negative_hits: true,
                ..RateLimitDescriptor::default()
            },
            RateLimitDescriptor {
                entries: entries(),
                limit: Some(limit),
                hits_addend: Some(u64::MAX),
                is_negative_hits: false,
            },
        ]
    );
}

#[tokio::test]
async fn peek_sets_zero_hits_on_each_descriptor() {
    let message = sent(Check::new("api").descriptor([("a", "1")]).peek()).await;
    assert_eq!((message.hits_addend, message.descriptors[0].hits_addend), (0, Some(0)));
}

#[tokio::test]
async fn deadline_is_sent_as_grpc_timeout() {
    let service = Service::new(response_with_limit(Code::Ok, 9));
    let client = client_of(service.start().await).with_deadline(Duration::from_secs(20));
    client.check(Check::new("api").descriptor([("a", "1")])).await.unwrap();
    assert_eq!(service.take_requests()[0].0.get("grpc-timeout").unwrap(), "20000000u");
}
