//! Measures the cost of matching, by number and kind of rules:
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
    fs,
    time::{Duration, Instant},
};

use sluicegate_tests::matching_costs::{
    LIMIT, Variant, chain, chains, exact, file, keys, load, measure, one, variant,
};

/// Rules of a small and of a large file.
const SIZES: [usize; 2] = [10, 100_000];

/// Patterns of one key.
const PATTERNS: [usize; 3] = [10, 100, 1_000];

/// How often each file is loaded.
const LOADS: usize = 5;

fn main() {
    let mut variants = Vec::new();
    for rules in SIZES {
        let text = exact(rules);
        variants.push(variant(&sized("exact value", rules), rules, &text, true, |at| {
            one("user", format!("user-{at}"))
        }));
        variants.push(variant(&sized("unknown value", rules), rules, &text, false, |at| {
            one("user", format!("nobody-{at}"))
        }));
        variants.push(variant(&sized("unknown key", rules), rules, &text, false, |at| {
            one(&format!("none-{at}"), "x".into())
        }));
        variants.push(variant(&sized("key only", rules), rules, &keys(rules), true, |at| {
            one(&format!("key-{at}"), "any".into())
        }));
        variants.push(variant(&sized("chain of 3", rules), rules, &chains(rules), true, chain));
    }
    for patterns in PATTERNS {
        for (kind, (pattern, value)) in KINDS {
            let text = wild(patterns, pattern);
            let name = sized(&format!("{kind}, the last fits"), patterns);
            variants.push(variant(&name, patterns, &text, true, |at| {
                one("path", value(patterns - 1, at))
            }));
            let name = sized(&format!("{kind}, none fits"), patterns);
            variants.push(variant(&name, patterns, &text, false, |at| {
                one("path", value(patterns, at))
            }));
        }
    }
    let times = measure(&variants);
    print_times(&variants, &times);
    print_loads();
}

/// The name of a variant in the tables.
fn sized(kind: &str, rules: usize) -> String {
    format!("{kind} | {rules}")
}

/// Two functions: the pattern with a number, and a value that matches only the pattern with this number.
type Kind = (fn(usize) -> String, fn(usize, usize) -> String);

const KINDS: [(&str, Kind); 3] = [
    ("pattern a*", (|it| format!("/{it:06}/*"), |it, at| format!("/{it:06}/items/{at:08}"))),
    ("pattern *a", (|it| format!("*/{it:06}"), |it, at| format!("/items/{at:08}/{it:06}"))),
    (
        "pattern a*b*c",
        (|it| format!("/*/{it:06}/*/end"), |it, at| format!("/items/{at:04}/{it:06}/x/end")),
    ),
];

fn wild(patterns: usize, pattern: fn(usize) -> String) -> String {
    file((0..patterns).map(|it| format!("  - {{key: path, value: \"{}\", {LIMIT}}}", pattern(it))))
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
        // All rule sets stay loaded. The first load leaves free memory that later loads use for reading, so the growth
        // is that of the rules.
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
