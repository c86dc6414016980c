//! Cost of matching, by rules and requests.

use std::{
    fmt::Write,
    hint::black_box,
    slice,
    time::{Duration, Instant},
};

use sluicegate_core::{
    Plan, Request,
    request::{Descriptor, Entry},
    rules::RuleSet,
};

/// Requests of a variant, sent in turn: few, so that their rules stay in the caches.
const REQUESTS: usize = 8;

/// Times that the requests of a variant are asked in a round.
const REPEATS: usize = 50;

/// Odd, so that there is a median.
const ROUNDS: usize = 101;

/// The entries of one descriptor: keys and values.
pub type Entries = Vec<(String, String)>;

/// A limits file and requests for it.
#[derive(Debug)]
pub struct Variant {
    /// Its name.
    pub name: String,
    rules: RuleSet,
    requests: Vec<Entries>,
    /// Whether each request meets a rule.
    hit: bool,
}

/// The limit of every rule.
pub const LIMIT: &str = "rate_limit: {unit: minute, requests_per_unit: 10}";

/// A limits file of these rules, a line each.
pub fn file(rules: impl Iterator<Item = String>) -> String {
    let mut text = "domain: api\ndescriptors:\n".to_owned();
    for rule in rules {
        writeln!(text, "{rule}").unwrap();
    }
    text
}

/// So many rules of one key, each with a value of its own.
#[must_use]
pub fn exact(rules: usize) -> String {
    file((0..rules).map(|it| format!("  - {{key: user, value: user-{it}, {LIMIT}}}")))
}

/// So many rules, each of a key without a value.
#[must_use]
pub fn keys(rules: usize) -> String {
    file((0..rules).map(|it| format!("  - {{key: key-{it}, {LIMIT}}}")))
}

/// So many rules on the third level, ten a tenant.
#[must_use]
pub fn chains(rules: usize) -> String {
    let routes: Vec<_> =
        (0..10).map(|it| format!("{{key: route, value: route-{it}, {LIMIT}}}")).collect();
    let below = routes.join(", ");
    file((0..rules / 10).map(|it| {
        format!(
            "  - {{key: tenant, value: tenant-{it}, descriptors: [{{key: user, descriptors: [{below}]}}]}}"
        )
    }))
}

/// A descriptor of one entry.
#[must_use]
pub fn one(key: &str, value: String) -> Entries {
    vec![(key.to_owned(), value)]
}

/// A descriptor that meets the rule of that number in the file of [`chains`].
#[must_use]
pub fn chain(at: usize) -> Entries {
    let entries = [
        ("tenant", format!("tenant-{}", at / 10)),
        ("user", "ann".into()),
        ("route", format!("route-{}", at % 10)),
    ];
    entries.map(|(key, value)| (key.to_owned(), value)).into()
}

/// Reads a limits file.
#[must_use]
pub fn load(text: &str) -> RuleSet {
    sluicegate_limits::compile_text("limits.yaml", text).unwrap()
}

/// A variant whose requests are spread over the rules: `asked` gets the number of one, and `hit` says whether what
/// it gives meets a rule.
pub fn variant(
    name: &str,
    rules: usize,
    text: &str,
    hit: bool,
    asked: impl Fn(usize) -> Entries,
) -> Variant {
    let requests = (0..REQUESTS).map(|it| asked(it * rules / REQUESTS)).collect();
    Variant { name: name.to_owned(), rules: load(text), requests, hit }
}

/// For each variant the median of the time of one request: matching alone, and matching with planning. Every variant
/// is timed in every round.
///
/// # Panics
/// A request matches a rule although its variant claims otherwise, or the reverse.
#[must_use]
pub fn measure(variants: &[Variant]) -> Vec<[Duration; 2]> {
    let mut times = vec![[const { Vec::new() }; 2]; variants.len()];
    for round in 0..ROUNDS {
        for step in 0..variants.len() {
            let at = (round + step) % variants.len();
            let timed = time(&variants[at]);
            for (times, time) in times[at].iter_mut().zip(timed) {
                times.push(time);
            }
        }
    }
    let median = |mut times: Vec<Duration>| {
        times.sort_unstable();
        times[ROUNDS / 2]
    };
    times.into_iter().map(|times| times.map(median)).collect()
}

fn time(variant: &Variant) -> [Duration; 2] {
    let entries: Vec<Vec<Entry<'_>>> = variant.requests.iter().map(borrowed).collect();
    let requests: Vec<Request<'_>> = entries.iter().map(request).collect();
    let domain = variant.rules.domain("api").unwrap();
    // Warms the caches, and checks the variant's claim.
    for (entries, request) in entries.iter().zip(&requests) {
        assert_eq!(domain.find(entries).rule.is_some(), variant.hit, "{}", variant.name);
        assert_eq!(Plan::new(&variant.rules, request).1.is_empty(), !variant.hit);
    }
    let timed = |ask: &dyn Fn(usize)| {
        let started = Instant::now();
        for _ in 0..REPEATS {
            (0..REQUESTS).for_each(ask);
        }
        started.elapsed() / u32::try_from(REPEATS * REQUESTS).unwrap()
    };
    [
        timed(&|at| {
            black_box(domain.find(black_box(&entries[at])));
        }),
        timed(&|at| {
            black_box(Plan::new(&variant.rules, black_box(&requests[at])));
        }),
    ]
}

fn borrowed(entries: &Entries) -> Vec<Entry<'_>> {
    let entries = entries.iter();
    entries.map(|(key, value)| Entry { key: key.as_bytes(), value: value.as_bytes() }).collect()
}

fn request<'a>(entries: &'a Vec<Entry<'a>>) -> Request<'a> {
    let describe = |entries: &'a Vec<Entry<'a>>| Descriptor {
        entries: entries.iter().copied().collect(),
        ..Descriptor::default()
    };
    Request::new("api", slice::from_ref(entries), usize::MAX, Vec::len, describe).unwrap()
}
