//! The query of a request: `descriptor=KEY=VALUE,KEY=VALUE&descriptor=…`, percent-encoded.

use percent_encoding::percent_decode;
use sluicegate_proto::text::descriptor::{Entries, InvalidDescriptor, parse, printable_bytes};
use thiserror::Error;

/// The most descriptors of one request.
pub(super) const DESCRIPTORS_MAX: usize = 64;

/// The only parameter of a query.
const DESCRIPTOR: &[u8] = b"descriptor";

/// Why a query is invalid. Descriptors are numbered from 1.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub(super) enum InvalidQuery {
    /// There is another parameter.
    #[error("unknown parameter {0:?}; the only one is descriptor=KEY=VALUE,KEY=VALUE")]
    UnknownParameter(String),
    /// A `%` is not followed by two hex digits.
    #[error("a % is not followed by two hex digits; for a percent sign write %25")]
    PercentEncoding,
    /// There are too many descriptors.
    #[error("more than {DESCRIPTORS_MAX} descriptors")]
    TooManyDescriptors,
    /// A descriptor is malformed.
    #[error("descriptor {number}: {source}")]
    Descriptor {
        /// Number of the descriptor.
        number: usize,
        /// The mistake in its text, which is percent-decoded.
        source: InvalidDescriptor,
    },
}

/// The entries of each descriptor that a query names. A descriptor without a value has no entries.
///
/// # Errors
/// The query is invalid.
pub(super) fn parse_query(query: &str) -> Result<Vec<Entries>, InvalidQuery> {
    let mut descriptors = Vec::new();
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let (name, value) = (decode(name)?, decode(value)?);
        if name != DESCRIPTOR {
            return Err(InvalidQuery::UnknownParameter(printable_bytes(&name)));
        }
        if descriptors.len() == DESCRIPTORS_MAX {
            return Err(InvalidQuery::TooManyDescriptors);
        }
        let number = descriptors.len() + 1;
        let entries = if value.is_empty() { Ok(Entries::new()) } else { parse(&value) };
        descriptors.push(entries.map_err(|source| InvalidQuery::Descriptor { number, source })?);
    }
    Ok(descriptors)
}

/// Decodes a name or a value as HTML forms encode them: `+` is a space, `%` precedes two hex digits.
fn decode(text: &str) -> Result<Vec<u8>, InvalidQuery> {
    let is_encoded = |rest: &str| {
        rest.as_bytes().get(..2).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    if !text.split('%').skip(1).all(is_encoded) {
        return Err(InvalidQuery::PercentEncoding);
    }
    Ok(percent_decode(text.replace('+', " ").as_bytes()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(query: &str) -> Vec<Vec<(String, String)>> {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let entries = |entries: Entries| {
            entries.into_iter().map(|(key, value)| (text(key), text(value))).collect()
        };
        parse_query(query).unwrap().into_iter().map(entries).collect()
    }

    fn entry(key: &str, value: &str) -> (String, String) {
        (key.to_owned(), value.to_owned())
    }

    fn error(query: &str) -> String {
        parse_query(query).unwrap_err().to_string()
    }

    #[test]
    fn each_parameter_is_a_descriptor() {
        assert!(parsed("").is_empty());
        assert!(parsed("&&").is_empty());
        assert_eq!(
            parsed("descriptor=user=ann,route=/chat&descriptor=user=bob"),
            [vec![entry("user", "ann"), entry("route", "/chat")], vec![entry("user", "bob")]]
        );
        assert_eq!(parsed("descriptor=&descriptor"), [vec![], vec![]]);
    }

    #[test]
    fn values_are_percent_decoded_once() {
        assert_eq!(parsed("descriptor=user%3Dann%2Croute%3D%2Fchat")[0].len(), 2);
        assert_eq!(parsed("d%65scriptor=a=x+y%2B%26%3D"), [vec![entry("a", "x y+&=")]]);
        assert_eq!(parsed("descriptor=a=%2525"), [vec![entry("a", "%25")]]);
        assert_eq!(parsed(r"descriptor=a=x%5C,y"), [vec![entry("a", "x,y")]]);
        assert_eq!(parse_query("descriptor=a=%ff").unwrap(), [[(b"a".into(), b"\xff".into())]]);
    }

    #[test]
    fn at_most_64_descriptors() {
        let query = |count| vec!["descriptor=a=b"; count].join("&");
        assert_eq!(parsed(&query(64)).len(), 64);
        assert_eq!(error(&query(65)), "more than 64 descriptors");
    }

    #[test]
    fn errors_name_the_mistake() {
        let unknown = "; the only one is descriptor=KEY=VALUE,KEY=VALUE";
        assert_eq!(error("domain=other"), format!("unknown parameter \"domain\"{unknown}"));
        assert_eq!(error("=x"), format!("unknown parameter \"\"{unknown}"));
        assert_eq!(error("Descriptor=a=b"), format!("unknown parameter \"Descriptor\"{unknown}"));
        assert_eq!(
            error("descriptor=a=b&tenant%00=x"),
            format!("unknown parameter \"tenant\u{fffd}\"{unknown}")
        );
        assert_eq!(
            error("descriptor=a=b&descriptor==x"),
            "descriptor 2: entry 1 (=x) has no key before the `=`"
        );
        let percent = "a % is not followed by two hex digits; for a percent sign write %25";
        for query in ["descriptor=a=%", "descriptor=a=%2", "descriptor=a=%zz", "%=", "a%+1=b"] {
            assert_eq!(error(query), percent, "{query}");
        }
    }
}
