//! Reads a `RateLimitRequest`, borrowing from the message; before that, looks whether it is too large to be decoded.

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

/// The longest message that cannot be far beyond a bound: what is wrong with it is found out once it is decoded.
const UNSCANNED_MAX: usize = 1024;

/// The request that the message describes, with at most `bytes_max` bytes of domain, keys and values.
pub(crate) fn request(
    message: &RateLimitRequest,
    bytes_max: usize,
) -> Result<Request<'_>, RequestError> {
    let entries = |part: &RateLimitDescriptor| part.entries.len();
    let describe = |part| descriptor(part, message.hits_addend);
    Request::new(&message.domain, &message.descriptors, bytes_max, entries, describe)
}

/// What a look at an encoded message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scanned {
    /// It exceeds no bound of descriptors and entries, as far as it can be decoded at all.
    Within,
    /// It has more fields than were to be looked at.
    ManyFields,
    /// It exceeds a bound.
    TooLarge(TooLarge),
}

/// Looks for the bounds of an encoded `RateLimitRequest` without decoding it, because what is beyond them may be many
/// times as large once it is decoded. Looks at no more than `fields_max` fields.
pub(super) fn scan(message: &[u8], fields_max: usize) -> Scanned {
    if message.len() <= UNSCANNED_MAX {
        return Scanned::Within;
    }
    let mut scan = Scan { fields_left: fields_max };
    match scan.request(message) {
        Err(Stop::TooLarge(bound)) => Scanned::TooLarge(bound),
        Err(Stop::ManyFields) => Scanned::ManyFields,
        // Decoding stops at the same place.
        Ok(()) | Err(Stop::Malformed) => Scanned::Within,
    }
}

/// Numbers of fields, in every version of the messages.
mod field {
    /// In a request.
    pub(super) const DESCRIPTORS: u64 = 2;
    /// In a descriptor.
    pub(super) const ENTRIES: u64 = 1;
}

/// Why the rest of a message is not looked at.
enum Stop {
    TooLarge(TooLarge),
    ManyFields,
    Malformed,
}

/// A look at an encoded message.
struct Scan {
    fields_left: usize,
}

impl Scan {
    fn request(&mut self, message: &[u8]) -> Result<(), Stop> {
        let mut descriptors = 0;
        self.fields(message, |scan, number, content| {
            if number != field::DESCRIPTORS {
                return Ok(());
            }
            descriptors += 1;
            if descriptors > DESCRIPTORS_MAX {
                return Err(Stop::TooLarge(TooLarge::Descriptors));
            }
            scan.descriptor(content)
        })
    }

    fn descriptor(&mut self, message: &[u8]) -> Result<(), Stop> {
        let mut entries = 0;
        self.fields(message, |scan, number, content| {
            entries += usize::from(number == field::ENTRIES);
            if entries > ENTRIES_MAX {
                return Err(Stop::TooLarge(TooLarge::Entries));
            }
            if number == field::ENTRIES { scan.fields(content, |_, _, _| Ok(())) } else { Ok(()) }
        })
    }

    /// Visits the fields that have a length: number and content.
    fn fields<'m>(
        &mut self,
        mut message: &'m [u8],
        mut visit: impl FnMut(&mut Self, u64, &'m [u8]) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        while !message.is_empty() {
            self.fields_left = self.fields_left.checked_sub(1).ok_or(Stop::ManyFields)?;
            let key = varint(&mut message)?;
            match key & 7 {
                0 => _ = varint(&mut message)?,
                1 => _ = take(&mut message, 8)?,
                2 => {
                    let length = varint(&mut message)?;
                    let content = take(&mut message, length)?;
                    visit(self, key >> 3, content)?;
                }
                // The fields of a group are looked at as if they were not in one.
                3 | 4 => {}
                5 => _ = take(&mut message, 4)?,
                _ => return Err(Stop::Malformed),
            }
        }
        Ok(())
    }
}

fn take<'m>(message: &mut &'m [u8], length: u64) -> Result<&'m [u8], Stop> {
    let length = usize::try_from(length).map_err(|_| Stop::Malformed)?;
    let (taken, rest) = message.split_at_checked(length).ok_or(Stop::Malformed)?;
    *message = rest;
    Ok(taken)
}

fn varint(message: &mut &[u8]) -> Result<u64, Stop> {
    prost::encoding::decode_varint(message).map_err(|_| Stop::Malformed)
}

fn descriptor(message: &RateLimitDescriptor, hits_addend: u32) -> Descriptor<'_> {
    // Zero on the request means "not set"; on a descriptor it is there or not, and zero is a peek.
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

/// The unit of that number. `RateLimitUnit` lacks WEEK, which has the number 7 in the response's enum;
/// envoyproxy/ratelimit takes it from the wire all the same.
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

    /// A message of descriptors with so many entries, with a value that makes it long enough to be looked at.
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
    fn bounds_are_found_without_decoding() {
        let scan = |entries: &[usize]| scan(&message(entries), usize::MAX);
        assert_eq!(scan(&[1, 2, ENTRIES_MAX]), Scanned::Within);
        assert_eq!(scan(&[1; DESCRIPTORS_MAX]), Scanned::Within);
        assert_eq!(scan(&[1; DESCRIPTORS_MAX + 1]), Scanned::TooLarge(TooLarge::Descriptors));
        assert_eq!(scan(&[1, ENTRIES_MAX + 1, 1]), Scanned::TooLarge(TooLarge::Entries));
    }

    #[test]
    fn what_follows_a_bound_is_not_looked_at() {
        let mut message = message(&[1; DESCRIPTORS_MAX + 1]);
        message.extend([0xff; 20]);
        assert_eq!(scan(&message, usize::MAX), Scanned::TooLarge(TooLarge::Descriptors));
    }

    #[test]
    fn no_more_fields_are_looked_at_than_asked_for() {
        // Of the request domain, descriptor and hits; of that two entries and hits; of each entry two.
        let fields = 3 + 3 + 2 * 2;
        assert_eq!(scan(&message(&[2]), fields), Scanned::Within);
        assert_eq!(scan(&message(&[2]), fields - 1), Scanned::ManyFields);
        // Fields that no version has, and descriptors in a group.
        let unknown = [0xf8, 0x7f, 1].repeat(1_000);
        assert_eq!(scan(&unknown, 999), Scanned::ManyFields);
        let group =
            [&[0xf3, 0x7f][..], &[0x12, 0].repeat(DESCRIPTORS_MAX + 1), &[0; 1_000]].concat();
        assert_eq!(scan(&group, usize::MAX), Scanned::TooLarge(TooLarge::Descriptors));
    }

    proptest! {
        /// Whatever can be decoded is judged as it is after decoding.
        #[test]
        fn scanning_finds_what_decoding_finds(entries in vec(0..70_usize, 0..8), cut in 0..200_usize) {
            let mut message = message(&entries);
            message.truncate(message.len() - cut.min(message.len()));
            let scanned = scan(&message, usize::MAX);
            let decoded = RateLimitRequest::decode(message.as_slice());
            if let Ok(decoded) = decoded {
                let request = request(&decoded, usize::MAX).map(|_| ());
                let too_large = matches!(request, Err(RequestError::TooLarge(_)));
                prop_assert_eq!(scanned != Scanned::Within, too_large);
            }
        }
    }
}
