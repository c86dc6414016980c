//! What matching costs, by the number and the kind of rules:
//!
//! ```sh
//! cargo run --release -p sluicegate-tests --example matching_costs
//! ```
//!
//! Times are compared within one run only: every variant is timed in every round, and its median is divided by that of
//! the first variant.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::indexing_slicing,
    clippy::cast_precision_loss,
    reason = "a program for people"
)]

use std::{
    fmt::Write,
    fs,
    hint::black_box,
    slice,
    time::{Duration, Instant},
};

use sluicegate_core::{
    Plan, Request,
    request::{Descriptor, Entry},
    rules::RuleSet,
};

/// Rules of a small and of a large file.
const SIZES: [usize; 2] = [10, 100_000];

/// Patterns of one key.
const PATTERNS: [usize; 3] = [10, 100, 1_000];

/// Requests of a variant, asked in turn: few, so that what they meet stays in the caches.
const REQUESTS: usize = 8;

/// Times that the requests of a variant are asked in a round.
const REPEATS: usize = 50;

/// Odd, so that there is a median.
const ROUNDS: usize = 101;

/// Times that a file is loaded.
const LOADS: usize = 5;

/// The entries of one descriptor.
type Entries = Vec<(String, String)>;

/// A limits file and what is asked of it.
struct Variant {
    name: String,
    rules: RuleSet,
    requests: Vec<Entries>,
    /// Whether each request meets a rule.
    hit: bool,
}

fn main() {
    let mut variants = Vec::new();
    for rules in SIZES {
        let text = exact(rules);
        variants.push(variant("exact value", rules, &text, true, |at| {
            one("user", format!("user-{at}"))
        }));
        variants.push(variant("unknown value", rules, &text, false, |at| {
            one("user", format!("nobody-{at}"))
        }));
        variants.push(variant("unknown key", rules, &text, false, |at| {
            one(&format!("none-{at}"), "x".into())
        }));
        variants.push(variant("key only", rules, &keys(rules), true, |at| {
            one(&format!("key-{at}"), "any".into())
        }));
        variants.push(variant("chain of 3", rules, &chains(rules), true, chain));
    }
    for patterns in PATTERNS {
        for (kind, (pattern, value)) in KINDS {
            let text = wild(patterns, pattern);
            let name = format!("{kind}, the last fits");
            variants.push(variant(&name, patterns, &text, true, |at| {
                one("path", value(patterns - 1, at))
            }));
            let name = format!("{kind}, none fits");
            variants.push(variant(&name, patterns, &text, false, |at| {
                one("path", value(patterns, at))
            }));
        }
    }
    let times = measure(&variants);
    print_times(&variants, &times);
    print_loads();
}

/// How a pattern is written, and a value with a number that fits that pattern only.
type Kind = (fn(usize) -> String, fn(usize, usize) -> String);

const KINDS: [(&str, Kind); 3] = [
    ("pattern a*", (|it| format!("/{it:06}/*"), |it, at| format!("/{it:06}/items/{at:08}"))),
    ("pattern *a", (|it| format!("*/{it:06}"), |it, at| format!("/items/{at:08}/{it:06}"))),
    (
        "pattern a*b*c",
        (|it| format!("/*/{it:06}/*/end"), |it, at| format!("/items/{at:04}/{it:06}/x/end")),
    ),
];

const LIMIT: &str = "rate_limit: {unit: minute, requests_per_unit: 10}";

fn file(rules: impl Iterator<Item = String>) -> String {
    let mut text = "domain: api\ndescriptors:\n".to_owned();
    for rule in rules {
        writeln!(text, "{rule}").unwrap();
    }
    text
}

fn exact(rules: usize) -> String {
    file((0..rules).map(|it| format!("  - {{key: user, value: user-{it}, {LIMIT}}}")))
}

fn keys(rules: usize) -> String {
    file((0..rules).map(|it| format!("  - {{key: key-{it}, {LIMIT}}}")))
}

