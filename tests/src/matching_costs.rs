//! Measures the cost of matching for rule sets and requests.

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

/// Requests of a variant, in turn: few, so that their rules stay in the CPU caches.
const REQUESTS: usize = 8;

/// How often the requests of a variant are repeated in a round.
const REPEATS: usize = 50;

/// Number of rounds. Odd, so that one value is the median.
const ROUNDS: usize = 101;

/// The entries of one descriptor: keys and values.
pub type Entries = Vec<(String, String)>;

/// A limits file and requests for it.
#[derive(Debug)]
pub struct Variant {
    /// Name of the variant.
    pub name: String,
    rules: RuleSet,
    requests: Vec<Entries>,
    /// Whether each request matches a rule.
    hit: bool,
}

/// The limit of every rule.
pub const LIMIT: &str = "rate_limit: {unit: minute, requests_per_unit: 10}";

/// A limits file with these rules, a line each.
pub fn file(rules: impl Iterator<Item = String>) -> String {
    let mut text = "domain: api\ndescriptors:\n".to_owned();
    for rule in rules {
        writeln!(text, "{rule}").unwrap();
    }
    text
}

/// A limits file with `rules` rules of one key, each with another value.
#[must_use]
pub fn exact(rules: usize) -> String {
    file((0..rules).map(|it| format!("  - {{key: user, value: user-{it}, {LIMIT}}}")))
}

/// A limits file with `rules` rules, each of another key without a value.
#[must_use]
pub fn keys(rules: usize) -> String {
    file((0..rules).map(|it| format!("  - {{key: key-{it}, {LIMIT}}}")))
}

/// A limits file with `rules` rules on the third level, ten for each tenant.
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

/// A descriptor that matches the rule with number `at` in the file of [`chains`].
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

/// A variant whose requests are spread over the rules. `asked` returns the descriptor for the number of a rule, and
/// `hit` is whether that descriptor matches a rule.
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

/// Returns for each variant the median time of one request: of matching, and of matching and planning. Each round
/// measures every variant.
///
/// # Panics
/// A request matches a rule although its variant expects none, or the reverse.
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
    // Fills the CPU caches, and checks the expectation of the variant.
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
