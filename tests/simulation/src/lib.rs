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
mod network;
mod oracle;
mod resp;
mod run;
mod scenario;
mod shorten;
mod usage;
mod world;

use std::{fmt::Write as _, panic};

pub use oracle::Violation;
use run::{History, Outcome};
pub use scenario::{Kind, Scenario};
pub use shorten::shorten;
use sluicegate_core::mends::Mend;

/// Runs a scenario and tells what in it must not happen.
#[must_use]
pub fn violations(scenario: &Scenario) -> Vec<Violation> {
    match panic::catch_unwind(|| run::run(scenario)) {
        Ok(history) => oracle::judge(scenario, &history),
        Err(_) => vec![Violation::panicked()],
    }
}

/// Runs a scenario and describes what happened.
#[must_use]
pub fn describe(scenario: &Scenario) -> String {
    let history = run::run(scenario);
    let mut text = scenario.to_string();
    let requests = |history: &History, action: usize| {
        history.asked.iter().find(|it| it.action == action).map(|asked| {
            let answer = match &asked.outcome {
                Outcome::Decided(decisions) => {
                    let told = decisions.iter().map(|it| (it.allowed, it.granted, it.source));
                    format!("{:?}", told.collect::<Vec<_>>())
                }
                Outcome::Deferred => "deferred".to_owned(),
                Outcome::Left => "its caller left".to_owned(),
            };
            format!("\n        {:?} to {:?}: {answer}", asked.began.1, asked.ended.1)
        })
    };
    for (number, (at, action)) in scenario.actions.iter().enumerate() {
        let answer = requests(&history, number).unwrap_or_default();
        let _written = writeln!(text, "  action {number} at {at} ms: {action:?}{answer}");
    }
    for (number, counter) in history.counters.iter().enumerate() {
        for piece in &counter.pieces {
            let _written = writeln!(
                text,
                "  counter {number} at {:?}: {:?} by {}",
                piece.at, piece.usage, piece.change
            );
        }
    }
    text
}

/// Seeds that fail when a mend is switched off, one a line, each behind the name of the mend.
const RECORDED: &str = include_str!("../recorded.txt");

/// A seed that fails when the mend is switched off.
#[must_use]
pub fn recorded(mend: Mend) -> Option<u64> {
    RECORDED.lines().find_map(|line| line.strip_prefix(mend.name())?.trim().parse().ok())
}

/// All that a run did, to compare it with another.
#[must_use]
pub fn trace(scenario: &Scenario) -> String {
    format!("{:?}", run::run(scenario))
}
