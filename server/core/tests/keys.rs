//! Counter keys: readable, bounded, and different for different counters.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on fails")]

use proptest::{collection::vec, prelude::*, sample::select};
use sluicegate_core::{
    Algorithm, CounterKey, Limit, Window,
    key::{KEY_BYTES_MAX, KeyBuilder, ParsedKey, TenantKeys},
    request::Entry,
};
use sluicegate_core_testkit::cases;

fn key(domain: &str, tenant: Option<&str>, entries: &[(&[u8], &[u8])]) -> Vec<u8> {
    key_of(&KeyParts {
        domain: domain.to_owned(),
        entries: entries
            .iter()
            .map(|(key, value)| Part { key: key.to_vec(), value: value.to_vec(), shared: false })
            .collect(),
        seconds: 60,
        tenant: tenant.map(|tenant| tenant.as_bytes().to_vec()),
    })
}

/// The parts of a counter's key.
#[derive(Clone, Debug, PartialEq, Eq)]
struct KeyParts {
    domain: String,
    entries: Vec<Part>,
    seconds: u64,
    tenant: Option<Vec<u8>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    key: Vec<u8>,
    value: Vec<u8>,
    /// Whether the value is a pattern that replaces the request's value.
    shared: bool,
}

fn key_of(parts: &KeyParts) -> Vec<u8> {
    let entries: Vec<_> =
        parts.entries.iter().map(|part| Entry { key: &part.key, value: &part.value }).collect();
    let shared: Vec<_> =
        parts.entries.iter().map(|part| part.shared.then_some(part.value.as_slice())).collect();
    let mut builder = KeyBuilder::new(&parts.domain, parts.tenant.as_deref(), &entries, &shared);
    let window = Window::from_seconds(parts.seconds).unwrap();
    let limit = Limit::new(Algorithm::FixedWindow, 1, window, None).unwrap();
    builder.key_for(&limit).as_bytes().to_vec()
}

/// The part of a key that Redis Cluster hashes: between the first `{` and the first `}` after it.
fn hash_tag(key: &[u8]) -> &[u8] {
    let open = key.iter().position(|&byte| byte == b'{').unwrap();
    let length = key[open + 1..].iter().position(|&byte| byte == b'}').unwrap();
    assert_ne!(length, 0, "an empty hash tag is none");
    &key[open + 1..open + 1 + length]
}

#[test]
fn keys_read_as_documented() {
    let tagged = key("public_api", Some("tenant"), &[(b"tenant", b"acme"), (b"user", b"bob")]);
    assert_eq!(tagged, b"s1:fw:60:{acme}:public_api:tenant:user=bob");
    let whole = key("public_api", None, &[(b"ip", b"10.1.2.3")]);
    assert_eq!(whole, b"s1:fw:60:{public_api:ip=10.1.2.3}");
    let hostile = key("d", Some("t"), &[(b"t", b"{a}:b=c%*\n\xff")]);
    assert_eq!(hostile, b"s1:fw:60:{%7ba%7d%3ab%3dc%25%2a%0a%ff}:d:t");
}

#[test]
fn counters_of_one_tenant_have_one_hash_tag() {
    let descriptors: [&[(&[u8], &[u8])]; 3] = [
        &[(b"tenant", b"acme")],
        &[(b"tenant", b"acme"), (b"user", b"bob")],
        &[(b"tenant", b"acme"), (b"user", b"bob"), (b"route", b"/a")],
    ];
    for entries in descriptors {
        assert_eq!(hash_tag(&key("d", Some("tenant"), entries)), b"acme");
    }
}

#[test]
fn long_values_become_digests_that_keep_the_tenant() {
    let long = vec![b'x'; 64 * 1024];
    let user = key("d", Some("tenant"), &[(b"tenant", b"acme"), (b"user", &long)]);
    assert!(user.starts_with(b"s1:fw:60:{acme}:d:tenant:user=%#"), "{user:?}");
    // Each value is short, and together they are too long.
    let several: [&[u8]; 2] = [&[b'x'; 200], &[b'y'; 200]];
    let both =
        key("d", Some("tenant"), &[(b"tenant", b"acme"), (b"a", several[0]), (b"b", several[1])]);
    assert!(both.starts_with(b"s1:fw:60:{acme}:d:%#"), "{both:?}");
    let tenant = key("d", Some("tenant"), &[(b"tenant", &long), (b"user", b"bob")]);
    assert!(tenant.starts_with(b"s1:fw:60:{%#"), "{tenant:?}");
    assert!(tenant.ends_with(b"}:d:tenant:user=bob"), "{tenant:?}");
}

/// A text of few different bytes, most of which are syntax in keys, so that ambiguity would show.
fn text(lengths: std::ops::Range<usize>) -> impl Strategy<Value = Vec<u8>> {
    vec(select(b"ab{}:=%*#\n\0\xff".as_slice()), lengths)
}

