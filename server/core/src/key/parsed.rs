//! Parsing of counter keys.

use super::{digest::Digest, escape::KEY_BYTES_MAX};
use crate::Algorithm;

/// A parsed counter key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParsedKey<'a> {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Length of the window in seconds.
    pub window: u32,
    /// The hash tag, without braces.
    pub tag: &'a [u8],
    /// The text after the hash tag: domain and entries. `None` if the hash tag is the whole descriptor.
    pub rest: Option<&'a [u8]>,
}

/// An entry in a counter key: its key, and its value unless that is the hash tag.
pub type ParsedEntry = (Vec<u8>, Option<Vec<u8>>);

impl<'a> ParsedKey<'a> {
    /// Parses the text of a key; `None` if it is not a valid key.
    #[must_use]
    pub fn new(text: &'a [u8]) -> Option<Self> {
        if text.len() > KEY_BYTES_MAX || !text.iter().all(u8::is_ascii_graphic) {
            return None;
        }
        let (code, text) = split_at_byte(text.strip_prefix(b"s1:")?, b':')?;
        let is_named = |algorithm: &Algorithm| algorithm.code().as_bytes() == code;
        let algorithm = Algorithm::ALL.into_iter().find(is_named)?;
        let (window, text) = split_at_byte(text, b':')?;
        let window = str::from_utf8(window).ok()?.parse().ok()?;
        let (tag, rest) = split_at_byte(text.strip_prefix(b"{")?, b'}')?;
        let rest = match rest {
            [] => None,
            [b':', rest @ ..] => Some(rest),
            _ => return None,
        };
        let braces = |byte: &u8| matches!(byte, b'{' | b'}');
        let is_plain = !tag.is_empty() && !tag.iter().chain(rest.unwrap_or_default()).any(braces);
        is_plain.then_some(Self { algorithm, window, tag, rest })
    }

    /// The entries of a tenant's counter. The tenant's entry has no value here, and a shared pattern is the value of
    /// its entry. `None` for a key without a tenant, or if a digest replaces a key or a value.
    #[must_use]
    pub fn entries(&self) -> Option<Vec<ParsedEntry>> {
        let mut parts = self.rest?.split(|&byte| byte == b':');
        let _domain = parts.next()?;
        parts
            .map(|part| match split_at_byte(part, b'=') {
                Some((key, value)) => Some((unescape(key)?, Some(unescape(value)?))),
                None => Some((unescape(part)?, None)),
            })
            .collect()
    }
}

/// The text before and after the first `byte`; `None` if there is none.
fn split_at_byte(text: &[u8], byte: u8) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|it| *it == byte)?;
    Some((text.get(..at)?, text.get(at + 1..)?))
}

/// The bytes of an escaped text; `None` if it is a digest or not validly escaped.
fn unescape(mut text: &[u8]) -> Option<Vec<u8>> {
    if text.starts_with(Digest::MARK) {
        return None;
    }
    let mut plain = Vec::with_capacity(text.len());
    loop {
        match text {
            [] => return Some(plain),
            [b'%', high, low, after @ ..] => {
                plain.push(digit(*high)? << 4 | digit(*low)?);
                text = after;
            }
            [b'%', ..] => return None,
            [byte, after @ ..] => {
                plain.push(*byte);
                text = after;
            }
        }
    }
}

/// The value of a hex digit.
fn digit(hex: u8) -> Option<u8> {
    char::from(hex).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}
