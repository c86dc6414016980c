//! Random queries of `/usage`: encoded descriptors are decoded to the same entries, and any query to bounded ones.

#![no_main]

#[path = "../../server/src/usage/query.rs"]
mod query;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use percent_encoding::{NON_ALPHANUMERIC, percent_encode};

#[derive(Arbitrary, Debug)]
enum Query<'a> {
    Encoded(Vec<Vec<(&'a [u8], &'a [u8])>>),
    Raw(&'a str),
}

/// Text of a descriptor in which separators within keys and values are escaped.
fn escaped(entries: &[(&[u8], &[u8])]) -> Vec<u8> {
    let escape = |text: &[u8], separators: &[u8]| {
        let escape = |byte: &u8| {
            let is_escaped = separators.contains(byte);
            [b'\\', *byte].into_iter().skip(usize::from(!is_escaped)).collect::<Vec<_>>()
        };
        text.iter().flat_map(escape).collect::<Vec<_>>()
    };
    let entry = |(key, value): &(&[u8], &[u8])| {
        [escape(key, b",=\\"), b"=".to_vec(), escape(value, b",\\")].concat()
    };
    entries.iter().map(entry).collect::<Vec<_>>().join(&b',')
}

fuzz_target!(|given: Query<'_>| match given {
    Query::Raw(text) => {
        let Ok(descriptors) = query::parse_query(text) else { return };
        assert!(descriptors.len() <= query::DESCRIPTORS_MAX);
        assert!(descriptors.iter().flatten().all(|(key, _)| !key.is_empty()));
    }
    Query::Encoded(mut descriptors) => {
        descriptors.truncate(query::DESCRIPTORS_MAX);
        for entries in &mut descriptors {
            // The parser rejects such keys.
            entries.retain(|(key, _)| !key.is_empty() && !key.starts_with(b" "));
        }
        let parameter = |entries: &Vec<_>| {
            format!("descriptor={}", percent_encode(&escaped(entries), NON_ALPHANUMERIC))
        };
        let text = descriptors.iter().map(parameter).collect::<Vec<_>>().join("&");
        let parsed = query::parse_query(&text).unwrap();
        assert_eq!(parsed.len(), descriptors.len());
        for (parsed, entries) in parsed.iter().zip(&descriptors) {
            let parsed = parsed.iter().map(|(key, value)| (&**key, &**value));
            assert!(parsed.eq(entries.iter().copied()));
        }
    }
});
