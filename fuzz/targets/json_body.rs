//! Random bodies of `/json`: the check accepts exactly those without duplicate keys and within the bounds.

#![no_main]

#[path = "../../server/src/http/json/check.rs"]
mod check;

use arbitrary::Arbitrary;
use error::JsonError;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use sluicegate_core::request::{DESCRIPTORS_MAX, ENTRIES_MAX};

/// The error type of the check, in the module where the server has it.
mod error {
    use sluicegate_core::TooLarge;
    use thiserror::Error;

    #[derive(Debug, Error)]
    pub(crate) enum JsonError {
        #[error(transparent)]
        TooLarge(TooLarge),
        #[error(transparent)]
        Json(#[from] serde_json::Error),
    }
}

#[derive(Arbitrary, Debug)]
enum Node<'a> {
    Number(i64),
    Text(&'a str),
    List(Vec<Node<'a>>),
    /// A list of the same element.
    Same(u16, &'a [u8]),
    Object(Vec<(Key, Node<'a>)>),
    Raw(&'a [u8]),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Key {
    Descriptors,
    Entries,
    A,
    EscapedA,
    Number(u8),
}

impl Key {
    fn text(self) -> String {
        match self {
            Self::Descriptors => "\"descriptors\"".to_owned(),
            Self::Entries => "\"entries\"".to_owned(),
            Self::A => "\"a\"".to_owned(),
            Self::EscapedA => "\"\\u0061\"".to_owned(),
            Self::Number(number) => format!("\"{number}\""),
        }
    }
}

impl Node<'_> {
    fn push_to(&self, body: &mut Vec<u8>) {
        match self {
            Self::Number(number) => body.extend(number.to_string().bytes()),
            Self::Text(text) => body.extend(Value::from(*text).to_string().bytes()),
            Self::List(nodes) => {
                body.push(b'[');
                for (at, node) in nodes.iter().enumerate() {
                    if at > 0 {
                        body.push(b',');
                    }
                    node.push_to(body);
                }
                body.push(b']');
            }
            Self::Same(times, element) => {
                let element = if element.is_empty() { b"{}" } else { *element };
                let elements = vec![&element[..element.len().min(16)]; usize::from(times % 300)];
                body.extend([b"[", &*elements.join(&b','), b"]"].concat());
            }
            Self::Object(fields) => {
                body.push(b'{');
                for (at, (key, node)) in fields.iter().enumerate() {
                    if at > 0 {
                        body.push(b',');
                    }
                    body.extend([key.text().as_bytes(), b": "].concat());
                    node.push_to(body);
                }
                body.push(b'}');
            }
            Self::Raw(raw) => body.extend(*raw),
        }
    }
}

fuzz_target!(|node: Node<'_>| {
    let mut body = Vec::new();
    node.push_to(&mut body);
    let checked = check::check(&body);
    let Ok(value) = serde_json::from_slice::<Value>(&body) else {
        assert!(checked.is_err());
        return;
    };
    let [descriptors, entries] = lists(&value);
    let has_duplicates = keys(&value) < colons(&body);
    match checked {
        Ok(()) => {
            assert!(descriptors <= DESCRIPTORS_MAX && entries <= ENTRIES_MAX && !has_duplicates);
        }
        // With duplicate keys, the parsed value has the last one, which may be within the bounds.
        Err(JsonError::TooLarge(_)) => {
            assert!(descriptors > DESCRIPTORS_MAX || entries > ENTRIES_MAX || has_duplicates);
        }
        Err(JsonError::Json(error)) => {
            assert!(has_duplicates || error.to_string().contains("more than "), "{error}");
        }
    }
});

/// The number of descriptors, and the most entries of one.
fn lists(value: &Value) -> [usize; 2] {
    let list = |value: &Value, key| value.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
    let descriptors = list(value, "descriptors");
    let entries = descriptors.iter().map(|one| list(one, "entries").len());
    [descriptors.len(), entries.max().unwrap_or_default()]
}

/// Number of keys in all objects, without duplicates.
fn keys(value: &Value) -> usize {
    match value {
        Value::Array(elements) => elements.iter().map(keys).sum(),
        Value::Object(fields) => fields.len() + fields.values().map(keys).sum::<usize>(),
        _ => 0,
    }
}

/// Number of colons outside of strings: one for each key, with duplicates.
fn colons(body: &[u8]) -> usize {
    let (mut count, mut in_text, mut is_escaped) = (0, false, false);
    for byte in body {
        count += usize::from(!in_text && *byte == b':');
        in_text ^= *byte == b'"' && !is_escaped;
        is_escaped = in_text && *byte == b'\\' && !is_escaped;
    }
    count
}
