//! Requests of callers and their answers: a decision, or an error that describes the mistake.

use std::time::Duration;

use serde_json::{Value, json};
use sluicegate_proto::envoy::{
    extensions::common::ratelimit::v3::{
        RateLimitDescriptor,
        rate_limit_descriptor::{Entry, RateLimitOverride},
    },
    service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse, rate_limit_response::Code,
        rate_limit_response::rate_limit::Unit,
    },
};
use sluicegate_tests::Sluicegate;
use tonic::Code as GrpcCode;

const LIMITS: &str = "
domain: api
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 3}
  - key: bucket
    rate_limit: {algorithm: token_bucket, unit: hour, requests_per_unit: 60, burst: 100}
  - key: both
    limits:
      - {name: burst, unit: hour, requests_per_unit: 2, algorithm: token_bucket}
      - {name: sustained, unit: day, requests_per_unit: 100}
  - key: open
    rate_limit: {unlimited: true}
  - key: shadow
    shadow_mode: true
    rate_limit: {unit: day, requests_per_unit: 1}
  - key: quarter
    rate_limit: {unit: minute, unit_multiplier: 15, requests_per_unit: 5}
  - key: odd
    rate_limit: {window: 90s, requests_per_unit: 5}
  - key: closed
    rate_limit: {unit: day, requests_per_unit: 0}
";

fn descriptor(key: &str, value: impl Into<Vec<u8>>) -> RateLimitDescriptor {
    let entry = Entry { key: key.to_owned().into(), value: value.into().into() };
    RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() }
}

fn request(descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest { domain: "api".to_owned(), descriptors, hits_addend: 0 }
}

async fn ask(server: &Sluicegate, request: RateLimitRequest) -> RateLimitResponse {
    server.should_rate_limit(request).await.unwrap()
}

fn codes(response: &RateLimitResponse) -> Vec<Code> {
    response.statuses.iter().map(sluicegate_proto_code).collect()
}

fn sluicegate_proto_code(
    status: &sluicegate_proto::envoy::service::ratelimit::v3::rate_limit_response::DescriptorStatus,
) -> Code {
    status.code()
}

#[tokio::test]
async fn requests_without_domain_or_descriptors_are_invalid() {
    let server = Sluicegate::start(LIMITS, &[]).await;
    let domainless =
        RateLimitRequest { domain: String::new(), ..request(vec![descriptor("user", "a")]) };
    let cases = [
        (domainless, "domain must not be empty"),
        (request(vec![]), "descriptors must not be empty"),
    ];
    for (request, text) in cases {
        let json = to_json(&request);
        let error = server.should_rate_limit(request).await.unwrap_err();
        assert_eq!(error.code(), GrpcCode::InvalidArgument);
        assert!(error.message().contains(text), "{error:?}");
        let (status, body) = server.json(&json.to_string()).await;
        assert_eq!(status, 400);
        assert!(body.contains(text), "{body}");
    }
    assert_eq!(server.metric("sluicegate_requests_invalid_total").await, 4.0);
    ask(&server, request(vec![descriptor("user", "alive")])).await;
}

/// End users can make a request too large, and an error would let it pass.
#[tokio::test]
async fn too_many_descriptors_or_entries_are_over_limit() {
    let server = Sluicegate::start(LIMITS, &[]).await;
    let with_entries = |entries| {
        let mut one = descriptor("user", "a");
        one.entries = vec![one.entries[0].clone(); entries];
        one
    };
    // So many that the message is not decoded, and so few that it is.
    let cases = [
        (request(vec![descriptor("user", "a"); 10_000]), "descriptors", 0),
        (request(vec![RateLimitDescriptor::default(); 257]), "descriptors", 0),
        (request(vec![descriptor("user", "a"), with_entries(10_000)]), "entries", 0),
        (request(vec![descriptor("user", "a"), with_entries(65)]), "entries", 2),
    ];
    for (request, bound, statuses) in cases {
        let json = to_json(&request);
        let metric = format!("sluicegate_requests_over_bound_total{{bound=\"{bound}\"}}");
        let before = server.metric(&metric).await;
        let denied = ask(&server, request).await;
        assert_eq!(denied.overall_code(), Code::OverLimit);
        assert_eq!(codes(&denied), vec![Code::OverLimit; statuses]);
        let (status, body) = server.json(&json.to_string()).await;
        assert_eq!((status, &*body), (429, "{\"overallCode\":\"OVER_LIMIT\"}\n"));
        assert_eq!(server.metric(&metric).await - before, 2.0);
    }
    ask(&server, request(vec![descriptor("user", "alive")])).await;
}

fn to_json(request: &RateLimitRequest) -> Value {
    let text = |bytes: &bytes::Bytes| String::from_utf8(bytes.to_vec()).unwrap();
    let descriptors: Vec<_> = request
        .descriptors
        .iter()
        .map(|descriptor| {
            let entries: Vec<_> = descriptor
                .entries
                .iter()
                .map(|entry| json!({"key": text(&entry.key), "value": text(&entry.value)}))
                .collect();
            json!({ "entries": entries })
        })
        .collect();
    json!({"domain": request.domain, "descriptors": descriptors})
}

