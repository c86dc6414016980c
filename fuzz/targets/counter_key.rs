//! Counter keys of random descriptors: printable, bounded, with one hash tag, and different for different descriptors.

#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use sluicegate_core::{
    Algorithm, Limit, Window,
    key::{KEY_BYTES_MAX, KeyBuilder},
    request::Entry,
};

/// Two descriptors of one domain.
#[derive(Arbitrary, Debug)]
struct Input<'a> {
    domain: &'a str,
    tenant: Option<&'a [u8]>,
    one: Vec<Part<'a>>,
    other: Vec<Part<'a>>,
}

#[derive(Arbitrary, Debug)]
struct Part<'a> {
    key: &'a [u8],
    value: &'a [u8],
    shared: bool,
}

impl Part<'_> {
    /// Only a pattern can be shared.
    fn is_shared(&self) -> bool {
        self.shared && self.value.contains(&b'*')
    }

    fn builder(&self) -> (&[u8], &[u8], bool) {
        (self.key, self.value, self.is_shared())
    }
}

fuzz_target!(|input: Input<'_>| {
    let [one, other] = [&input.one, &input.other].map(|parts| key(&input, parts));
    let same = input.one.iter().map(Part::builder).eq(input.other.iter().map(Part::builder));
    assert_eq!(one == other, same);
    for key in [one, other] {
        assert!(key.len() <= KEY_BYTES_MAX && key.iter().all(u8::is_ascii_graphic));
        assert_eq!(key.iter().filter(|&&byte| byte == b'{').count(), 1);
        assert_eq!(key.iter().filter(|&&byte| byte == b'}').count(), 1);
    }
});

fn key(input: &Input<'_>, parts: &[Part<'_>]) -> Vec<u8> {
    let entries: Vec<_> =
        parts.iter().map(|part| Entry { key: part.key, value: part.value }).collect();
    let shared: Vec<_> = parts.iter().map(|part| part.is_shared().then_some(part.value)).collect();
    let mut builder = KeyBuilder::new(input.domain, input.tenant, &entries, &shared);
    let window = Window::from_seconds(60).expect("a minute is a window");
    let limit =
        Limit::new(Algorithm::FixedWindow, 1, window, None).expect("one a minute is a limit");
    builder.key_for(&limit).as_bytes().to_vec()
}
