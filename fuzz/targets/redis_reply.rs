//! Random bytes as replies of Redis: within the bounds, and the same replies in whatever pieces they arrive.

#![no_main]

#[expect(dead_code, reason = "the server uses more of it")]
#[path = "../../server/store/src/redis/reply.rs"]
mod reply;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use reply::{Reply, ReplyBounds, ReplyReader};

/// The most levels of nested arrays in a reply.
const DEPTH_MAX: usize = 4;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    parts: Vec<Part<'a>>,
    piece: u8,
    bytes_max: u16,
    elements_max: u8,
}

#[derive(Arbitrary, Debug)]
enum Part<'a> {
    Integer(i64),
    Bulk(&'a [u8]),
    Length(u8, i64),
    Array(u8),
    Line(bool, &'a [u8]),
    Raw(&'a [u8]),
}

impl Part<'_> {
    fn push_to(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Integer(number) => bytes.extend(format!(":{number}\r\n").bytes()),
            Self::Bulk(text) => {
                bytes.extend(format!("${}\r\n", text.len()).bytes());
                bytes.extend([text, &b"\r\n"[..]].concat());
            }
            Self::Length(kind, length) => {
                let kind = if kind % 2 == 0 { '*' } else { '$' };
                bytes.extend(format!("{kind}{length}\r\n").bytes());
            }
            Self::Array(length) => bytes.extend(format!("*{}\r\n", length % 8).bytes()),
            Self::Line(is_error, text) => {
                bytes.push(if *is_error { b'-' } else { b'+' });
                bytes.extend([text, &b"\r\n"[..]].concat());
            }
            Self::Raw(raw) => bytes.extend(*raw),
        }
    }
}

fuzz_target!(|input: Input<'_>| {
    let mut bytes = Vec::new();
    input.parts.iter().for_each(|part| part.push_to(&mut bytes));
    let bounds =
        ReplyBounds { bytes: input.bytes_max.into(), elements: input.elements_max.into() };
    let (replies, fails) = read(&bytes, bytes.len().max(1), bounds);
    let (in_pieces, fails_in_pieces) = read(&bytes, usize::from(input.piece).max(1), bounds);
    let sent = bytes.escape_ascii();
    assert_eq!(replies, in_pieces, "{sent} within {bounds:?}");
    // The first byte of an incomplete line may already be an error.
    assert!(fails_in_pieces || !fails, "{sent} within {bounds:?}");
    for reply in &replies {
        let (texts, elements, depth) = extent(reply);
        assert!(texts <= 3 * bounds.bytes && elements <= bounds.elements && depth <= DEPTH_MAX);
    }
});

/// Parses bytes that arrive in pieces. Returns the replies, and whether an error follows.
fn read(bytes: &[u8], piece: usize, bounds: ReplyBounds) -> (Vec<Reply>, bool) {
    let (mut reader, mut replies) = (ReplyReader::default(), Vec::new());
    for piece in bytes.chunks(piece) {
        reader.input().extend_from_slice(piece);
        loop {
            match reader.next(bounds) {
                Ok(Some(reply)) => replies.push(reply),
                Ok(None) => break,
                Err(_) => return (replies, true),
            }
        }
    }
    (replies, false)
}

/// Bytes of texts, elements of arrays and levels of arrays. In an error, a byte that is not UTF-8 becomes three bytes.
fn extent(reply: &Reply) -> (usize, usize, usize) {
    match reply {
        Reply::Nil | Reply::Integer(_) => (0, 0, 0),
        Reply::Text(text) => (text.len(), 0, 0),
        Reply::Error(text) => (text.len(), 0, 0),
        Reply::Array(elements) => elements.iter().map(extent).fold(
            (0, elements.len(), 1),
            |(texts, count, depth), one| (texts + one.0, count + one.1, depth.max(one.2 + 1)),
        ),
    }
}
