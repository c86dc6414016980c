//! Measures what a decision costs beside an empty tonic server. `tests/bench/run` builds and starts it.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program for people: what cannot be measured ends it"
)]

mod empty_server;
mod generator;
mod h2load;
mod load;
mod machine;
mod measure;
mod metrics;
mod redis_cost;
mod results;
mod scale;
mod table;
mod targets;
mod variant;

use std::{env, path::PathBuf, sync::Arc};

use clap::{Parser, ValueEnum};
use sluicegate_core::Algorithm;
use sluicegate_tests::{
    counter_costs::Growth,
    finish,
    matching_costs::{self, exact, keys, one, variant},
};
use tokio::process::Command;

use crate::{
    load::{Load, Requests},
    measure::{allocations, flood, measure, number, warm_up},
    results::{Results, Rows, Value, median},
    scale::Scale,
    table::{Table, text},
    targets::TargetLoads,
    variant::{Program, Server, Stores, Variant, counted},
};

/// Measures what a decision costs beside an empty tonic server, and prints tables of Markdown.
#[derive(Parser)]
struct Arguments {
    /// The targets only, in about two minutes.
    #[arg(long)]
    quick: bool,
    /// Some of all loads, and the targets, too short for meaningful results: a test that the benchmark runs.
    #[arg(long, conflicts_with = "quick")]
    smoke: bool,
    /// Loads to measure: those of the targets, or all, the others once.
    #[arg(long, value_enum, default_value_t = Loads::All)]
    loads: Loads,
    /// Number of rounds in which the loads of the targets are measured; the median counts. Default: 5; with --quick 3.
    #[arg(long)]
    rounds: Option<usize>,
    /// A sluicegate binary to measure in place of the one built here. Its allocations are not counted.
    #[arg(long)]
    binary: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Loads {
    /// The loads of the targets.
    Targets,
    /// All.
    All,
}

fn main() {
    if env::args().nth(1).as_deref() == Some("empty-server") {
        empty_server::serve();
    } else {
        run(&Arguments::parse());
    }
}

#[tokio::main(flavor = "current_thread")]
async fn run(arguments: &Arguments) {
    let scale = Scale::new(arguments.quick, arguments.smoke);
    let rounds = arguments.rounds.unwrap_or(scale.rounds);
    let all = arguments.loads == Loads::All && !arguments.quick;
    println!("## Measured\n\n{}", machine::described().await);
    let bench = Bench::start(arguments.binary.as_ref(), scale).await;
    let matrix = if all {
        let loads = Load::matrix(scale.tenants).into_iter().step_by(scale.step);
        Some(bench.measure_once(&Vec::from_iter(loads)).await)
    } else {
        None
    };
    let loads = TargetLoads::new(scale.tenants);
    let results = bench.measure_targets(&loads, rounds).await;
    println!("### Targets\n\n{}", targets::table(&results, &loads));
    println!("### The loads of the targets, medians of {rounds} rounds\n");
    println!("{}", table::costs(&results.rows));
    println!("### Loads of one body by h2load, medians of {rounds} rounds\n");
    println!("{}", by_h2load(&results, &loads.one));
    println!("### Reference values, medians of {rounds} rounds\n\n{}", reference_values(&results));
    if let Some(rows) = matrix {
        println!("### Every load, once\n\n{}", table::costs(&rows));
    }
}

/// The running servers, and the extent of the measurement.
struct Bench {
    scale: Scale,
    stores: Stores,
    servers: Vec<Server>,
    /// The same servers with an allocator that counts.
    counted: Vec<Server>,
}

impl Bench {
    async fn start(binary: Option<&PathBuf>, scale: Scale) -> Self {
        let stores = Stores::start().await;
        let start = async |program: &Program| {
            let mut servers = Vec::new();
            for variant in Variant::ALL {
                let server = Server::start(variant, program, &stores).await;
                warm_up(&server, scale.tenants).await;
                servers.push(server);
            }
            servers
        };
        let built = || sluicegate_tests::binary("sluicegate");
        let servers = start(&Program::Plain(binary.cloned().unwrap_or_else(built))).await;
        let counted = if binary.is_none() { start(&Program::Counted).await } else { Vec::new() };
        Self { scale, stores, servers, counted }
    }

    /// Measures each load on each server once.
    async fn measure_once(&self, loads: &[Load]) -> Rows {
        let mut rows = Rows::default();
        for (number, load) in loads.iter().enumerate() {
            eprintln!("load {} of {}", number + 1, loads.len());
            self.measure(load, &mut rows).await;
            self.count(load, &mut rows).await;
        }
        rows
    }

    /// Measures a load on each server, one after the other.
    async fn measure(&self, load: &Load, rows: &mut Rows) {
        let requests = Arc::new(Requests::of(load));
        for server in &self.servers {
            let sample = measure(server, &self.stores, load, &requests, self.scale.span).await;
            rows.add(*load, server.variant, sample);
        }
    }

    /// Counts allocations of each server under a load.
    async fn count(&self, load: &Load, rows: &mut Rows) {
        let requests = Arc::new(Requests::of(load));
        for server in &self.counted {
            let count = allocations(server, load, &requests, self.scale.counted_requests).await;
            rows.count(load, server.variant, count);
        }
    }

