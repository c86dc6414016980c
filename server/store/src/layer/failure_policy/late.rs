//! Requests that were decided without some of the store's answers, when these come late.

use std::sync::Arc;

use sluicegate_core::{
    Answers, Check, Store, StoreError,
    store::{Group, Late},
};
use smallvec::SmallVec;

use super::{Shared, conclusion::Conclusion, leftovers::undo};

/// Positions of checks in their group.
type Positions = SmallVec<[usize; 4]>;

/// The checks without an answer whose hits are given back if the store has charged them: they were asked for on condition
/// and their descriptor is over or the request has failed, or this process has counted them itself and is to debit them.
pub(super) fn in_vain(
    group: &[Check],
    answers: &Answers,
    conclusion: &Conclusion,
    failed: bool,
    is_listed: impl Fn(&Check) -> bool,
) -> Positions {
    let mut positions = Positions::new();
    let mut first = 0;
    for checks in group.chunk_by(|a, b| a.descriptor == b.descriptor) {
        let end = first + checks.len();
        let decisions = conclusion.decisions.get(first..end).unwrap_or_default();
        let over = failed || decisions.iter().any(|decision| !decision.allowed);
        for (position, check) in (first..end).zip(checks) {
            let is_unknown = answers.get(position) == Some(&Err(StoreError::Unknown));
            let is_debited = conclusion.local.contains(&position) && is_listed(check);
            let is_in_vain = is_debited || (over && check.take.conditional());
            if is_unknown && is_in_vain {
                positions.push(position);
            }
        }
        first = end;
    }
    positions
}

impl<S: Store> Shared<S> {
    /// Gives back what late answers show to be charged, of the checks at these positions.
    pub(super) fn give_back_late(&self, group: &Group, positions: Positions, late: Late) {
        if positions.is_empty() {
            return;
        }
        let give_backs = Arc::clone(&self.give_backs);
        let Some(permit) = give_backs.late() else {
            return give_backs.note_failed(positions.iter().filter_map(|&at| group.get(at)));
        };
        let (inner, group) = (Arc::clone(&self.inner), Arc::clone(group));
        tokio::spawn(async move {
            let answers = late.await;
            let charged = positions.iter().filter_map(|&at| {
                let decision = answers.get(at)?.as_ref().ok()?;
                undo(group.get(at)?, decision)
            });
            let takes: Vec<Check> = charged.collect();
            if !takes.is_empty() {
                give_backs.start(inner, takes);
            }
            drop(permit);
        });
    }
}
