//! The syntax of descriptors on the command line: `KEY=VALUE,KEY=VALUE`.
//!
//! A value may be empty, contain `=`, and consist of any bytes. In keys and values, `\,` means a comma and `\\` a
//! backslash. In keys, `\=` means an equals sign.

use std::fmt::Write as _;

use thiserror::Error;

use super::printable::is_hidden;

/// The entries of a descriptor: keys and values, in order.
pub type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// Reason why a text is not a descriptor. Entries are numbered from 1.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum InvalidDescriptor {
    /// The text is empty.
    #[error("it is empty; a descriptor is KEY=VALUE or KEY=VALUE,KEY=VALUE")]
    Empty,
    /// An entry is empty: there is nothing between two commas, before the first or after the last.
    #[error("entry {entry} is empty; for a comma within a value write \\,")]
    EmptyEntry {
        /// Number of the entry.
        entry: usize,
    },
    /// An entry has no `=`. It may be a part of a value that contains a comma.
    #[error("entry {entry} ({text}) has no `=`; for a comma within a value write \\,")]
    NoEquals {
        /// Number of the entry.
        entry: usize,
        /// Text of the entry.
        text: String,
    },
    /// An entry has no key.
    #[error("entry {entry} ({text}) has no key before the `=`")]
    NoKey {
        /// Number of the entry.
        entry: usize,
        /// Text of the entry.
        text: String,
    },
    /// An entry begins with a space.
    #[error("entry {entry} ({text}) has a space at the start")]
    Space {
        /// Number of the entry.
        entry: usize,
        /// Text of the entry.
        text: String,
    },
    /// A backslash is followed by a character that it does not escape.
    #[error(
        "entry {entry} has `\\{after}`; only `\\,`, `\\=` and `\\\\` are escapes; write `\\\\` for a backslash"
    )]
    Escape {
        /// Number of the entry.
        entry: usize,
        /// The character after the backslash; empty at the end.
        after: String,
    },
}

/// Parses a descriptor.
///
/// # Errors
/// The text is not a descriptor.
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
        // A space after a comma is a common mistake, and no rule would match the key with the space.
        ([b' ', ..], _) => return Err(InvalidDescriptor::Space { entry, text: text() }),
        (key, Some(value)) => (key, value),
    };
    let unescape = |text| {
        unescape(text)
            .map_err(|after| InvalidDescriptor::Escape { entry, after: printable_bytes(after) })
    };
    Ok((unescape(key)?, unescape(value)?))
}

/// The text before and after the first separator that is not escaped. `None` after it if there is no separator.
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

/// The text without escapes.
///
/// # Errors
/// The character after a backslash that escapes nothing.
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

/// Renders keys and values in the syntax of descriptors, with a space after each comma.
pub fn render<'a>(entries: impl IntoIterator<Item = (&'a [u8], &'a [u8])>) -> String {
    let entries = entries.into_iter().map(|(key, value)| {
        let escape = |text: &[u8]| printable_bytes(text).replace('\\', "\\\\").replace(',', "\\,");
        format!("{}={}", escape(key).replace('=', "\\="), escape(value))
    });
    entries.collect::<Vec<_>>().join(", ")
}

/// Renders bytes as text that is safe on a terminal: characters that are not visible become U+FFFD, and bytes that are
/// not UTF-8 become their hex digits, such as `<FF>`.
#[must_use]
pub fn printable_bytes(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.extend(
            chunk.valid().chars().map(|char| if is_hidden(char) { '\u{fffd}' } else { char }),
        );
        for byte in chunk.invalid() {
            let _infallible = write!(text, "<{byte:02X}>");
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

    fn error(text: &str) -> String {
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
    fn escapes_are_resolved() {
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
    fn spaces_in_values_are_kept() {
        assert_eq!(parsed("a= x ,b=y"), entries([("a", " x "), ("b", "y")]));
    }

    #[test]
    fn errors_name_the_entry_and_the_reason() {
        let comma = r"; for a comma within a value write \,";
        assert_eq!(error(""), "it is empty; a descriptor is KEY=VALUE or KEY=VALUE,KEY=VALUE");
        assert_eq!(error("tenant"), format!("entry 1 (tenant) has no `=`{comma}"));
        assert_eq!(error("a=x,bob"), format!("entry 2 (bob) has no `=`{comma}"));
        assert_eq!(error("a=x,"), format!("entry 2 is empty{comma}"));
        assert_eq!(error(",a=x"), format!("entry 1 is empty{comma}"));
        assert_eq!(error("a=x,=y"), "entry 2 (=y) has no key before the `=`");
        assert_eq!(error("a=x, b=y"), "entry 2 ( b=y) has a space at the start");
        let escapes = r"; only `\,`, `\=` and `\\` are escapes; write `\\` for a backslash";
        assert_eq!(error(r"a=\n"), format!(r"entry 1 has `\n`{escapes}"));
        assert_eq!(error(r"a=x,b=y\"), format!(r"entry 2 has `\`{escapes}"));
    }

    #[test]
    fn rendered_descriptors_parse_to_the_same_entries() {
        let text = r"a=x\,y, b=\\, c\=d==";
        let descriptor = entries([("a", "x,y"), ("b", r"\"), ("c=d", "=")]);
        assert_eq!(render(descriptor.iter().map(|(key, value)| (&**key, &**value))), text);
        assert_eq!(parsed(&text.replace(", ", ",")), descriptor);
    }

    #[test]
    fn control_characters_and_invalid_utf8_are_replaced() {
        assert_eq!(printable_bytes(b"caf\xc3\xa9\x1b[31m\xff"), "café\u{fffd}[31m<FF>");
    }
}
