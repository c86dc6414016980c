//! Converts a `RateLimitRequest` into a request, and finds out before decoding whether a message exceeds a bound.

use sluicegate_core::{
    Request, RequestError, TooLarge,
    limit::Unit,
    request::{DESCRIPTORS_MAX, Descriptor, ENTRIES_MAX, Entry, Hits, LimitOverride},
};
use sluicegate_proto::envoy::{
    extensions::common::ratelimit::v3::{
        RateLimitDescriptor, rate_limit_descriptor::RateLimitOverride,
    },
    service::ratelimit::v3::{RateLimitRequest, rate_limit_response::rate_limit},
};

/// The longest message that is decoded without a scan. It can exceed bounds by so little that the check after decoding
/// suffices.
const UNSCANNED_MAX: usize = 1024;

/// The request of a message, which borrows from it. `bytes_max` bounds the bytes of the domain, keys and values.
pub(crate) fn request(
    message: &RateLimitRequest,
    bytes_max: usize,
) -> Result<Request<'_>, RequestError> {
    let count_entries = |descriptor: &RateLimitDescriptor| descriptor.entries.len();
    let convert = |message_descriptor| descriptor(message_descriptor, message.hits_addend);
    Request::new(&message.domain, &message.descriptors, bytes_max, count_entries, convert)
}

/// The result of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScanResult {
    /// The message does not exceed the bounds on descriptors and entries, or cannot be decoded.
    Within,
    /// The message has more fields than the scan may read.
    ManyFields,
    /// The message exceeds a bound.
    TooLarge(TooLarge),
}

/// Checks the bounds on descriptors and entries in an encoded `RateLimitRequest`. Decoding it first would be expensive,
/// because the decoded message can be many times as large. Reads at most `fields_max` fields.
pub(super) fn scan(message: &[u8], fields_max: usize) -> ScanResult {
    if message.len() <= UNSCANNED_MAX {
        return ScanResult::Within;
    }
    let mut scanner = Scanner { fields_left: fields_max };
    match scanner.request(message) {
        Err(ScanError::TooLarge(bound)) => ScanResult::TooLarge(bound),
        Err(ScanError::ManyFields) => ScanResult::ManyFields,
        // Decoding fails at the same position.
        Ok(()) | Err(ScanError::Malformed) => ScanResult::Within,
    }
}

/// Field numbers, the same in all versions of the messages.
mod field {
    /// In a request.
    pub(super) const DESCRIPTORS: u64 = 2;
    /// In a descriptor.
    pub(super) const ENTRIES: u64 = 1;
}

/// Why a scan ends before the end of the message.
enum ScanError {
    TooLarge(TooLarge),
    ManyFields,
    Malformed,
}

/// Reads the fields of an encoded message.
struct Scanner {
    fields_left: usize,
}

impl Scanner {
    fn request(&mut self, message: &[u8]) -> Result<(), ScanError> {
        let mut descriptors = 0;
        self.fields(message, |scanner, number, content| {
            if number != field::DESCRIPTORS {
                return Ok(());
            }
            descriptors += 1;
            if descriptors > DESCRIPTORS_MAX {
                return Err(ScanError::TooLarge(TooLarge::Descriptors));
            }
            scanner.descriptor(content)
        })
    }

    fn descriptor(&mut self, message: &[u8]) -> Result<(), ScanError> {
        let mut entries = 0;
        self.fields(message, |scanner, number, content| {
            entries += usize::from(number == field::ENTRIES);
            if entries > ENTRIES_MAX {
                return Err(ScanError::TooLarge(TooLarge::Entries));
            }
            if number == field::ENTRIES {
                scanner.fields(content, |_, _, _| Ok(()))
            } else {
                Ok(())
            }
        })
    }

    /// Calls `visit` with number and content of each length-delimited field.
    fn fields<'m>(
        &mut self,
        mut message: &'m [u8],
        mut visit: impl FnMut(&mut Self, u64, &'m [u8]) -> Result<(), ScanError>,
    ) -> Result<(), ScanError> {
        while !message.is_empty() {
            self.fields_left = self.fields_left.checked_sub(1).ok_or(ScanError::ManyFields)?;
            let key = varint(&mut message)?;
            match key & 7 {
                0 => _ = varint(&mut message)?,
                1 => _ = split_off(&mut message, 8)?,
                2 => {
                    let length = varint(&mut message)?;
                    let content = split_off(&mut message, length)?;
                    visit(self, key >> 3, content)?;
                }
                // The fields of a group are visited like those around it.
                3 | 4 => {}
                5 => _ = split_off(&mut message, 4)?,
                _ => return Err(ScanError::Malformed),
            }
        }
        Ok(())
    }
}

/// Splits the first `length` bytes off a message.
fn split_off<'m>(message: &mut &'m [u8], length: u64) -> Result<&'m [u8], ScanError> {
    let length = usize::try_from(length).map_err(|_| ScanError::Malformed)?;
    let (first, rest) = message.split_at_checked(length).ok_or(ScanError::Malformed)?;
    *message = rest;
    Ok(first)
}

