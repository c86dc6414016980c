//! Charges in vain, to be refunded.

use sluicegate_core::{
    Charge, Check, Decision,
    store::{RefusalScope, Source},
};

/// A charge to be refunded.
pub(super) struct Leftover {
    /// Of its check in the group.
    pub(super) position: usize,
    /// Undoes it where it was charged.
    pub(super) undo: Check,
    /// Who charged it.
    pub(super) source: Source,
}

/// The check that undoes a take; `None` if nothing was charged.
pub(super) fn undo(check: &Check, decision: &Decision) -> Option<Check> {
    let receipt = Some(decision.receipt?);
    let take = Charge::Refund { hits: decision.charged, receipt };
    Some(Check { charge: take, refusal_scope: RefusalScope::None, ..check.clone() })
}

/// What was taken on condition though its descriptor is over, or the whole request fails: it was charged on
/// another slot, or before another store was asked. The decisions then say that nothing was charged.
pub(super) fn leftovers(
    group: &[Check],
    decisions: &mut [Decision],
    failed: bool,
) -> Vec<Leftover> {
    let mut leftovers = Vec::new();
    let (mut rest, mut first) = (decisions, 0);
    for checks in group.chunk_by(|a, b| a.descriptor == b.descriptor) {
        let (of_descriptor, others) = rest.split_at_mut(checks.len().min(rest.len()));
        rest = others;
        let positions = first..;
        first += checks.len();
        if !failed && of_descriptor.iter().all(|decision| decision.allowed) {
            continue;
        }
        for (position, (check, decision)) in positions.zip(checks.iter().zip(of_descriptor)) {
            let undo = undo(check, decision).filter(|_| check.charge.is_conditional());
            let Some(undo) = undo else { continue };
            leftovers.push(Leftover { position, undo, source: decision.source });
            decision.receipt = None;
            decision.remaining += decision.charged;
            decision.charged = 0;
        }
    }
    leftovers
}
