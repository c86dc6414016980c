//! Takes that were charged in vain, to be given back.

use sluicegate_core::{
    Check, Decision, Take,
    store::{Source, Veto},
};

/// A take to be given back.
pub(super) struct Leftover {
    pub(super) check: Check,
    /// Who charged it.
    pub(super) source: Source,
}

/// The check that undoes a take; `None` if nothing was charged.
pub(super) fn undo(check: &Check, decision: &Decision) -> Option<Check> {
    let receipt = Some(decision.receipt?);
    let take = Take::GiveBack { hits: decision.granted, receipt };
    Some(Check { take, veto: Veto::None, ..check.clone() })
}

/// What was taken on condition though its descriptor is over, or the whole request fails: it was charged on
/// another slot, or before another store was asked. The decisions then say that nothing was charged.
pub(super) fn leftovers(
    group: &[Check],
    decisions: &mut [Decision],
    failed: bool,
) -> Vec<Leftover> {
    let mut leftovers = Vec::new();
    let mut rest = decisions;
    for checks in group.chunk_by(|a, b| a.descriptor == b.descriptor) {
        let (of_descriptor, others) = rest.split_at_mut(checks.len().min(rest.len()));
        rest = others;
        if !failed && of_descriptor.iter().all(|decision| decision.allowed) {
            continue;
        }
        for (check, decision) in checks.iter().zip(of_descriptor) {
            let undo = undo(check, decision).filter(|_| check.take.conditional());
            let Some(undo) = undo else { continue };
            leftovers.push(Leftover { check: undo, source: decision.source });
            decision.receipt = None;
            decision.remaining += decision.granted;
            decision.granted = 0;
        }
    }
    leftovers
}
