//! Replies of Redis (RESP2), read within bounds.
//!
//! A reply is checked against its [`ReplyBounds`] before memory is allocated for it, and is read without recursion, so
//! that a hostile server can exhaust neither memory nor stack.

use bytes::{Buf as _, BytesMut};
use smallvec::SmallVec;
use thiserror::Error;

/// The deepest nesting of arrays. The replies in use have three levels at most.
const DEPTH_MAX: usize = 4;

/// Bytes of a line with a number, without its end: a sign and the 19 digits of the largest integer.
const NUMBER_MAX: usize = 20;

/// Bytes of a line with text, without its end: statuses, and errors of scripts.
const LINE_MAX: usize = 64 * 1024;

/// Elements of an array for which memory is allocated before they arrive.
const RESERVED_MAX: usize = 1024;

/// Bytes of an error's text that are kept.
const ERROR_TEXT_MAX: usize = 256;

/// Free bytes of the buffer before each read.
const READ_BYTES: usize = 16 * 1024;

/// A reply of Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// No value.
    Nil,
    /// A number.
    Integer(i64),
    /// A simple or bulk string.
    Text(Vec<u8>),
    /// An error. The first word of its text is its code.
    Error(String),
    /// Several replies.
    Array(Vec<Self>),
}

impl Reply {
    /// The text; `None` for other replies, and if it is not UTF-8.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) => std::str::from_utf8(text).ok(),
            _ => None,
        }
    }

    /// The number; `None` for other replies.
    #[must_use]
    pub const fn as_integer(&self) -> Option<i64> {
        match self {
            Self::Integer(number) => Some(*number),
            _ => None,
        }
    }

    /// The elements of an array; none for other replies.
    #[must_use]
    pub fn elements(&self) -> &[Self] {
        match self {
            Self::Array(elements) => elements,
            _ => &[],
        }
    }
}

/// The largest reply that a command may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReplyBounds {
    /// Bytes on the wire.
    pub(super) bytes: usize,
    /// Elements of all its arrays together.
    pub(super) elements: usize,
}

impl ReplyBounds {
    /// For all commands but script calls. `CLUSTER NODES` of 1,000 nodes takes a fifth of it.
    pub(super) const LIST: Self = Self { bytes: 4 << 20, elements: 64 * 1024 };

    /// For an array of `count` integers, or an error.
    pub(super) const fn integers(count: usize) -> Self {
        // The type, the number, and the end of the line.
        const ELEMENT_BYTES: usize = NUMBER_MAX + 3;
        const ERROR_BYTES: usize = 4096;
        Self { bytes: ERROR_BYTES + count * ELEMENT_BYTES, elements: count }
    }
}

/// Why the bytes of a server are not a valid reply.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(super) enum ReplyError {
    #[error("a reply nested more than {DEPTH_MAX} levels deep")]
    Depth,
    #[error("a reply of more than {0} elements")]
    Elements(usize),
    #[error("a reply of more than {0} bytes")]
    Bytes(usize),
    #[error("bytes that are no RESP2 reply")]
    Malformed,
    #[error("a reply that no command asked for")]
    Unsolicited,
}

/// An array whose last elements have not arrived.
#[derive(Debug)]
struct OpenArray {
    elements: Vec<Reply>,
    missing: usize,
}

/// Parses replies from the bytes that have arrived.
#[derive(Debug, Default)]
pub(super) struct ReplyReader {
    input: BytesMut,
    open: SmallVec<[OpenArray; DEPTH_MAX]>,
    /// Bytes and elements of the present reply so far.
    bytes: usize,
    elements: usize,
}

impl ReplyReader {
    /// The buffer to read into.
    pub(super) fn input(&mut self) -> &mut BytesMut {
        if self.input.is_empty() && self.input.capacity() > 4 * READ_BYTES {
            // A large reply has grown it.
            self.input = BytesMut::new();
        }
        self.input.reserve(READ_BYTES);
        &mut self.input
    }

    /// Whether all bytes that have arrived were parsed.
    pub(super) fn is_empty(&self) -> bool {
        self.input.is_empty()
    }

    /// The next reply, if all of it has arrived.
    ///
    /// # Errors
    /// The reply is malformed or beyond a bound. The reader cannot be used any more.
    pub(super) fn next(&mut self, bounds: ReplyBounds) -> Result<Option<Reply>, ReplyError> {
        let mut at = 0;
        let read = self.read(&mut at, bounds);
        self.input.advance(at);
        if read == Ok(None) && self.bytes + self.input.len() > bounds.bytes {
            return Err(ReplyError::Bytes(bounds.bytes));
        }
        read
    }