    /// Measures the values of all targets; those that depend on time `rounds` times.
    async fn measure_targets(&self, loads: &TargetLoads, rounds: usize) -> Results {
        let mut results = Results::default();
        for round in 0..rounds {
            eprintln!("round {} of {rounds}", round + 1);
            self.measure_round(loads, &mut results).await;
        }
        for load in loads.all() {
            self.count(&load, &mut results.rows).await;
        }
        eprintln!("rules and counters");
        results.matching = matching(self.scale.rules);
        for algorithm in [Algorithm::FixedWindow, Algorithm::Gcra] {
            let bytes = memory_store(algorithm, self.scale.counters).await;
            results.memory_bytes.push((algorithm, bytes));
            let growth = Growth::of(algorithm, self.scale.counters).await;
            results.redis_bytes.push((algorithm, number(growth.used_memory)));
        }
        results
    }

    async fn measure_round(&self, loads: &TargetLoads, results: &mut Results) {
        for load in loads.all() {
            self.measure(&load, &mut results.rows).await;
        }
        for server in &self.servers {
            // About as many requests as our own generator has sent.
            let rate = results.rows.samples(&loads.one, server.variant).last().unwrap().rate;
            let count = whole(rate * self.scale.span.as_secs_f64());
            let sample = h2load::measure(server, &loads.one, count).await;
            results.h2load.add(loads.one, server.variant, sample);
        }
        let redis = &self.stores.redis;
        // As many counters in a call as Sluicegate has sent in this round.
        let calls = results.rows.samples(&loads.many, Variant::Redis).last().unwrap().calls;
        let depth = whole(number(loads.many.chain.try_into().unwrap()) / calls);
        let pair = redis_cost::raw_pair(redis, &loads.many, depth, self.scale.span).await;
        results.raw_pairs.push(pair);
        results.called.push(redis_cost::called(redis, &loads.many, depth, self.scale.span).await);
        let trip = redis_cost::round_trip(redis, &loads.idle, self.scale.round_trips).await;
        results.round_trips.push(trip);
        for server in self.servers.iter().filter(|server| server.variant == Variant::Redis) {
            results.flood_calls.push(flood(server, self.scale.span).await);
        }
    }
}

/// Rounds to the nearest whole number.
fn whole(number: f64) -> usize {
    text(number, 0).parse().unwrap()
}

/// For each kind of rules: the cost of matching with this number of rules, divided by that with ten.
fn matching(rules: usize) -> Vec<(&'static str, f64)> {
    let mut variants = Vec::new();
    for rules in [10, rules] {
        let user = |at| one("user", format!("user-{at}"));
        variants.push(variant("exact", rules, &exact(rules), true, user));
        let key = |at| one(&format!("key-{at}"), "any".to_owned());
        variants.push(variant("key only", rules, &keys(rules), true, key));
    }
    let times = matching_costs::measure(&variants);
    let ratio = |kind: usize| times[kind + 2][0].as_secs_f64() / times[kind][0].as_secs_f64();
    vec![("exact values", ratio(0)), ("keys only", ratio(1))]
}

/// Bytes per counter in a memory store with this number of counters.
async fn memory_store(algorithm: Algorithm, counters: usize) -> f64 {
    let mut command = Command::new(counted());
    command.args(["memory-store", algorithm.name(), &counters.to_string()]);
    let finished = finish(command).await;
    finished.stdout.trim().parse().unwrap_or_else(|_| panic!("{finished:?}"))
}

/// Compares h2load with our own generator.
fn by_h2load(results: &Results, load: &Load) -> Table {
    let mut table = Table::new(
        &["server"],
        &[
            "CPU ÷ empty",
            "the same by our generator",
            "requests/s ÷ empty",
            "the same by our generator",
            "CPU of h2load per request, µs",
            "CPU of our generator per request, µs",
        ],
    );
    for variant in Variant::ALL {
        let mut cells = vec![variant.to_string()];
        let both = [&results.h2load, &results.rows];
        let values: [Value; 2] = [|it| it.cpu, |it| it.rate];
        for value in values {
            cells.extend(both.map(|rows| text(median(&rows.ratios(load, variant, value)), 2)));
        }
        let generators = both.map(|rows| {
            let samples = rows.samples(load, variant).iter();
            text(median(&Vec::from_iter(samples.map(|it| it.generator_cpu))), 2)
        });
        cells.extend(generators);
        table.add(cells);
    }
    table
}

fn reference_values(results: &Results) -> Table {
    let mut table = Table::new(&["what"], &["µs"]);
    let pair = "CPU of Redis for a raw `INCRBY` and `EXPIRE` in a pipeline";
    table.add(vec![pair.to_owned(), text(median(&results.raw_pairs), 2)]);
    let called = "CPU of Redis for a counter in a call of as many";
    table.add(vec![called.to_owned(), text(median(&results.called), 2)]);
    let trip = "round trip of a call for one request of three limits, p50";
    table.add(vec![trip.to_owned(), text(median(&results.round_trips), 0)]);
    table
}
