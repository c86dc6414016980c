//! Checks of a JSON body before it is decoded: duplicate keys, and the bounds of a request.

use std::{borrow::Cow, cell::Cell, fmt};

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use sluicegate_core::{
    TooLarge,
    request::{DESCRIPTORS_MAX, ENTRIES_MAX},
};

use super::error::JsonError;

/// The most keys of one object: more than any message has fields.
const KEYS_MAX: usize = 32;

/// The most values, objects and arrays in a body: more than a request within its bounds has.
const VALUES_MAX: usize = 65_536;

/// Checks a body in one pass.
pub(super) fn check(body: &[u8]) -> Result<(), JsonError> {
    let (too_large, values) = (Cell::new(None), Cell::new(0));
    let mut json = serde_json::Deserializer::from_slice(body);
    let check = ValueCheck { position: Position::Request, too_large: &too_large, values: &values };
    match check.deserialize(&mut json).and_then(|()| json.end()) {
        Ok(()) => Ok(()),
        Err(error) => Err(too_large.get().map_or_else(|| error.into(), JsonError::TooLarge)),
    }
}

/// The position of a value in a request.
#[derive(Clone, Copy)]
enum Position {
    Request,
    Descriptors,
    Descriptor,
    Entries,
    Other,
}

impl Position {
    /// The position of the value of a key.
    fn below(self, key: &str) -> Self {
        match (self, key) {
            (Self::Request, "descriptors") => Self::Descriptors,
            (Self::Descriptor, "entries") => Self::Entries,
            _ => Self::Other,
        }
    }

    /// The position of the elements of an array, and the most elements that it may have.
    const fn elements(self) -> (Self, Option<(usize, TooLarge)>) {
        match self {
            Self::Descriptors => (Self::Descriptor, Some((DESCRIPTORS_MAX, TooLarge::Descriptors))),
            Self::Entries => (Self::Other, Some((ENTRIES_MAX, TooLarge::Entries))),
            Self::Request | Self::Descriptor | Self::Other => (Self::Other, None),
        }
    }
}

/// Checks one value.
#[derive(Clone, Copy)]
struct ValueCheck<'a> {
    position: Position,
    /// Set to the bound that is exceeded.
    too_large: &'a Cell<Option<TooLarge>>,
    /// The number of values so far.
    values: &'a Cell<usize>,
}

impl<'de> DeserializeSeed<'de> for ValueCheck<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        self.values.set(self.values.get() + 1);
        if self.values.get() > VALUES_MAX {
            return Err(D::Error::custom(format_args!("more than {VALUES_MAX} values")));
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ValueCheck<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<(), A::Error> {
        let (position, bound) = self.position.elements();
        let mut count = 0;
        while array.next_element_seed(Self { position, ..self })?.is_some() {
            count += 1;
            if let Some((max, too_large)) = bound
                && count > max
            {
                self.too_large.set(Some(too_large));
                return Err(A::Error::custom(too_large));
            }
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<(), A::Error> {
        let mut keys: Vec<Cow<'de, str>> = Vec::new();
        while let Some(key) = object.next_key_seed(Key)? {
            if keys.contains(&key) {
                return Err(A::Error::custom(format_args!("duplicate key {key:?}")));
            }
            if keys.len() == KEYS_MAX {
                return Err(A::Error::custom(format_args!(
                    "an object has more than {KEYS_MAX} keys"
                )));
            }
            object.next_value_seed(Self { position: self.position.below(&key), ..self })?;
            keys.push(key);
        }
        Ok(())
    }
}

/// The key of an object.
struct Key;

impl<'de> DeserializeSeed<'de> for Key {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Key {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_borrowed_str<E>(self, key: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(key))
    }

    fn visit_str<E>(self, key: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(key.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(body: &str) -> Result<(), String> {
        check(body.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn duplicate_keys_are_reported_with_line_and_column() {
        for (body, error) in [
            ("{\"a\": 1, \"a\": 2}", "duplicate key \"a\" at line 1 column 12"),
            ("{\"a\": [\n{\"b\": {}, \"\\u0062\": 1}]}", "duplicate key \"b\" at line 2 column 18"),
            ("{\"\\u202e\": 1, \"\\u202e\": 1}", "duplicate key \"\\u{202e}\" at line 1 column 22"),
        ] {
            let text = checked(body).unwrap_err();
            assert!(text.ends_with(error), "{text}");
        }
        assert_eq!(
            checked("{\"a\": {\"a\": [{\"a\": null}, {\"a\": -1.5e3}]}, \"b\": \"\\n\"}"),
            Ok(())
        );
    }

    #[test]
    fn descriptors_and_entries_are_bounded() {
        let list = |key: &str, element: &str, count: usize| {
            format!("{{\"{key}\": [{}]}}", vec![element; count].join(","))
        };
        let entries = |count| list("descriptors", &list("entries", "{}", count), 2);
        let too_large = |body: String| match check(body.as_bytes()) {
            Ok(()) => None,
            Err(JsonError::TooLarge(bound)) => Some(bound),
            Err(error) => panic!("{error}"),
        };
        assert_eq!(too_large(list("descriptors", "{}", DESCRIPTORS_MAX)), None);
        let many = list("descriptors", "{}", DESCRIPTORS_MAX + 1);
        assert_eq!(too_large(many.clone()), Some(TooLarge::Descriptors));
        assert_eq!(too_large(entries(ENTRIES_MAX)), None);
        assert_eq!(too_large(entries(ENTRIES_MAX + 1)), Some(TooLarge::Entries));
        assert_eq!(too_large(list("other", "{}", 1_000)), None);
        // The rest is not read.
        assert_eq!(too_large(many.replace("]}", ", nonsense")), Some(TooLarge::Descriptors));
    }

    #[test]
    fn malformed_json_is_reported() {
        for (body, error) in [
            ("", "EOF while parsing a value at line 1 column 0"),
            ("{}{}", "trailing characters at line 1 column 3"),
            (&"[".repeat(200), "recursion limit exceeded at line 1 column 128"),
        ] {
            let text = checked(body).unwrap_err();
            assert!(text.ends_with(error), "{text}");
        }
        let many = format!("[{}]", vec!["[]"; VALUES_MAX].join(","));
        let text = checked(&many).unwrap_err();
        assert!(text.contains("more than 65536 values at line 1"), "{text}");
        let keys: Vec<_> = (0..=KEYS_MAX).map(|key| format!("\"{key}\": 0")).collect();
        let text = checked(&format!("{{{}}}", keys.join(","))).unwrap_err();
        assert!(text.contains("more than 32 keys"), "{text}");
    }
}
