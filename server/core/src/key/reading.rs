//! Reads keys, as far as they tell.

use super::{Digest, KEY_MAX};
use crate::Algorithm;

/// What a key says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading<'a> {
    /// How is counted.
    pub algorithm: Algorithm,
    /// Length of the window in seconds.
    pub window: u32,
    /// The hash tag, without braces.
    pub tag: &'a [u8],
    /// What stands behind the tag: domain and entries, where the tag is a tenant.
    pub rest: Option<&'a [u8]>,
}

/// An entry as a key has it: its key, and its value if that stands there.
pub type ReadEntry = (Vec<u8>, Option<Vec<u8>>);

impl<'a> Reading<'a> {
    /// Reads the text of a key; `None` if it is none.
    #[must_use]
    pub fn new(text: &'a [u8]) -> Option<Self> {
        if text.len() > KEY_MAX || !text.iter().all(u8::is_ascii_graphic) {
            return None;
        }
        let (code, text) = cut(text.strip_prefix(b"s1:")?, b':')?;
        let is_named = |algorithm: &Algorithm| algorithm.code().as_bytes() == code;
        let algorithm = Algorithm::ALL.into_iter().find(is_named)?;
        let (window, text) = cut(text, b':')?;
        let window = str::from_utf8(window).ok()?.parse().ok()?;
        let (tag, rest) = cut(text.strip_prefix(b"{")?, b'}')?;
        let rest = match rest {
            [] => None,
            [b':', rest @ ..] => Some(rest),
            _ => return None,
        };
        let braces = |byte: &u8| matches!(byte, b'{' | b'}');
        let is_plain = !tag.is_empty() && !tag.iter().chain(rest.unwrap_or_default()).any(braces);
        is_plain.then_some(Self { algorithm, window, tag, rest })
    }

    /// The entries of a counter that has a tenant: keys, and values as far as they stand there. That of the tenant does
    /// not; in one that values share, a `*` stands for what differs. `None` if a digest stands for any of them.
    #[must_use]
    pub fn entries(&self) -> Option<Vec<ReadEntry>> {
        let mut parts = self.rest?.split(|&byte| byte == b':');
        let _domain = parts.next()?;
        parts
            .map(|part| match cut(part, b'=') {
                Some((key, value)) => Some((unescaped(key)?, Some(unescaped(value)?))),
                None => Some((unescaped(part)?, None)),
            })
            .collect()
    }
}

/// What is before the first such byte and what is after it.
fn cut(text: &[u8], byte: u8) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|it| *it == byte)?;
    Some((text.get(..at)?, text.get(at + 1..)?))
}

/// What an escaped text stands for; `None` if it is a digest.
fn unescaped(mut text: &[u8]) -> Option<Vec<u8>> {
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

fn digit(hex: u8) -> Option<u8> {
    char::from(hex).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}
