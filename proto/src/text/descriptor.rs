//! Descriptors as people type them: `KEY=VALUE,KEY=VALUE`.
//!
//! A value may be empty, hold `=`, and be any bytes. `\,` and `\\` are a comma and a backslash, in keys and
//! values alike; in a key `\=` is an equals sign.

use std::fmt::Write as _;

use thiserror::Error;

use super::printable::is_hidden;

/// Keys and values, in order.
pub type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// Why a text is not a descriptor. Entries are counted from one.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum InvalidDescriptor {
    /// Nothing at all.
    #[error("it is empty; a descriptor is KEY=VALUE or KEY=VALUE,KEY=VALUE")]
    Empty,
    /// Nothing between two commas, or at an end.
    #[error("entry {entry} is empty; for a comma within a value write \\,")]
    EmptyEntry {
        /// Which entry.
        entry: usize,
    },
    /// A key without a value, or part of a value.
    #[error("entry {entry} ({text}) has no `=`; for a comma within a value write \\,")]
    NoEquals {
        /// Which entry.
        entry: usize,
        /// What stands there.
        text: String,
    },
    /// A value without a key.
    #[error("entry {entry} ({text}) has no key before the `=`")]
    NoKey {
        /// Which entry.
        entry: usize,
        /// What stands there.
        text: String,
    },
    /// A space after a comma.
    #[error("entry {entry} ({text}) has a space at the start")]
    Space {
        /// Which entry.
        entry: usize,
        /// What stands there.
        text: String,
    },
    /// A backslash before something that needs none.
    #[error(
        "entry {entry} has `\\{after}`; only `\\,`, `\\=` and `\\\\` mean something, and a backslash is `\\\\`"
    )]
    Escape {
        /// Which entry.
        entry: usize,
        /// What follows the backslash.
        after: String,
    },
}

/// Reads a descriptor.
///
/// # Errors
/// The text is none.
pub fn parse(text: &[u8]) -> Result<Entries, InvalidDescriptor> {
    if text.is_empty() {
        return Err(InvalidDescriptor::Empty);
    }
    let mut entries = Vec::new();
    let mut rest = Some(text);
    while let Some(text) = rest {
        let entry = entries.len() + 1;
        let (part, after) = split(text, b',');
        rest = after;
        entries.push(parse_entry(entry, part)?);
    }
    Ok(entries)
}

fn parse_entry(entry: usize, part: &[u8]) -> Result<(Vec<u8>, Vec<u8>), InvalidDescriptor> {
    let text = || printable_bytes(part);
    let (key, value) = match split(part, b'=') {
        _ if part.is_empty() => return Err(InvalidDescriptor::EmptyEntry { entry }),
        (_, None) => return Err(InvalidDescriptor::NoEquals { entry, text: text() }),
        ([], _) => return Err(InvalidDescriptor::NoKey { entry, text: text() }),
        // No rule has such a key, so this would silently be another descriptor.
        ([b' ', ..], _) => return Err(InvalidDescriptor::Space { entry, text: text() }),
        (key, Some(value)) => (key, value),
    };
    let unescape = |text| {
        unescape(text)
            .map_err(|after| InvalidDescriptor::Escape { entry, after: printable_bytes(after) })
    };
    Ok((unescape(key)?, unescape(value)?))
}

/// What is before the first separator that is not escaped, and what is after it.
fn split(text: &[u8], separator: u8) -> (&[u8], Option<&[u8]>) {
    let mut escaped = false;
    let found = text.iter().position(|byte| {
        let found = *byte == separator && !escaped;
        escaped = *byte == b'\\' && !escaped;
        found
    });
    let Some((before, after)) = found.and_then(|at| text.split_at_checked(at)) else {
        return (text, None);
    };
    (before, after.get(1..))
}

/// What the text stands for, or what follows the backslash that stands for nothing.
fn unescape(text: &[u8]) -> Result<Vec<u8>, &[u8]> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    loop {
        match rest {
            [] => return Ok(plain),
            [b'\\', byte @ (b',' | b'=' | b'\\'), after @ ..] => {
                plain.push(*byte);
                rest = after;
            }
            [b'\\', after @ ..] => return Err(after.get(..1).unwrap_or_default()),
            [byte, after @ ..] => {
                plain.push(*byte);
                rest = after;
            }
        }
    }
}