#[tokio::test]
async fn a_message_beyond_the_bound_is_over_limit() {
    let server = Sluicegate::start(LIMITS, &[]).await;
    let large = request(vec![descriptor("user", vec![b'x'; 5 << 20])]);
    let answer = server.should_rate_limit(large).await.unwrap();
    assert_eq!((answer.overall_code(), answer.statuses), (Code::OverLimit, vec![]));
    ask(&server, request(vec![descriptor("user", "alive")])).await;
}

#[tokio::test]
async fn huge_hits_are_refused_and_charge_nothing() {
    let server = Sluicegate::start(LIMITS, &[]).await;
    for hits in [u64::from(u32::MAX), u64::MAX] {
        for key in ["user", "bucket", "both"] {
            let huge = RateLimitDescriptor { hits_addend: Some(hits), ..descriptor(key, "h") };
            let response = ask(&server, request(vec![huge])).await;
            assert_eq!(response.overall_code(), Code::OverLimit);
            assert_eq!(response.statuses[0].duration_until_reset, None, "no waiting helps");
        }
    }
    let whole =
        RateLimitRequest { hits_addend: u32::MAX, ..request(vec![descriptor("user", "h")]) };
    assert_eq!(ask(&server, whole).await.overall_code(), Code::OverLimit);
    let peek = RateLimitDescriptor { hits_addend: Some(0), ..descriptor("user", "h") };
    assert_eq!(ask(&server, request(vec![peek])).await.statuses[0].limit_remaining, 3);
}

#[tokio::test]
async fn an_override_without_a_unit_is_ignored() {
    let server = Sluicegate::start(LIMITS, &[]).await;
    let overridden = |unit: i32, unit_multiplier| {
        let limit = RateLimitOverride { requests_per_unit: 1_000, unit, unit_multiplier };
        RateLimitDescriptor { limit: Some(limit), ..descriptor("user", "o") }
    };
    let broken = [(0, None), (99, None), (1, Some(0)), (6, Some(1_000_000))];
    for (unit, multiplier) in broken {
        let response = ask(&server, request(vec![overridden(unit, multiplier)])).await;
        let limit = response.statuses[0].current_limit.clone().unwrap();
        assert_eq!((limit.requests_per_unit, limit.unit()), (3, Unit::Day));
    }
    assert_eq!(server.metric("sluicegate_overrides_ignored_total").await, 4.0);
    let response = ask(&server, request(vec![overridden(7, None)])).await;
    let limit = response.statuses[0].current_limit.clone().unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit()), (1_000, Unit::Week));
}

#[tokio::test]
async fn binary_entries_get_a_decision() {
    let server = Sluicegate::start(LIMITS, &[]).await;
    for _ in 0..3 {
        let response = ask(&server, request(vec![descriptor("user", vec![0xff, b'{'])])).await;
        assert_eq!(response.overall_code(), Code::Ok);
    }
    let refused = ask(&server, request(vec![descriptor("user", vec![0xff, b'{'])])).await;
    assert_eq!(refused.overall_code(), Code::OverLimit);
}

#[tokio::test]
async fn invalid_json_requests_are_400() {
    let server = Sluicegate::start(LIMITS, &[]).await;
    let bodies: [&[u8]; 6] = [
        b"",
        b"}",
        b"{\"domain\": \"api\", \"descriptor\": []}",
        b"{\"domain\": 7}",
        b"{\"domain\": \"api\xff\"}",
        b"{\"domain\": \"api\", \"descriptors\": [{\"entries\": [{\"key\": \"user\", \"value\": \"\xff\"}]}]}",
    ];
    for body in bodies {
        let (status, text) = server.json_bytes(body.to_vec()).await;
        assert_eq!(status, 400, "{text}");
        assert!(text.starts_with("not a RateLimitRequest: "), "{text}");
    }
    ask(&server, request(vec![descriptor("user", "alive")])).await;
}

#[tokio::test]
async fn json_answers_as_grpc_does() {
    let server = Sluicegate::start(LIMITS, &[]).await;
    let body =
        json!({"domain": "api", "descriptors": [{"entries": [{"key": "user", "value": "j"}]}]});
    for remaining in [2, 1, 0] {
        let (status, text) = server.json(&body.to_string()).await;
        assert_eq!(status, 200);
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(answer["overallCode"], "OK");
        let left = answer["statuses"][0]["limitRemaining"].as_u64().unwrap_or(0);
        assert_eq!(left, remaining);
    }
    let (status, text) = server.json(&body.to_string()).await;
    assert_eq!(status, 429);
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["statuses"][0]["code"], "OVER_LIMIT");
    assert_eq!(answer["statuses"][0]["currentLimit"], json!({"requestsPerUnit": 3, "unit": "DAY"}));
}