fn key_parts() -> impl Strategy<Value = KeyParts> {
    let value = prop_oneof![8 => text(0..3), 1 => text(250..270), 1 => text(600..602)];
    let part = (text(1..3), value, prop::bool::weighted(0.2)).prop_map(|(key, value, shared)| {
        // Only a pattern can be shared.
        let shared = shared && value.contains(&b'*');
        Part { key, value, shared }
    });
    let domain = select(["a", "b", "a:b", "{a}", "a}"].as_slice());
    (domain, vec(part, 0..4), select([1_u64, 60].as_slice())).prop_map(
        |(domain, entries, seconds)| {
            // A domain has one tenant entry.
            let tenant = (domain.len() > 1).then(|| b"a".to_vec());
            KeyParts { domain: domain.to_owned(), entries, seconds, tenant }
        },
    )
}

proptest! {
    #![proptest_config(cases::at_least(20_000))]

    #[test]
    fn different_counters_have_different_keys(one in key_parts(), other in key_parts()) {
        prop_assert_eq!(one == other, key_of(&one) == key_of(&other));
    }

    #[test]
    fn keys_are_printable_and_bounded_and_have_one_hash_tag(parts in key_parts()) {
        let key = key_of(&parts);
        prop_assert!(key.len() <= KEY_BYTES_MAX);
        prop_assert!(key.iter().all(u8::is_ascii_graphic));
        prop_assert_eq!(key.iter().filter(|&&byte| byte == b'{').count(), 1);
        prop_assert_eq!(key.iter().filter(|&&byte| byte == b'}').count(), 1);
        hash_tag(&key);
    }

    #[test]
    fn only_the_tenants_value_selects_the_slot(
        tenant in text(1..4), user in text(0..9), route in text(0..9),
    ) {
        let alone = key("d", Some("t"), &[(b"t", &tenant)]);
        let full = key("d", Some("t"), &[(b"user", &user), (b"t", &tenant), (b"route", &route)]);
        prop_assert_eq!(hash_tag(&alone), hash_tag(&full));
    }
}

/// A key in a domain with this name.
fn in_domain(domain: &str, tenant: &[u8], user: &[u8]) -> Vec<u8> {
    key(domain, Some("t"), &[(b"t", tenant), (b"user", user)])
}

#[test]
fn tenant_keys_match_exactly_the_keys_of_the_tenant() {
    let long = "d".repeat(230);
    let longer = "d".repeat(300);
    let hostile = "a:%{*} ";
    let domains = ["a", "a:", "ab", hostile, &long, &longer, "a:t"];
    let values: [&[u8]; 6] = [b"acme", b"acm", b"{a}*?[x] %\xff", &[b'x'; 600], b"a", b"%#00"];
    let users: [&[u8]; 3] = [b"bob", &[b'u'; 200], &[b'u'; 9000]];
    for domain in domains {
        for tenant in values {
            let tenant_keys = TenantKeys::new(domain, tenant).unwrap();
            for other_domain in domains {
                for other in values {
                    for user in users {
                        let key = in_domain(other_domain, other, user);
                        let same = domain == other_domain && tenant == other;
                        assert_eq!(
                            tenant_keys.contains(&key),
                            same,
                            "{domain} {tenant_keys:?} {key:?}"
                        );
                    }
                }
            }
        }
    }
    assert!(TenantKeys::new("a", b"").is_none());
    let tenant_keys = TenantKeys::new("a", b"acme").unwrap();
    assert_eq!(tenant_keys.tag(), b"{acme}");
    // A whole descriptor as the tag, another format version, and other texts.
    for not in [b"s1:fw:60:{acme}".as_slice(), b"s2:fw:60:{acme}:a:t", b"s1:zz:60:{acme}:a:t", b""]
    {
        assert!(!tenant_keys.contains(not));
    }
}

#[test]
fn keys_parse_to_the_entries_they_were_built_from() {
    let text = key("d", Some("t"), &[(b"t", b"acme"), (b"user", b"{b}=:%*\xff")]);
    let parsed = ParsedKey::new(&text).unwrap();
    let entries = vec![(b"t".to_vec(), None), (b"user".to_vec(), Some(b"{b}=:%*\xff".to_vec()))];
    assert_eq!(parsed.entries(), Some(entries));
    assert_eq!((parsed.tag, parsed.window), (b"acme".as_slice(), 60));
    assert_eq!(CounterKey::from_text(&text).unwrap().as_bytes(), text);
    let digested = key("d", Some("t"), &[(b"t", b"acme"), (b"user", &[b'u'; 9000])]);
    assert_eq!(ParsedKey::new(&digested).unwrap().entries(), None);
    for not in [
        "",
        "s1:fw:60:",
        "s1:fw:x:{a}",
        "s1:fw:60:{}:a",
        "s1:fw:60:{a}b",
        "s1:fw:60:{a}:{b}",
        "s1:fw:60:{a b}",
    ] {
        assert!(CounterKey::from_text(not.as_bytes()).is_none(), "{not}");
    }
}
