//! A deterministic simulation of the whole store stack: the layers of several processes over simulated Redis servers that
//! run the real Lua scripts, on one thread and in virtual time, and an oracle that judges what was answered.
//!
//! A seed decides everything: requests, faults, delays, and which callers leave. See `docs/simulation.md`.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a simulation that cannot go on fails"
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
pub use scenario::{Kind, Scenario};
pub use shorten::shorten;

/// Runs a scenario, and returns everything in it that must not happen.
#[must_use]
pub fn violations(scenario: &Scenario) -> Vec<Violation> {
    oracle::judge(scenario, &run::run(scenario))
}

/// Runs a scenario and describes what happened.
#[must_use]
pub fn describe(scenario: &Scenario) -> String {
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
                Outcome::Left => "its caller left".to_owned(),
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
    for (process, rest) in history.rest.iter().enumerate() {
        let _written = writeln!(text, "  process {process}: {rest:?}");
    }
    text
}

/// Seeds that detect each mutant, one a line, each after the name of the mutant.
const RECORDED: &str = include_str!("../recorded.txt");

/// A seed that detects the mutant.
#[must_use]
pub fn recorded(mutant: Mutant) -> Option<u64> {
    let seed = |line: &str| {
        let (name, seed) = line.split_once(' ')?;
        (name == mutant.name()).then(|| seed.parse().ok())?
    };
    RECORDED.lines().find_map(seed)
}

/// All that a run did, to compare it with another.
#[must_use]
pub fn trace(scenario: &Scenario) -> String {
    format!("{:?}", run::run(scenario))
}