fn varint(message: &mut &[u8]) -> Result<u64, ScanError> {
    prost::encoding::decode_varint(message).map_err(|_| ScanError::Malformed)
}

fn descriptor(message: &RateLimitDescriptor, hits_addend: u32) -> Descriptor<'_> {
    // In the request, 0 means "not set". In a descriptor the field is optional, and 0 is a peek.
    let hits = message.hits_addend.unwrap_or_else(|| u64::from(hits_addend.max(1)));
    Descriptor {
        entries: message
            .entries
            .iter()
            .map(|entry| Entry { key: &entry.key, value: &entry.value })
            .collect(),
        hits: if message.is_negative_hits { Hits::Refund(hits) } else { Hits::Add(hits) },
        limit_override: message.limit.as_ref().map(limit_override),
    }
}

fn limit_override(message: &RateLimitOverride) -> LimitOverride {
    LimitOverride {
        requests_per_unit: message.requests_per_unit,
        unit: unit(message.unit),
        unit_multiplier: message.unit_multiplier,
    }
}

/// The unit with this number. `RateLimitUnit` has no WEEK. As envoyproxy/ratelimit, this accepts the number 7, which is
/// WEEK in the enum of responses.
fn unit(number: i32) -> Option<Unit> {
    use rate_limit::Unit as Wire;
    match Wire::try_from(number).ok()? {
        Wire::Unknown => None,
        Wire::Second => Some(Unit::Second),
        Wire::Minute => Some(Unit::Minute),
        Wire::Hour => Some(Unit::Hour),
        Wire::Day => Some(Unit::Day),
        Wire::Week => Some(Unit::Week),
        Wire::Month => Some(Unit::Month),
        Wire::Year => Some(Unit::Year),
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};
    use prost::Message as _;
    use sluicegate_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor;

    use super::*;

    /// A message whose descriptors have these numbers of entries, and values that make it long enough for a scan.
    fn message(entries: &[usize]) -> Vec<u8> {
        let value = vec![b'x'; UNSCANNED_MAX].into();
        let entry = rate_limit_descriptor::Entry { key: "k".into(), value };
        let descriptor = |count: &usize| RateLimitDescriptor {
            entries: vec![entry.clone(); *count],
            hits_addend: Some(7),
            ..RateLimitDescriptor::default()
        };
        let descriptors = entries.iter().map(descriptor).collect();
        RateLimitRequest { domain: "api".to_owned(), descriptors, hits_addend: 1 }.encode_to_vec()
    }

    #[test]
    fn a_scan_finds_exceeded_bounds() {
        let scan = |entries: &[usize]| scan(&message(entries), usize::MAX);
        assert_eq!(scan(&[1, 2, ENTRIES_MAX]), ScanResult::Within);
        assert_eq!(scan(&[1; DESCRIPTORS_MAX]), ScanResult::Within);
        assert_eq!(scan(&[1; DESCRIPTORS_MAX + 1]), ScanResult::TooLarge(TooLarge::Descriptors));
        assert_eq!(scan(&[1, ENTRIES_MAX + 1, 1]), ScanResult::TooLarge(TooLarge::Entries));
    }

    #[test]
    fn a_scan_stops_at_an_exceeded_bound() {
        let mut message = message(&[1; DESCRIPTORS_MAX + 1]);
        message.extend([0xff; 20]);
        assert_eq!(scan(&message, usize::MAX), ScanResult::TooLarge(TooLarge::Descriptors));
    }

    #[test]
    fn a_scan_reads_a_bounded_number_of_fields() {
        // In the request: domain, descriptor, hits. In the descriptor: two entries, hits. In each entry: key, value.
        let fields = 3 + 3 + 2 * 2;
        assert_eq!(scan(&message(&[2]), fields), ScanResult::Within);
        assert_eq!(scan(&message(&[2]), fields - 1), ScanResult::ManyFields);
        // Unknown fields, and descriptors in a group.
        let unknown = [0xf8, 0x7f, 1].repeat(1_000);
        assert_eq!(scan(&unknown, 999), ScanResult::ManyFields);
        let group =
            [&[0xf3, 0x7f][..], &[0x12, 0].repeat(DESCRIPTORS_MAX + 1), &[0; 1_000]].concat();
        assert_eq!(scan(&group, usize::MAX), ScanResult::TooLarge(TooLarge::Descriptors));
    }

    proptest! {
        /// For messages that can be decoded, a scan has the same result as the check after decoding.
        #[test]
        fn a_scan_agrees_with_decoding(entries in vec(0..70_usize, 0..8), cut in 0..200_usize) {
            let mut message = message(&entries);
            message.truncate(message.len() - cut.min(message.len()));
            let scanned = scan(&message, usize::MAX);
            let decoded = RateLimitRequest::decode(message.as_slice());
            if let Ok(decoded) = decoded {
                let request = request(&decoded, usize::MAX).map(|_| ());
                let too_large = matches!(request, Err(RequestError::TooLarge(_)));
                prop_assert_eq!(scanned != ScanResult::Within, too_large);
            }
        }
    }
}