#[tokio::test]
async fn a_bucket_of_100_refuses_request_101_for_a_minute() {
    let server = Sluicegate::start(LIMITS, &[]).await;
    let one = || request(vec![descriptor("bucket", "b")]);
    for _ in 0..100 {
        assert_eq!(ask(&server, one()).await.overall_code(), Code::Ok);
    }
    let refused = ask(&server, one()).await;
    assert_eq!(refused.overall_code(), Code::OverLimit);
    let wait = refused.statuses[0].duration_until_reset.unwrap().seconds;
    // The hundred requests took a part of the minute. Tests with a manual clock check the exact time.
    assert!((1..=60).contains(&wait), "{wait}");
}

#[tokio::test]
async fn several_limits_share_one_status_and_are_decided_together() {
    let server = Sluicegate::start(LIMITS, &[]).await;
    let both = || request(vec![descriptor("both", "x")]);
    let names: Vec<_> = [(), (), ()]
        .map(|()| both())
        .into_iter()
        .map(|request| async { ask(&server, request).await.statuses[0].clone() })
        .collect();
    let mut seen = Vec::new();
    for status in names {
        let status = status.await;
        let limit = status.current_limit.clone().unwrap();
        seen.push((status.code(), limit.name, status.limit_remaining));
    }
    assert_eq!(
        seen,
        [
            (Code::Ok, "burst".to_owned(), 1),
            (Code::Ok, "burst".to_owned(), 0),
            (Code::OverLimit, "burst".to_owned(), 0),
        ]
    );
}

#[tokio::test]
async fn limits_are_shown_as_configured() {
    let server = Sluicegate::start(LIMITS, &[]).await;
    let asked = request(vec![
        descriptor("quarter", "x"),
        descriptor("odd", "x"),
        descriptor("open", "x"),
        descriptor("nothing", "x"),
        descriptor("shadow", "x"),
    ]);
    let response = ask(&server, asked.clone()).await;
    let shown = |position: usize| {
        let limit = response.statuses[position].current_limit.clone()?;
        Some((limit.requests_per_unit, limit.unit(), limit.unit_multiplier))
    };
    assert_eq!(shown(0), Some((5, Unit::Minute, Some(15))));
    assert_eq!(shown(1), Some((5, Unit::Second, Some(90))));
    assert_eq!((shown(2), response.statuses[2].limit_remaining), (None, u32::MAX));
    assert_eq!((shown(3), response.statuses[3].limit_remaining), (None, 0));
    let again = ask(&server, asked).await;
    assert_eq!((again.overall_code(), codes(&again)[4]), (Code::Ok, Code::Ok));
    assert_eq!(again.statuses[4].limit_remaining, 0);
    let shadowed = "sluicegate_decisions_total{code=\"shadowed\",domain=\"api\",rule=\"shadow\",source=\"store\"}";
    assert_eq!(server.metric(shadowed).await, 1.0);
}

#[tokio::test]
async fn a_refused_request_charges_nothing_and_shows_remaining() {
    let server = Sluicegate::start(LIMITS, &[]).await;
    for _ in 0..5 {
        let response =
            ask(&server, request(vec![descriptor("user", "r"), descriptor("closed", "r")])).await;
        assert_eq!(response.overall_code(), Code::OverLimit);
        assert_eq!(codes(&response), [Code::Ok, Code::OverLimit]);
        assert_eq!(response.statuses[0].limit_remaining, 3);
    }
}

#[tokio::test]
async fn refunded_hits_can_be_used_again_and_give_no_credit() {
    let server = Sluicegate::start(LIMITS, &[]).await;
    let hits = |hits, is_negative_hits| {
        let one = RateLimitDescriptor {
            hits_addend: Some(hits),
            is_negative_hits,
            ..descriptor("user", "g")
        };
        request(vec![one])
    };
    let remaining = |response: &RateLimitResponse| response.statuses[0].limit_remaining;
    assert_eq!(remaining(&ask(&server, hits(5, true)).await), 3);
    assert_eq!(remaining(&ask(&server, hits(3, false)).await), 0);
    assert_eq!(remaining(&ask(&server, hits(2, true)).await), 2);
    assert_eq!(remaining(&ask(&server, hits(9, true)).await), 3);
}

#[tokio::test]
async fn many_connections_admit_exactly_the_limit() {
    let limits = "
domain: api
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 500}
";
    let server = Sluicegate::start(limits, &[]).await;
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let mut client = server.connect().await;
        callers.spawn(async move {
            let mut admitted = 0;
            for _ in 0..100 {
                let one = request(vec![descriptor("user", "hot")]);
                let response = client.should_rate_limit(one).await.unwrap().into_inner();
                admitted += usize::from(response.overall_code() == Code::Ok);
            }
            admitted
        });
    }
    let admitted: usize = callers.join_all().await.into_iter().sum();
    assert_eq!(admitted, 500);
    tokio::time::timeout(Duration::from_secs(30), server.stop()).await.unwrap();
}