/// The descriptor of these keys and values as it can be typed, with spaces between its entries.
pub fn render<'a>(entries: impl IntoIterator<Item = (&'a [u8], &'a [u8])>) -> String {
    let entries = entries.into_iter().map(|(key, value)| {
        let escape = |text: &[u8]| printable_bytes(text).replace('\\', "\\\\").replace(',', "\\,");
        format!("{}={}", escape(key).replace('=', "\\="), escape(value))
    });
    entries.collect::<Vec<_>>().join(", ")
}

/// The bytes as text that is safe on a terminal: what is not printable is replaced.
#[must_use]
pub fn printable_bytes(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.extend(
            chunk.valid().chars().map(|char| if is_hidden(char) { '\u{fffd}' } else { char }),
        );
        for byte in chunk.invalid() {
            // Writing to a string does not fail.
            let _ = write!(text, "<{byte:02X}>");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Entries {
        parse(text.as_bytes()).unwrap()
    }

    fn entries<V: AsRef<[u8]>, const N: usize>(pairs: [(&str, V); N]) -> Entries {
        pairs.map(|(key, value)| (key.into(), value.as_ref().into())).into()
    }

    fn problem(text: &str) -> String {
        parse(text.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn entries_keep_their_order() {
        assert_eq!(parsed("tenant=acme,user=bob"), entries([("tenant", "acme"), ("user", "bob")]));
    }

    #[test]
    fn values_may_be_empty_or_hold_equals() {
        assert_eq!(parsed("a=,b=x=y=,c=="), entries([("a", ""), ("b", "x=y="), ("c", "=")]));
    }

    #[test]
    fn escapes_stand_for_themselves() {
        assert_eq!(
            parsed(r"a=x\,y,b=\\,c\=d=\=,e=\\\,"),
            entries([("a", "x,y"), ("b", r"\"), ("c=d", "="), ("e", r"\,")])
        );
    }

    #[test]
    fn values_need_not_be_utf8() {
        assert_eq!(parse(b"a=\xff").unwrap(), entries([("a", b"\xff")]));
    }

    #[test]
    fn spaces_belong_to_values() {
        assert_eq!(parsed("a= x ,b=y"), entries([("a", " x "), ("b", "y")]));
    }

    #[test]
    fn mistakes_say_what_and_where() {
        let comma = r"; for a comma within a value write \,";
        assert_eq!(problem(""), "it is empty; a descriptor is KEY=VALUE or KEY=VALUE,KEY=VALUE");
        assert_eq!(problem("tenant"), format!("entry 1 (tenant) has no `=`{comma}"));
        assert_eq!(problem("a=x,bob"), format!("entry 2 (bob) has no `=`{comma}"));
        assert_eq!(problem("a=x,"), format!("entry 2 is empty{comma}"));
        assert_eq!(problem(",a=x"), format!("entry 1 is empty{comma}"));
        assert_eq!(problem("a=x,=y"), "entry 2 (=y) has no key before the `=`");
        assert_eq!(problem("a=x, b=y"), "entry 2 ( b=y) has a space at the start");
        let meaning = r"; only `\,`, `\=` and `\\` mean something, and a backslash is `\\`";
        assert_eq!(problem(r"a=\n"), format!(r"entry 1 has `\n`{meaning}"));
        assert_eq!(problem(r"a=x,b=y\"), format!(r"entry 2 has `\`{meaning}"));
    }

    #[test]
    fn rendering_can_be_typed_again() {
        let text = r"a=x\,y, b=\\, c\=d==";
        let descriptor = entries([("a", "x,y"), ("b", r"\"), ("c=d", "=")]);
        assert_eq!(render(descriptor.iter().map(|(key, value)| (&**key, &**value))), text);
        assert_eq!(parsed(&text.replace(", ", ",")), descriptor);
    }

    #[test]
    fn nothing_reaches_the_terminal_unseen() {
        assert_eq!(printable_bytes(b"caf\xc3\xa9\x1b[31m\xff"), "café\u{fffd}[31m<FF>");
    }
}
