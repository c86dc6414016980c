//! The command line of the simulation: runs many seeds, one seed, or every mutant.

#![expect(clippy::print_stdout, reason = "a command")]

use std::{
    fs,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use clap::{Parser, Subcommand};
use sluicegate_simulation::{Mutant, Scenario, run_and_describe, run_and_verify, shorten};

/// Simulates the store stack.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs many seeds, and shows the lowest one that fails.
    Run {
        /// The number of seeds.
        #[arg(long, default_value_t = SEEDS)]
        seeds: u64,
        /// The first seed.
        #[arg(long, default_value_t = 0)]
        first: u64,
        /// Runs for this number of minutes instead of a number of seeds.
        #[arg(long)]
        minutes: Option<u64>,
    },
    /// Runs one seed.
    Replay {
        /// The seed.
        seed: u64,
        /// Plants a defect, by its name in the table of mutants.
        #[arg(long)]
        mutant: Option<String>,
        /// Does not shorten a failing run, and shows the actions even if the run passes.
        #[arg(long)]
        whole: bool,
    },
    /// Plants each known defect, and shows the first seed that detects it.
    Mutants {
        /// The most seeds for each.
        #[arg(long, default_value_t = SEEDS)]
        seeds: u64,
        /// Writes the seeds to this file, for the tests.
        #[arg(long)]
        record: Option<PathBuf>,
    },
}

/// Default number of seeds.
const SEEDS: u64 = 20_000;

/// Number of failing seeds after which a run ends.
const FAILURES_MAX: usize = 5;

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Run { seeds, first, minutes } => {
            let until = minutes.map(|it| Instant::now() + Duration::from_secs(it * 60));
            run(first, if until.is_some() { u64::MAX - first } else { seeds }, until)
        }
        Command::Replay { seed, mutant, whole } => replay(seed, mutant.as_deref(), whole),
        Command::Mutants { seeds, record } => mutants(seeds, record.as_deref()),
    }
}

/// Runs seeds on all cores, until `failures` of them fail. Returns the failing seeds, lowest first, and the number of
/// seeds that were run.
fn failing(
    first: u64,
    seeds: u64,
    until: Option<Instant>,
    mutant: Option<Mutant>,
    failures: usize,
) -> (Vec<u64>, u64) {
    let (next, is_over) = (AtomicU64::new(first), AtomicBool::new(false));
    let found = Mutex::new(Vec::new());
    let work = || {
        Mutant::plant(mutant);
        while !is_over.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let is_late = until.is_some_and(|until| Instant::now() >= until);
            if seed - first >= seeds || is_late {
                next.fetch_sub(1, Ordering::Relaxed);
                break;
            }
            if !run_and_verify(&Scenario::new(seed)).is_empty()
                && let Ok(mut found) = found.lock()
            {
                found.push(seed);
                is_over.store(found.len() >= failures, Ordering::Relaxed);
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    thread::scope(|scope| (0..threads).for_each(|_| _ = scope.spawn(work)));
    let mut found = found.into_inner().unwrap_or_default();
    found.sort_unstable();
    (found, next.into_inner() - first)
}

fn run(first: u64, seeds: u64, until: Option<Instant>) -> ExitCode {
    let began = Instant::now();
    let (found, seeds) = failing(first, seeds, until, None, FAILURES_MAX);
    println!("{seeds} seeds in {:.1} s, {} failed", began.elapsed().as_secs_f64(), found.len());
    let Some(&seed) = found.first() else { return ExitCode::SUCCESS };
    println!("failing seeds: {found:?}");
    replay(seed, None, false)
}

fn replay(seed: u64, name: Option<&str>, whole: bool) -> ExitCode {
    let mutant = name.map(Mutant::named);
    if mutant == Some(None) {
        let names: Vec<_> = Mutant::all().map(Mutant::name).collect();
        println!("the mutants are {}", names.join(", "));
        return ExitCode::FAILURE;
    }
    Mutant::plant(mutant.flatten());
    let scenario = Scenario::new(seed);
    if run_and_verify(&scenario).is_empty() {
        println!("seed {seed} passes");
        if whole {
            println!("{}", run_and_describe(&scenario));
        }
        return ExitCode::SUCCESS;
    }
    let shown = if whole { scenario } else { shorten(&scenario) };
    println!("{}", run_and_describe(&shown));
    run_and_verify(&shown).iter().for_each(|it| println!("{it}"));
    let mutant = name.map_or(String::new(), |name| format!(" --mutant {name}"));
    println!("replay: cargo run --package sluicegate-simulation -- replay {seed}{mutant}");
    ExitCode::FAILURE
}

fn mutants(seeds: u64, record: Option<&Path>) -> ExitCode {
    println!("| defect | seeds until it was detected | first rule that it violated |");
    println!("|---|---|---|");
    let (mut code, mut recorded) = (ExitCode::SUCCESS, String::new());
    for mutant in Mutant::all() {
        let (found, _) = failing(0, seeds, None, Some(mutant), 1);
        Mutant::plant(Some(mutant));
        let seed = found.first().copied();
        let rule =
            seed.and_then(|seed| run_and_verify(&Scenario::new(seed)).first().map(|it| it.rule));
        let (Some(seed), Some(rule)) = (seed, rule) else {
            println!("| `{}` | not in {seeds} | |", mutant.name());
            code = ExitCode::FAILURE;
            continue;
        };
        println!("| `{}` | {} | {rule} |", mutant.name(), seed + 1);
        recorded += &format!("{} {seed}\n", mutant.name());
    }
    if let Some(Err(error)) = record.map(|file| fs::write(file, recorded)) {
        println!("cannot write the seeds: {error}");
        code = ExitCode::FAILURE;
    }
    code
}
