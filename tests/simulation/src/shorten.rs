//! Shortening of scenarios that fail.

use crate::{Scenario, run_and_verify};

/// Maximum number of shortened scenarios to run.
const TRIES_MAX: usize = 400;

/// Removes actions from a scenario, as long as it still violates the same rule.
#[must_use]
pub fn shorten(scenario: &Scenario) -> Scenario {
    let rule = run_and_verify(scenario).first().map(|it| it.rule);
    let mut shortest = scenario.clone();
    let (mut tries, mut size) = (0, scenario.actions.len() / 2);
    while size > 0 {
        let mut begin = 0;
        while begin < shortest.actions.len() && tries < TRIES_MAX {
            let mut shorter = shortest.clone();
            let end = (begin + size).min(shorter.actions.len());
            shorter.actions.drain(begin..end);
            tries += 1;
            if run_and_verify(&shorter).iter().any(|it| Some(it.rule) == rule) {
                shortest = shorter;
            } else {
                begin = end;
            }
        }
        size /= 2;
    }
    shortest
}