    /// Parses from a position of the input on, and advances it.
    fn read(&mut self, at: &mut usize, bounds: ReplyBounds) -> Result<Option<Reply>, ReplyError> {
        loop {
            let rest = self.input.get(*at..).unwrap_or_default();
            let available = bounds.bytes.saturating_sub(self.bytes);
            let Some((token, length)) = parse_token(rest, available, bounds)? else {
                return Ok(None);
            };
            *at += length;
            self.bytes += length;
            if self.bytes > bounds.bytes {
                return Err(ReplyError::Bytes(bounds.bytes));
            }
            let mut whole = match token {
                Token::Whole(reply) => reply,
                Token::Array(length) => {
                    self.elements = self.elements.saturating_add(length);
                    if self.elements > bounds.elements {
                        return Err(ReplyError::Elements(bounds.elements));
                    }
                    if self.open.len() == DEPTH_MAX {
                        return Err(ReplyError::Depth);
                    }
                    let elements = Vec::with_capacity(length.min(RESERVED_MAX));
                    if length > 0 {
                        self.open.push(OpenArray { elements, missing: length });
                        continue;
                    }
                    Reply::Array(elements)
                }
            };
            loop {
                let Some(array) = self.open.last_mut() else {
                    (self.bytes, self.elements) = (0, 0);
                    return Ok(Some(whole));
                };
                array.elements.push(whole);
                array.missing -= 1;
                if array.missing > 0 {
                    break;
                }
                whole = Reply::Array(self.open.pop().map_or_else(Vec::new, |it| it.elements));
            }
        }
    }
}

/// A reply other than an array, or the number of elements of an array.
enum Token {
    Whole(Reply),
    Array(usize),
}

/// Parses one token. Returns it and its bytes on the wire; `None` if bytes are missing.
fn parse_token(
    input: &[u8],
    available: usize,
    bounds: ReplyBounds,
) -> Result<Option<(Token, usize)>, ReplyError> {
    let Some((&kind, rest)) = input.split_first() else { return Ok(None) };
    let of_number = matches!(kind, b':' | b'$' | b'*');
    let line_max = if of_number { NUMBER_MAX } else { LINE_MAX };
    let searched = rest.get(..=line_max).unwrap_or(rest);
    let Some(end) = memchr::memchr(b'\r', searched) else {
        let is_too_long = rest.len() > line_max;
        return if is_too_long || !(of_number || matches!(kind, b'+' | b'-')) {
            Err(ReplyError::Malformed)
        } else {
            Ok(None)
        };
    };
    let line = rest.get(..end).unwrap_or_default();
    match rest.get(end + 1) {
        None => return Ok(None),
        Some(b'\n') => {}
        Some(_) => return Err(ReplyError::Malformed),
    }
    // The type, the line, and its end.
    let length = end + 3;
    let whole = |reply| Ok(Some((Token::Whole(reply), length)));
    match kind {
        b':' => whole(Reply::Integer(parse_integer(line)?)),
        b'+' => whole(Reply::Text(line.to_vec())),
        b'-' => {
            let kept = line.get(..ERROR_TEXT_MAX).unwrap_or(line);
            whole(Reply::Error(String::from_utf8_lossy(kept).into_owned()))
        }
        b'$' | b'*' if line == b"-1" => whole(Reply::Nil),
        b'*' => {
            let elements =
                usize::try_from(parse_integer(line)?).map_err(|_| ReplyError::Malformed)?;
            Ok(Some((Token::Array(elements), length)))
        }
        b'$' => {
            let text = usize::try_from(parse_integer(line)?).map_err(|_| ReplyError::Malformed)?;
            let end = length.saturating_add(text);
            if end.saturating_add(2) > available {
                return Err(ReplyError::Bytes(bounds.bytes));
            }
            match (input.get(length..end), input.get(end..end + 2)) {
                (Some(text), Some(b"\r\n")) => {
                    Ok(Some((Token::Whole(Reply::Text(text.to_vec())), end + 2)))
                }
                (_, None) => Ok(None),
                _ => Err(ReplyError::Malformed),
            }
        }
        _ => Err(ReplyError::Malformed),
    }
}

