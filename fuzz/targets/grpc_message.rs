//! Random bytes as a gRPC message: a message that the scan finds within the bounds is within them after decoding.

#![no_main]

#[path = "../../server/src/grpc/decode.rs"]
mod decode;

use arbitrary::Arbitrary;
use decode::{ScanResult, scan};
use libfuzzer_sys::fuzz_target;
use prost::{Message as _, encoding::encode_varint};
use sluicegate_core::{RequestError, TooLarge};
use sluicegate_proto::envoy::service::ratelimit::v3::RateLimitRequest;

/// Messages up to here are not scanned.
const UNSCANNED_MAX: usize = 1024;

/// Fields of a message, one after the other.
#[derive(Arbitrary, Debug)]
struct Input<'a> {
    fields: Vec<Field<'a>>,
    fields_max: u16,
}

#[derive(Arbitrary, Debug)]
enum Field<'a> {
    Domain(&'a [u8]),
    /// The same descriptor several times.
    Descriptors { times: u16, entries: u8, key: &'a [u8] },
    /// The start or the end of a group.
    Group { number: u8, ends: bool },
    Other { number: u8, content: &'a [u8] },
    Raw(&'a [u8]),
}

impl Field<'_> {
    fn push_to(&self, message: &mut Vec<u8>) {
        match *self {
            Self::Domain(name) => push(message, 1, name),
            Self::Descriptors { times, entries, key } => {
                let (mut entry, mut descriptor) = (Vec::new(), Vec::new());
                push(&mut entry, 1, &key[..key.len().min(8)]);
                (0..entries % 80).for_each(|_| push(&mut descriptor, 1, &entry));
                (0..times % 300).for_each(|_| push(message, 2, &descriptor));
            }
            Self::Group { number, ends } => {
                encode_varint(u64::from(number) << 3 | 3 + u64::from(ends), message);
            }
            Self::Other { number, content } => push(message, number, content),
            Self::Raw(raw) => message.extend(raw),
        }
    }
}

fn push(message: &mut Vec<u8>, number: u8, content: &[u8]) {
    encode_varint(u64::from(number) << 3 | 2, message);
    encode_varint(content.len() as u64, message);
    message.extend(content);
}

fuzz_target!(|input: Input<'_>| {
    let mut message = Vec::new();
    input.fields.iter().take(8).for_each(|field| field.push_to(&mut message));
    let result = scan(&message, usize::MAX);
    let bounded = scan(&message, input.fields_max.into());
    assert!(bounded == ScanResult::ManyFields || bounded == result);
    assert_ne!(result, ScanResult::ManyFields);
    if message.len() <= UNSCANNED_MAX || result != ScanResult::Within {
        return;
    }
    let Ok(decoded) = RateLimitRequest::decode(message.as_slice()) else { return };
    let too_large = match decode::request(&decoded, usize::MAX) {
        Err(RequestError::TooLarge(bound)) => Some(bound),
        _ => None,
    };
    assert!(!matches!(too_large, Some(TooLarge::Descriptors | TooLarge::Entries)), "{too_large:?}");
});