/// Ten rules a tenant, on the third level.
fn chains(rules: usize) -> String {
    let routes: Vec<_> =
        (0..10).map(|it| format!("{{key: route, value: route-{it}, {LIMIT}}}")).collect();
    let below = routes.join(", ");
    file((0..rules / 10).map(|it| {
        format!(
            "  - {{key: tenant, value: tenant-{it}, descriptors: [{{key: user, descriptors: [{below}]}}]}}"
        )
    }))
}

fn wild(patterns: usize, pattern: fn(usize) -> String) -> String {
    file((0..patterns).map(|it| format!("  - {{key: path, value: \"{}\", {LIMIT}}}", pattern(it))))
}

fn one(key: &str, value: String) -> Entries {
    vec![(key.to_owned(), value)]
}

fn chain(at: usize) -> Entries {
    let entries = [
        ("tenant", format!("tenant-{}", at / 10)),
        ("user", "ann".into()),
        ("route", format!("route-{}", at % 10)),
    ];
    entries.map(|(key, value)| (key.to_owned(), value)).into()
}

fn load(text: &str) -> RuleSet {
    sluicegate::limits::parse("limits.yaml", text).unwrap()
}

/// Requests are spread over the rules: `asked` gets the number of one.
fn variant(
    kind: &str,
    rules: usize,
    text: &str,
    hit: bool,
    asked: impl Fn(usize) -> Entries,
) -> Variant {
    let requests = (0..REQUESTS).map(|it| asked(it * rules / REQUESTS)).collect();
    Variant { name: format!("{kind} | {rules}"), rules: load(text), requests, hit }
}

/// Medians of the time of one request: matching alone, and matching with planning.
fn measure(variants: &[Variant]) -> Vec<[Duration; 2]> {
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
    // Into the caches, and a check that this is what the variant says.
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
    Request::new("api", slice::from_ref(entries), Vec::len, describe).unwrap()
}

fn print_times(variants: &[Variant], times: &[[Duration; 2]]) {
    let ratio = |a: Duration, b: Duration| a.as_secs_f64() / b.as_secs_f64();
    println!("| what is asked | rules | matching | with planning |");
    println!("|---|---|---|---|");
    for (variant, [find, plan]) in variants.iter().zip(times) {
        let [find, plan] = [ratio(*find, times[0][0]), ratio(*plan, times[0][1])];
        println!("| {} | {find:.2} | {plan:.2} |", variant.name);
    }
    println!("\n| what is asked | matching, {} rules ÷ {} | with planning |", SIZES[1], SIZES[0]);
    println!("|---|---|---|");
    let sized = times.len() - PATTERNS.len() * KINDS.len() * 2;
    for (at, variant) in variants[..sized / 2].iter().enumerate() {
        let (few, many) = (times[at], times[at + sized / 2]);
        let kind = variant.name.split(" | ").next().unwrap();
        let [find, plan] = [0, 1].map(|it| ratio(many[it], few[it]));
        println!("| {kind} | {find:.2} | {plan:.2} |");
    }
}

fn print_loads() {
    let rules = SIZES[1];
    println!("\n| a file of {rules} rules | MB of text | loaded in, ms | bytes in memory a rule |");
    println!("|---|---|---|---|");
    let files =
        [("exact value", exact(rules)), ("key only", keys(rules)), ("chain of 3", chains(rules))];
    for (name, text) in files {
        let mut times = Vec::new();
        let mut resident = Vec::new();
        // All are kept: the first leaves room that the following use for reading, so growth is rules.
        let mut kept = Vec::new();
        for _ in 0..LOADS {
            let started = Instant::now();
            kept.push(load(&text));
            times.push(started.elapsed());
            resident.push(resident_bytes());
        }
        times.sort_unstable();
        let bytes = (resident[LOADS - 1] - resident[0]) / (LOADS - 1) / rules;
        let megabytes = text.len() as f64 / 1e6;
        println!("| {name} | {megabytes:.1} | {} | {bytes} |", times[LOADS / 2].as_millis());
    }
}

/// Memory of this process.
fn resident_bytes() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<usize>().unwrap() << 10
}
