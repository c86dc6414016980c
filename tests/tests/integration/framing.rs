//! gRPC framing of a message in an HTTP/2 stream.

use bytes::Bytes;
use prost::Message;
use sluicegate_proto::envoy::service::ratelimit::v3::{
    RateLimitResponse, rate_limit_response::Code,
};
use sluicegate_tests::{Caller, Sluicegate, framed, hit};

const LIMITS: &str = "
domain: api
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 1000000}
";

#[tokio::test]
async fn a_message_in_several_frames_is_decided() {
    let server = Sluicegate::start(LIMITS, &[]).await;
    let caller = Caller::connect(&server.grpc).await;
    let message = framed(&hit("user", "bob"));
    for size in [1, 3, 5, 6, message.len() - 1, message.len()] {
        let pieces = message.chunks(size).map(Bytes::copy_from_slice);
        let (status, body) = caller.begin().await.unwrap().send(pieces, true).await.unwrap();
        assert_eq!(status, "0", "{size}");
        let answer = RateLimitResponse::decode(&body[5..]).unwrap();
        assert_eq!(answer.overall_code(), Code::Ok, "{size}");
    }
}

#[tokio::test]
async fn calls_without_exactly_one_plain_message_get_its_status() {
    let server = Sluicegate::start(LIMITS, &["--grpc-max-message-bytes", "1000"]).await;
    let caller = Caller::connect(&server.grpc).await;
    let message = framed(&hit("user", "bob"));
    let (internal, unimplemented) = ("13", "12");
    let plain: &[(&str, &str)] = &[];
    let encoded: &[(&str, &str)] = &[("grpc-encoding", "gzip")];
    let identity: &[(&str, &str)] = &[("grpc-encoding", "identity")];
    let compressed = [&[1][..], &message[1..]].concat();
    let cases: [(&str, _, Vec<u8>, bool, &str); 10] = [
        ("nothing", plain, vec![], true, internal),
        ("half a prefix", plain, vec![0, 0, 0], true, internal),
        ("half a message", plain, message[..message.len() - 1].to_vec(), true, internal),
        ("a message and a half", plain, [&message[..], &[0, 0]].concat(), true, internal),
        ("a message and another", plain, [&message[..], &message].concat(), true, unimplemented),
        ("no message of ours", plain, vec![0, 0, 0, 0, 2, 0xff, 0xff], true, internal),
        ("a flag without an encoding", plain, compressed, true, internal),
        ("an encoding", encoded, message.to_vec(), true, unimplemented),
        ("no encoding, in words", identity, message.to_vec(), true, "0"),
        ("the beginning of too much", plain, vec![0, 0, 0, 3, 0xe9, 10], false, "0"),
    ];
    for (what, headers, bytes, end, expected) in cases {
        let call = caller.begin_with(headers).await.unwrap();
        let (status, _body) = call.send([Bytes::from(bytes)], end).await.unwrap();
        assert_eq!(status, expected, "{what}");
    }
    let call = caller.begin().await.unwrap();
    assert_eq!(call.ask(&hit("user", "bob")).await.unwrap().overall_code(), Code::Ok);
}

#[tokio::test]
async fn a_call_without_a_message_ends_at_the_callers_deadline() {
    let server = Sluicegate::start(LIMITS, &[]).await;
    let caller = Caller::connect(&server.grpc).await;
    let call = caller.begin_with(&[("grpc-timeout", "50m")]).await.unwrap();
    let cancelled = "1";
    assert_eq!(call.send([], false).await.unwrap().0, cancelled);
    assert_eq!(server.metric("sluicegate_requests_in_flight").await, 0.0);
}

#[tokio::test]
async fn calls_of_one_connection_do_not_wait_for_each_other() {
    let server = Sluicegate::start(LIMITS, &[]).await;
    let caller = Caller::connect(&server.grpc).await;
    let slow = caller.begin().await.unwrap();
    for _ in 0..100 {
        let call = caller.begin().await.unwrap();
        assert_eq!(call.ask(&hit("user", "bob")).await.unwrap().overall_code(), Code::Ok);
    }
    assert_eq!(slow.ask(&hit("user", "bob")).await.unwrap().overall_code(), Code::Ok);
}
