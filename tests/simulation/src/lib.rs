//! A deterministic simulation of the store stack: the layers of several processes, simulated Redis servers that run the
//! real Lua scripts, and an oracle that verifies every answer. It runs on one thread and in virtual time.
//!
//! Requests, faults, delays and disconnecting callers all follow from a seed. See `docs/simulation.md`.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "the simulation panics where it cannot continue"
)]

pub mod embedded;
mod history;
mod mutants;
mod network;
mod oracle;
mod panics;
mod polls;
mod process;
mod resp;
mod run;
mod scenario;
mod shorten;
mod usage;
mod world;

use std::fmt::Write as _;

use history::{History, Outcome};
pub use mutants::Mutant;
pub use oracle::Violation;
pub use resp::ScriptCall;
pub use scenario::{Scenario, StoreKind};
pub use shorten::shorten;

/// Runs a scenario, and returns the rules that it violates.
#[must_use]
pub fn run_and_verify(scenario: &Scenario) -> Vec<Violation> {
    oracle::verify(scenario, &run::run(scenario))
}

/// Runs a scenario, and describes its actions with their answers, and the changes of each counter.
#[must_use]
pub fn run_and_describe(scenario: &Scenario) -> String {
    let history = run::run(scenario);
    let mut text = scenario.to_string();
    let answers = |history: &History, action: usize| {
        history.requests.iter().find(|it| it.action == action).map(|request| {
            let answer = match &request.outcome {
                Outcome::Decided(decisions) => {
                    let decided = decisions
                        .iter()
                        .map(|it| (it.allowed, it.charged, it.remaining, it.source));
                    format!("{:?}", decided.collect::<Vec<_>>())
                }
                Outcome::Deferred => "deferred".to_owned(),
                Outcome::Disconnected => "the caller disconnected".to_owned(),
            };
            format!("\n        {:?} to {:?}: {answer}", request.began.1, request.ended.1)
        })
    };
    for (number, (at, action)) in scenario.actions.iter().enumerate() {
        let answer = answers(&history, number).unwrap_or_default();
        let _written = writeln!(text, "  action {number} at {at} ms: {action:?}{answer}");
    }
    for (number, counter) in history.counters.iter().enumerate() {
        for snapshot in counter.snapshots.iter().filter(|it| !it.effect.is_none()) {
            let _written = writeln!(
                text,
                "  counter {number} at {:?}: {:?} by {:?}",
                snapshot.at, snapshot.usage, snapshot.effect
            );
        }
    }
    for (process, end_state) in history.end_states.iter().enumerate() {
        let _written = writeln!(text, "  process {process}: {end_state:?}");
    }
    text
}

/// For each mutant a line with its name and a seed that detects it.
const RECORDED: &str = include_str!("../recorded.txt");

/// The recorded seed that detects a mutant; `None` if there is none.
#[must_use]
pub fn recorded_seed(mutant: Mutant) -> Option<u64> {
    let seed = |line: &str| {
        let (name, seed) = line.split_once(' ')?;
        (name == mutant.name()).then(|| seed.parse().ok())?
    };
    RECORDED.lines().find_map(seed)
}

/// The whole history of a run as text, to compare it with another run.
#[must_use]
pub fn run_and_trace(scenario: &Scenario) -> String {
    format!("{:?}", run::run(scenario))
}
