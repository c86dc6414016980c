//! Envoy's own messages, taken from its binary, pass through the generated types unchanged.

use std::fs;

use bytes::Bytes;
use prost::Message;
use sluicegate_proto::{
    FILE_DESCRIPTOR_SET, TEXT_FILE_DESCRIPTOR_SET,
    envoy::{
        config::core::v3::HeaderValue,
        extensions::common::ratelimit::v3::{
            RateLimitDescriptor,
            rate_limit_descriptor::{Entry, RateLimitOverride},
        },
        service::ratelimit::v3::{
            RateLimitRequest, RateLimitResponse,
            rate_limit_response::{DescriptorStatus, Quota, RateLimit},
        },
    },
};

use sluicegate_tests::tools::{envoy, python, succeed};

#[test]
fn envoys_own_messages_survive_our_types() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    succeed(python("wire.py").arg("write").arg(envoy()).arg(path));

    fs::create_dir(path.join("returned")).unwrap();
    for file in fs::read_dir(path.join("sent")).unwrap() {
        let file = file.unwrap();
        let name = file.file_name().into_string().unwrap();
        let sent = fs::read(file.path()).unwrap();
        let returned = decode_and_encode(&name, sent.into());
        fs::write(path.join("returned").join(name), returned).unwrap();
    }
    fs::write(path.join("wire.binpb"), FILE_DESCRIPTOR_SET).unwrap();
    fs::write(path.join("text.binpb"), TEXT_FILE_DESCRIPTOR_SET).unwrap();

    succeed(python("wire.py").arg("verify").arg(envoy()).arg(path));
}

#[test]
fn an_entry_that_is_not_utf_8_survives() {
    let entry = Entry { key: Bytes::from_static(b"path"), value: Bytes::from_static(b"/\xff") };
    let encoded = b"\x0a\x04path\x12\x02/\xff";
    assert_eq!(entry.encode_to_vec(), encoded);
    assert_eq!(Entry::decode(&encoded[..]).unwrap(), entry);
}

/// `file` is `<full name of the message>.<number>.bin`.
fn decode_and_encode(file: &str, bytes: Bytes) -> Vec<u8> {
    fn through<M: Message + Default>(bytes: Bytes) -> Vec<u8> {
        M::decode(bytes).unwrap().encode_to_vec()
    }

    let name = file.rsplitn(3, '.').last().unwrap();
    match name.strip_prefix("envoy.").unwrap() {
        "config.core.v3.HeaderValue" => through::<HeaderValue>(bytes),
        "extensions.common.ratelimit.v3.RateLimitDescriptor" => {
            through::<RateLimitDescriptor>(bytes)
        }
        "extensions.common.ratelimit.v3.RateLimitDescriptor.Entry" => through::<Entry>(bytes),
        "extensions.common.ratelimit.v3.RateLimitDescriptor.RateLimitOverride" => {
            through::<RateLimitOverride>(bytes)
        }
        "service.ratelimit.v3.RateLimitRequest" => through::<RateLimitRequest>(bytes),
        "service.ratelimit.v3.RateLimitResponse" => through::<RateLimitResponse>(bytes),
        "service.ratelimit.v3.RateLimitResponse.DescriptorStatus" => {
            through::<DescriptorStatus>(bytes)
        }
        "service.ratelimit.v3.RateLimitResponse.Quota" => through::<Quota>(bytes),
        "service.ratelimit.v3.RateLimitResponse.RateLimit" => through::<RateLimit>(bytes),
        _ => panic!("{name} is new in Envoy"),
    }
}
