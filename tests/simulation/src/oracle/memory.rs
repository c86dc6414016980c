//! Verifies the answers of a store in memory: they equal those of a sequential limiter.

use sluicegate_core::Charge;

use super::{Oracle, Violation, is_conditional, is_over, is_refused, needs};
use crate::{history::Outcome, scenario::PlannedCheck};

/// Undoes the conditional charges of some checks.
fn undo(
    checks: &[PlannedCheck],
    answers: &mut [(bool, u64)],
    used: &mut [i64],
    is_undone: impl Fn(&PlannedCheck) -> bool,
) {
    for (check, (_, charged)) in checks.iter().zip(answers) {
        if is_conditional(check.charge) && is_undone(check) {
            used[check.counter] -= i64::try_from(std::mem::take(charged)).unwrap();
        }
    }
}

impl Oracle<'_> {
    /// The answers of a store in memory equal those of a limiter that settles one request after the other.
    pub(super) fn verify_memory(&mut self) {
        let mut used = vec![0_i64; self.scenario.counters.len()];
        let resets = self.history.invalidations.iter().filter(|it| it.is_reset);
        let mut resets = resets.filter_map(|it| Some((it.ended.0, it.counter?))).peekable();
        for request in &self.history.requests {
            while let Some((_, counter)) = resets.next_if(|it| it.0 < request.began.0) {
                used[counter] = 0;
            }
            let expected = self.settle(&request.checks, &mut used);
            if let Outcome::Decided(decisions) = &request.outcome {
                let answers: Vec<_> = decisions.iter().map(|it| (it.allowed, it.charged)).collect();
                if answers != expected {
                    let what = format!("allowed and charged are {answers:?}, not {expected:?}");
                    self.add("memory decides as a sequential limiter", Some(request.action), what);
                }
            }
        }
        resets.for_each(|(_, counter)| used[counter] = 0);
        let used: Vec<_> = used.into_iter().map(Some).collect();
        if used != self.history.used {
            let what = format!("counters have {:?} at the end, not {used:?}", self.history.used);
            self.found.push(Violation::of_run("counters equal the sum of the answers", what));
        }
    }

    /// Settles a request alone. Returns for each check whether it is allowed, and the charged hits.
    fn settle(&self, checks: &[PlannedCheck], used: &mut [i64]) -> Vec<(bool, u64)> {
        let mut answers: Vec<(bool, u64)> = Vec::new();
        for (at, check) in checks.iter().enumerate() {
            answers.push(self.charge(check, &mut used[check.counter]));
            let is_last = checks.get(at + 1).is_none_or(|next| next.descriptor != check.descriptor);
            let allowed: Vec<bool> = answers.iter().map(|it| it.0).collect();
            if is_last && is_over(checks, &allowed, check.descriptor) {
                undo(checks, &mut answers, used, |it| it.descriptor == check.descriptor);
            }
        }
        let allowed: Vec<bool> = answers.iter().map(|it| it.0).collect();
        if is_refused(checks, &allowed) {
            undo(checks, &mut answers, used, |_| true);
        }
        answers
    }

    /// Decides one check, and charges its counter.
    fn charge(&self, check: &PlannedCheck, used: &mut i64) -> (bool, u64) {
        let number = |it: u64| i64::try_from(it).unwrap();
        let available = i64::from(self.limit(check).capacity()) - *used;
        let fits = number(needs(check.charge)) <= available;
        let (allowed, charged) = match check.charge {
            Charge::IfAllowed(hits) => (fits, if fits { hits } else { 0 }),
            Charge::Always { hits, .. } => (fits, hits),
            Charge::Refund { hits, .. } => {
                *used = (*used - number(hits)).max(0);
                (true, 0)
            }
        };
        *used += number(charged);
        (allowed, charged)
    }
}
