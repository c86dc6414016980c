//! What the service gets to see.

use std::time::Duration;

use sluicegate_client::{Check, Descriptor, LimitOverride, Unit};
use sluicegate_proto::envoy::{
    extensions::common::ratelimit::v3::{
        RateLimitDescriptor,
        rate_limit_descriptor::{Entry, RateLimitOverride},
    },
    service::ratelimit::v3::{RateLimitRequest, rate_limit_response::Code},
};

use sluicegate_client_testkit::service::{Service, limited, patient};

async fn seen(check: Check) -> RateLimitRequest {
    let service = Service::new(limited(Code::Ok, 9));
    patient(service.start().await).check(check).await.unwrap();
    let mut asked = service.asked();
    assert_eq!(asked.len(), 1);
    asked.remove(0).1
}

fn entry(key: &'static str, value: &'static [u8]) -> Entry {
    Entry { key: key.into(), value: value.into() }
}

#[tokio::test]
async fn a_plain_question() {
    let check = Check::new("api")
        .descriptor([("tenant", "acme"), ("user", "bob")])
        .descriptor([("path", "")])
        .hits(3);
    let descriptor = |entries| RateLimitDescriptor { entries, ..RateLimitDescriptor::default() };
    assert_eq!(
        seen(check).await,
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
async fn everything_a_descriptor_can_say() {
    let pairs = || [("k", b"\xff\x00")];
    let entries = || vec![entry("k", b"\xff\x00")];
    let check = Check::new("api")
        .descriptor(Descriptor::from(pairs()).peek())
        .descriptor(Descriptor::from(pairs()).give_back(5))
        .descriptor(
            Descriptor::from(pairs())
                .limit(LimitOverride::new(7, Unit::Week).unit_multiplier(2))
                .hits(u64::MAX),
        );
    let limit = RateLimitOverride { requests_per_unit: 7, unit: 7, unit_multiplier: Some(2) };
    assert_eq!(
        seen(check).await.descriptors,
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
async fn a_peek_at_all_is_a_zero_on_each() {
    let message = seen(Check::new("api").descriptor([("a", "1")]).peek()).await;
    assert_eq!((message.hits_addend, message.descriptors[0].hits_addend), (0, Some(0)));
}

#[tokio::test]
async fn the_service_is_told_the_deadline() {
    let service = Service::new(limited(Code::Ok, 9));
    let client = patient(service.start().await).with_deadline(Duration::from_secs(20));
    client.check(Check::new("api").descriptor([("a", "1")])).await.unwrap();
    assert_eq!(service.asked()[0].0.get("grpc-timeout").unwrap(), "20000000u");
}