/// Parses a decimal number as Redis writes it.
fn parse_integer(line: &[u8]) -> Result<i64, ReplyError> {
    let (negative, digits) = match line {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    if digits.is_empty() {
        return Err(ReplyError::Malformed);
    }
    // Computed as a negative number, because `i64::MIN` has no positive counterpart.
    let mut number = 0_i64;
    for digit in digits {
        let value = digit.wrapping_sub(b'0');
        let next = number.checked_mul(10).and_then(|it| it.checked_sub(value.into()));
        number = next.filter(|_| value <= 9).ok_or(ReplyError::Malformed)?;
    }
    if negative { Ok(number) } else { number.checked_neg().ok_or(ReplyError::Malformed) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use redis_protocol::resp2::{
        decode::decode_bytes,
        types::{BytesFrame, Resp2Frame as _},
    };

    use super::*;

    /// All replies in the bytes, which arrive in pieces of `piece` bytes.
    fn read(bytes: &[u8], piece: usize, bounds: ReplyBounds) -> Result<Vec<Reply>, ReplyError> {
        let mut reader = ReplyReader::default();
        let mut replies = Vec::new();
        for piece in bytes.chunks(piece) {
            reader.input().extend_from_slice(piece);
            while let Some(reply) = reader.next(bounds)? {
                replies.push(reply);
            }
        }
        Ok(replies)
    }

    /// A frame of `redis-protocol` as our reply.
    fn expected(frame: BytesFrame) -> Reply {
        match frame {
            BytesFrame::SimpleString(text) | BytesFrame::BulkString(text) => {
                Reply::Text(text.to_vec())
            }
            BytesFrame::Error(text) => Reply::Error(text.to_string()),
            BytesFrame::Integer(number) => Reply::Integer(number),
            BytesFrame::Array(elements) => {
                Reply::Array(elements.into_iter().map(expected).collect())
            }
            BytesFrame::Null => Reply::Nil,
        }
    }

    fn frames() -> impl Strategy<Value = BytesFrame> {
        let leaf = prop_oneof![
            any::<i64>().prop_map(BytesFrame::Integer),
            "[a-z ]{0,20}".prop_map(|text| BytesFrame::SimpleString(text.into())),
            "[A-Z]{1,9} [a-z ]{0,20}".prop_map(|text| BytesFrame::Error(text.into())),
            prop::collection::vec(any::<u8>(), 0..40)
                .prop_map(|bytes| BytesFrame::BulkString(bytes.into())),
            Just(BytesFrame::Null),
        ];
        leaf.prop_recursive(DEPTH_MAX.try_into().unwrap(), 64, 6, |inner| {
            prop::collection::vec(inner, 0..6).prop_map(BytesFrame::Array)
        })
    }

    proptest! {
        #[test]
        fn replies_are_read_as_a_library_reads_them(
            frames in prop::collection::vec(frames(), 1..4),
            piece in 1..64_usize,
        ) {
            let mut bytes = Vec::new();
            for frame in &frames {
                let mut encoded = vec![0; frame.encode_len(false)];
                let length = redis_protocol::resp2::encode::encode_bytes(&mut encoded, frame, false);
                bytes.extend_from_slice(&encoded[..length.unwrap()]);
            }
            let expected: Vec<_> = frames.into_iter().map(expected).collect();
            prop_assert_eq!(read(&bytes, piece, ReplyBounds::LIST), Ok(expected));
        }

        #[test]
        fn replies_in_random_bytes_equal_those_of_a_library(
            bytes in prop::collection::vec(
                prop::sample::select(b"*$:+-0123459\r\n\r\n\r\nab".as_slice()), 0..60,
            ),
            piece in 1..64_usize,
        ) {
            let bounds = ReplyBounds { bytes: 64, elements: 16 };
            let mut rest = bytes::Bytes::from(bytes.clone());
            for reply in read(&bytes, piece, bounds).unwrap_or_default() {
                let (frame, length) = decode_bytes(&rest).unwrap().unwrap();
                prop_assert_eq!(reply, expected(frame));
                rest.advance(length);
            }
        }
    }

    #[test]
    fn replies_beyond_a_bound_are_errors_before_they_arrive() {
        let bounds = ReplyBounds { bytes: 100, elements: 8 };
        let too_many_bytes = Err(ReplyError::Bytes(100));
        for (bytes, expected) in [
            ("*1\r\n".repeat(DEPTH_MAX + 1), Err(ReplyError::Depth)),
            ("*9\r\n".to_owned(), Err(ReplyError::Elements(8))),
            ("*4\r\n*5\r\n".to_owned(), Err(ReplyError::Elements(8))),
            ("*9223372036854775807\r\n".to_owned(), Err(ReplyError::Elements(8))),
            ("$94\r\n".to_owned(), too_many_bytes.clone()),
            ("$9223372036854775807\r\n".to_owned(), too_many_bytes.clone()),
            (format!("*2\r\n$40\r\n{}\r\n$50\r\n", "a".repeat(40)), too_many_bytes.clone()),
            (format!("+{}", "a".repeat(100)), too_many_bytes.clone()),
            (format!("-{}", "a".repeat(100)), too_many_bytes),
        ] {
            for piece in [1, 7, 1000] {
                assert_eq!(read(bytes.as_bytes(), piece, bounds), expected, "{bytes:?}");
            }
        }
        assert_eq!(read(b"$93\r\n", 1, bounds), Ok(Vec::new()));
    }

    #[test]
    fn bytes_that_are_no_reply_are_errors() {
        for bytes in [
            "HTTP/1.1 200 OK\r\n",
            ">1\r\n+a\r\n",
            "%1\r\n",
            ":1a\r\n",
            ":\r\n",
            ":-\r\n",
            ":+1\r\n",
            ":9223372036854775808\r\n",
            ":000000000000000000000",
            "$-2\r\n",
            "*-2\r\n",
            "$1\r\nabc",
            "+a\rb\r\n",
            "\r\n",
        ] {
            for piece in [1, 1000] {
                let read = read(bytes.as_bytes(), piece, ReplyBounds::LIST);
                assert_eq!(read, Err(ReplyError::Malformed), "{bytes:?}");
            }
        }
        let least = read(b":-9223372036854775808\r\n", 3, ReplyBounds::LIST);
        assert_eq!(least, Ok(vec![Reply::Integer(i64::MIN)]));
    }
}
